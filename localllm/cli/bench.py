"""`localllm bench`: how fast a model is here, and what guessing ahead brings it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localllm.cli.drafts import configurations, draft_file, require_speculation
from localllm.cli.printable import print_json, printable
from localllm.cli.tables import aligned, parse_context
from localllm.cli.wording import in_options

if TYPE_CHECKING:  # every command imports this module
    from localllm.bench import Comparison, Result

_SHOWN_POSITIONS = 8
_SHOWN_PROMPTS = 6
_HEAD = ("SPECULATION", "PROMPT t/s", "ANSWER t/s", "RATIO", "PER PASS", "ACCEPTED", "DRAFT", "VERIFY", "ROLLBACK", "SAME TEXT")


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, org/repo:TAG on the Hub, or a name: smollm2.")
    ],
    speculation: Annotated[
        list[str] | None,
        typer.Option(
            "--speculation", help="A kind to compare with plain decoding: auto, ngram-map-k, draft-mtp, ...; may be repeated."
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", metavar="FILE", help="Draft: a file or a reference, for the kind that it is; may be repeated."),
    ] = None,
    head: Annotated[str | None, typer.Option("--head", metavar="FILE", help="LiLiCorr head, beside a DFlash draft.")] = None,
    draft_tokens: Annotated[int | None, typer.Option("--draft-tokens", help="Most tokens of a draft.")] = None,
    throttle: Annotated[bool, typer.Option("--throttle/--no-throttle", help="Shorten and pause drafts that do not pay.")] = True,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Most tokens of an answer.")] = 128,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds, of which medians are taken.")] = 3,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="A JSON list of texts (.json), or a prompt a line; a few of ours if missing.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompts as they are, without the chat template.")] = False,
    parallel: Annotated[int, typer.Option("--parallel", help="Requests at the same time.")] = 1,
    n_ctx: Annotated[
        str, typer.Option("--n-ctx", "-c", metavar="TOKENS", help="Context in tokens, for all requests together.")
    ] = "4096",
    threads: Annotated[int, typer.Option("--threads", help="Threads; 0: one per physical core.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write a picture, too: .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tokens per second of a model, plainly and with kinds of speculation, asked in turn. Exit code 1 if one of them fails."""
    from localllm.bench import PROMPTS, compare, draw, read_prompts
    from localllm.bench.picture import require_drawable
    from localllm.cli import hub
    from localllm.cli.progress import step_bar

    if plot is not None:
        require_drawable(plot)
    require_speculation(speculation or [], draft, head, draft_tokens, throttle)
    n_tokens_of_context = parse_context(n_ctx)
    asked = PROMPTS if prompts is None else read_prompts(prompts)
    speculations = configurations(
        speculation or [],
        [draft_file(one) for one in draft or []],
        draft_file(head) if head is not None else "",
        draft_tokens,
        throttle,
    )
    with step_bar("measuring") as advance:
        found = compare(
            hub.fetched(model, n_tokens_of_context),
            speculations,
            prompts=asked,
            n_tokens=tokens,
            n_rounds=rounds,
            parallel=parallel,
            raw=raw,
            progress=advance,
            n_ctx=n_tokens_of_context,
            n_threads=threads,
        )
    if plot is not None:
        draw(found, plot)
    if as_json:
        print_json(facts(found, throttle))
    else:
        print("\n".join(_lines(found)))
    if any(one.error for one in found.results):
        raise typer.Exit(1)


def facts(found: Comparison, throttle: bool) -> dict[str, Any]:
    """A comparison as plain data."""
    return {
        "path": found.path,
        "prompts": list(found.prompts),
        "tokens": found.n_tokens,
        "rounds": found.n_rounds,
        "parallel": found.parallel,
        "throttle": throttle,
        "results": [_facts(one) for one in found.results],
    }


def _facts(one: Result) -> dict[str, Any]:
    if one.error is not None:
        return {"name": one.name, "error": in_options(str(one.error))}
    plain = dataclasses.asdict(dataclasses.replace(one, speculation=None))
    del plain["error"]
    stats = one.speculation
    if stats is None:
        return plain
    more = {"drafted_tokens": stats.drafted_tokens, "accepted_tokens": stats.accepted_tokens, "acceptance": stats.acceptance}
    return {**plain, "speculation": {**dataclasses.asdict(stats), **more}, "acceptance_by_position": list(one.acceptance)}


def _lines(found: Comparison) -> Iterator[str]:
    """The table, what it says of each place in a draft and of each prompt, and where speculation loses."""
    from localllm.bench.picture import label

    n_prompts = len(found.prompts)
    asked = f"{n_prompts} prompt{'s' if n_prompts > 1 else ''}, up to {found.n_tokens} tokens each, {found.parallel} at once"
    yield printable(f"{found.path}: {asked}; medians of {found.n_rounds} round{'s' if found.n_rounds > 1 else ''}")
    done = [one for one in found.results if one.error is None]
    yield from aligned([_HEAD, *(_row(one, n_prompts) for one in done)], range(1, len(_HEAD)))
    drafting = [one for one in done if one.speculation is not None]
    if any(one.acceptance for one in drafting):
        yield "\nAccepted, by place in the draft:"
        yield from aligned([(f"  {label(one)}", _positions(one)) for one in drafting])
    if drafting and 1 < n_prompts <= _SHOWN_PROMPTS:
        yield "\nRatio to plain decoding, by prompt:"
        rows = [(f"  {label(one)}", *(_number(each.ratio, 2) for each in one.prompts)) for one in drafting]
        yield from aligned([("", *map(printable, found.prompts)), *rows], range(1, n_prompts + 1))
    yield ""
    for one in found.results:
        if one.error is not None:
            yield printable(f"{one.name}: no figures: {in_options(str(one.error))}")
        elif one.speculation is not None:
            yield _verdict(one, n_prompts)
            if "ngram-mod" in one.kind and n_prompts % found.parallel:
                yield f"{label(one)}: some prompts were asked twice, to have {found.parallel} at once, and it learns from that."


def _row(one: Result, n_prompts: int) -> tuple[str, ...]:
    from localllm.bench.picture import label

    speeds = (_number(one.prefill_tokens_per_second, 1), _number(one.tokens_per_second, 1), _number(one.ratio, 2))
    stats = one.speculation
    if stats is None:
        return (label(one), *speeds, _number(one.tokens_per_pass, 2), *[""] * 5)
    shares = (one.draft_share, one.verify_share, one.rollback_share)
    accepted = f"{stats.acceptance:.0%}" if stats.drafted_tokens else "-"
    same = f"{one.n_same} of {n_prompts}"
    return (label(one), *speeds, f"{one.tokens_per_pass:.2f}", accepted, *(f"{share:.0%}" for share in shares), same)


def _positions(one: Result) -> str:
    shown = [f"{share:.2f}" for share in one.acceptance[:_SHOWN_POSITIONS]]
    more = len(one.acceptance) - len(shown)
    return " ".join(shown) + (f" ... ({more} more)" if more > 0 else "") or "nothing was drafted"


def _verdict(one: Result, n_prompts: int) -> str:
    from localllm.bench.picture import label

    name = label(one)
    if one.ratio is None:
        said = f"{name}: no ratio; no answer had a second token."
    elif one.ratio < 1:
        said = f"{name}: slower than plain decoding here ({one.ratio:.2f})."
    else:
        said = f"{name}: {one.ratio:.2f} times as fast as plain decoding."
    if one.n_same < n_prompts:
        said += f" {n_prompts - one.n_same} of {n_prompts} texts differ: kernels round otherwise for several tokens at once."
    return said


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
