"""Speculation as it is typed: kinds, and the files of drafts and heads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from localllm.errors import InvalidRequestError

if TYPE_CHECKING:  # every command imports this module
    from localllm.engine.config import SpeculationConfig, SpeculationKind

Speculation = Annotated[
    str,
    typer.Option(
        "--speculation",
        help="Guess ahead: where text repeats (ngram-map-k, ngram-mod, ...), by a draft or heads (draft-mtp, draft-eagle3, "
        "...), or auto: by what there is.",
    ),
]
Draft = Annotated[
    str | None, typer.Option("--draft", metavar="FILE", help="Draft for --speculation: a GGUF file, or one on the Hub.")
]
Head = Annotated[str | None, typer.Option("--head", metavar="FILE", help="LiLiCorr head that goes with a DFlash --draft.")]


def draft_file(reference: str) -> str:
    """The file of a draft or a head, fetched if it is on the Hub and not here yet."""
    from localllm.cli.progress import continuable, transfer_bars
    from localllm.drafting import draft_file as found

    with continuable(), transfer_bars() as progress:
        return str(found(reference, progress=progress))


def chosen(kind: str, draft: str | None, head: str | None) -> SpeculationConfig:
    """The configuration, checked before anything is fetched for it."""
    from localllm.engine.config import SpeculationConfig

    config = SpeculationConfig(kind=cast(Any, kind), draft=draft or "", head=head or "")
    files = {name: draft_file(value) for name, value in (("draft", draft), ("head", head)) if value is not None}
    return dataclasses.replace(config, **cast(dict[str, Any], files))


def configurations(
    kinds: list[str], drafts: list[str], head: str, n_max: int | None, throttle: bool
) -> dict[str, SpeculationConfig]:
    """What is to be measured, by name: each kind with each draft that is of its kind; "auto" with each.

    Args:
        kinds: names of kinds; "none" adds nothing, as it is measured anyway.
        drafts: files of drafts.
        head: file of a LiLiCorr head, or "".
        n_max: int, most tokens of a draft; None: what is usual for the kind.
        throttle: bool.

    Raises:
        InvalidRequestError: A kind is unknown, appears twice, or has no draft; or an option is of no use to any kind.
    """
    from localllm.drafting import draft_kind
    from localllm.engine.config import SpeculationConfig

    if len({*kinds}) < len(kinds):
        raise InvalidRequestError("--speculation: names a kind twice")
    further: dict[str, Any] = {"n_max": n_max, "throttle": throttle}
    own = {path: {draft_kind(path), draft_kind(path, has_head=bool(head))} for path in drafts}
    found: dict[str, SpeculationConfig] = {}
    used: set[str] = set()
    for kind in kinds:
        if kind == "none":
            continue
        mine = [path for path in own if kind == "auto" or kind in own[path]]
        used.update(mine)
        wants_head = head if kind in ("auto", "draft-lilicorr") else ""
        for path in mine or [""]:
            name = kind if len(mine) < 2 else f"{kind} ({Path(path).stem})"
            name = name if name not in found else f"{kind} ({path})"
            found[name] = SpeculationConfig(kind=cast("SpeculationKind", kind), draft=path, head=wants_head, **further)
    if unused := next((path for path in drafts if path not in used), ""):
        uses = ", ".join(sorted(own[unused] - {""})) or "no speculation"
        raise InvalidRequestError(f"--draft: {unused} is of no use to {', '.join(kinds)}; it is for {uses}")
    if head and not any(one.head for one in found.values()):
        raise InvalidRequestError(f"--head: {head} is of no use to {', '.join(kinds)}; it goes with draft-lilicorr")
    return found


def require_speculation(kinds: list[str], drafts: list[str] | None, head: str | None, n_max: int | None, throttle: bool) -> None:
    """Refuses options that nobody would heed, before anything is fetched for them."""
    given = {"--draft": drafts, "--head": head is not None, "--draft-tokens": n_max is not None, "--no-throttle": not throttle}
    useless = next((name for name, value in given.items() if value), "")
    if useless and not set(kinds) - {"none"}:
        raise InvalidRequestError(f"{useless}: of no use without a kind of --speculation; auto finds out what a draft is for")
