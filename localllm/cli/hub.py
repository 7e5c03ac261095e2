"""`localllm plan` and `localllm pull`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localllm.cli.printable import print_json, say
from localllm.cli.tables import parse_context, parse_size
from localllm.cli.wording import in_options
from localllm.errors import (
    AccessDeniedError,
    FileNotInRepoError,
    GatedRepoError,
    HubError,
    InvalidRequestError,
    NetworkError,
    QuantNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

if TYPE_CHECKING:
    from localllm.hub.gguf import Header
    from localllm.hub.manifest import Manifest
    from localllm.hub.memory import ContextOptions
    from localllm.hub.plan import Plan
    from localllm.hub.pull import Pulled
    from localllm.hub.speed import Rates
    from localllm.hub.store import Store

_NOT_TO_BE_HAD = (
    AccessDeniedError, FileNotInRepoError, GatedRepoError, NetworkError, QuantNotFoundError, RepositoryNotFoundError,
    RevisionNotFoundError,
)  # fmt: skip

Reference = Annotated[str, typer.Argument(metavar="MODEL", help="org/repo[@revision][:TAG], org/repo/file.gguf, or a name.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Context = Annotated[
    str,
    typer.Option(
        "--n-ctx", "-c", metavar="TOKENS", help="Context in tokens that has to fit; 0: the model's own length; auto: the usual."
    ),
]
Parallel = Annotated[int, typer.Option("--parallel", help="Sequences at the same time.")]
CacheType = Annotated[str, typer.Option("--cache-type", help="Type of the KV cache: f16, q8_0, ...")]
Projector = Annotated[
    str | None, typer.Option("--mmproj", metavar="FILE", help="This projector of the repository; the best one if missing.")
]
NoProjector = Annotated[bool, typer.Option("--no-mmproj", help="No projector.")]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="No draft model.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no network; the same as HF_HUB_OFFLINE=1.")]
Speed = Annotated[
    bool | None,
    typer.Option("--speed/--no-speed", help="Expected speed; measures this machine, once. In a terminal this is usual."),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="The Hub's cache, for this command; HF_HUB_CACHE, HF_HOME, ... if missing. What is pulled there is found by every "
        "command, but what is pulled in part by this option only: set HF_HUB_CACHE for all of them.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("plan")(plan)
    app.command("pull")(pull)


def plan(
    model: Reference,
    n_ctx: Context = "4096",
    parallel: Parallel = 4,
    cache_type: CacheType = "f16",
    mmproj: Projector = None,
    no_mmproj: NoProjector = False,
    no_draft: NoDraft = False,
    offline: Offline = False,
    cache_dir: CacheDir = None,
    speed: Speed = None,
    as_json: Json = False,
) -> None:
    """What a pull would fetch, why, and whether it fits; reads lists and headers only."""
    from localllm.cli.plans import print_plan

    rates = _rates(speed)
    made = _plan(model, n_ctx, parallel, cache_type, mmproj, no_mmproj, no_draft, offline, cache_dir, rates)
    if as_json:
        print_json(made.to_json())
    else:
        print_plan(made)


def pull(
    model: Reference,
    n_ctx: Context = "4096",
    parallel: Parallel = 4,
    cache_type: CacheType = "f16",
    mmproj: Projector = None,
    no_mmproj: NoProjector = False,
    no_draft: NoDraft = False,
    offline: Offline = False,
    cache_dir: CacheDir = None,
    rate_limit: Annotated[str | None, typer.Option(metavar="RATE", help="At most so many bytes a second, e.g. 5MB.")] = None,
    connections: Annotated[int, typer.Option(help="Files at the same time.")] = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also what does not fit into memory.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch a model and what belongs to it; prints where it is. What came before is continued."""
    from localllm.cli.plans import print_plan, summary
    from localllm.cli.progress import continuable, transfer_bars
    from localllm.hub.client import client_for
    from localllm.hub.download import DownloadOptions
    from localllm.hub.progress import RateCap
    from localllm.hub.pull import pull as carry_out
    from localllm.hub.store import Store

    if connections < 1:
        raise InvalidRequestError(f"--connections: must be at least 1, not {connections}")
    options = DownloadOptions(
        rate_cap=RateCap(parse_size("--rate-limit", rate_limit.removesuffix("/s"))) if rate_limit else None, parallel=connections
    )
    store = Store(cache=cache_dir)
    with _telling_what_is_here(model, store):
        made = _plan(model, n_ctx, parallel, cache_type, mmproj, no_mmproj, no_draft, offline, cache_dir)
        if dry_run:
            print_json(made.to_json()) if as_json else print_plan(made)
            return
        if sys.stderr.isatty():
            say(summary(made))
        with client_for(made.endpoint, offline or None) as client, continuable(), transfer_bars() as progress:
            got = carry_out(made, client=client, store=store, download=options, force=force, progress=progress)
    for warning in made.warnings:
        say(f"localllm: {in_options(warning)}")
    if got.template_diff:
        say(f"localllm: the chat template has changed:\n{got.template_diff}")
    if as_json:
        print_json(_pulled(got))
    else:
        print(got.path)


@contextlib.contextmanager
def _telling_what_is_here(model: str, store: Store) -> Iterator[None]:
    """Where the Hub cannot be asked, or has it no more, a model that is here can be used all the same."""
    from localllm.hub.resolve import expand

    try:
        yield
    except HubError as error:
        if isinstance(error, _NOT_TO_BE_HAD) and store.find(expand(model)) is not None:
            say(f"localllm: {model} is on this machine all the same, and can be used; with --offline, pull prints where it is")
        raise


def fetched(reference: str, n_ctx: int | Literal["auto"]) -> str:
    """What to open for a reference: itself, or the file that it means on the Hub, fetched if it is not here yet."""
    from localllm.hub.resolve import expand

    if expand(reference).source != "hub":
        return reference
    from localllm.cli.progress import continuable, transfer_bars
    from localllm.hub.locate import locate
    from localllm.machine import this_machine

    with continuable(), transfer_bars() as progress:
        return str(locate(reference, context=_context(n_ctx), machine=this_machine, progress=progress))


def header(reference: str) -> tuple[Header, Manifest | None]:
    """The header of a model's file, which may be on the Hub; with its record if it was pulled."""
    from localllm.hub.gguf import read_header, read_model
    from localllm.hub.names import parse_name
    from localllm.hub.planner import plan as make
    from localllm.hub.resolve import expand, resolve
    from localllm.hub.store import Store

    found, store = expand(reference), Store()
    if found.source == "hub" and store.find(found) is None:
        return make(reference, store=store).header, None
    path = resolve(reference, store)
    shard = parse_name(path.name).shard
    read = read_model if shard is not None and shard[0] == 1 else read_header
    return read(path), store.find_manifest(found) if found.source == "hub" else None


def _plan(
    model: str,
    n_ctx: str,
    parallel: int,
    cache_type: str,
    mmproj: str | None,
    no_mmproj: bool,
    no_draft: bool,
    offline: bool,
    cache_dir: Path | None,
    rates: Rates | None = None,
) -> Plan:
    from localllm.hub.client import client_for
    from localllm.hub.plan import PlanOptions
    from localllm.hub.planner import plan as make
    from localllm.hub.resolve import expand
    from localllm.hub.store import Store
    from localllm.machine import this_machine

    if mmproj and no_mmproj:
        raise InvalidRequestError("--mmproj and --no-mmproj exclude each other")
    context = dataclasses.replace(_context(parse_context(n_ctx)), parallel=parallel, type_k=cache_type, type_v=cache_type)
    options = PlanOptions(
        context=context, projector=mmproj or not no_mmproj, draft=not no_draft, machine=this_machine(), rates=rates
    )
    with client_for(expand(model).endpoint, offline or None) as client:
        return make(model, client=client, store=Store(cache=cache_dir), options=options)


def _context(n_ctx: int | Literal["auto"]) -> ContextOptions:
    """The context that a quantization is chosen for; "auto" takes what is left then, so it is chosen for the usual one."""
    from localllm.hub.memory import ContextOptions

    return ContextOptions() if n_ctx == "auto" else ContextOptions(n_ctx=n_ctx)


def _rates(wanted: bool | None) -> Rates | None:
    """Rates of the machine: as they are known; measured if that is wanted, or somebody is there who can wait for them."""
    from localllm.cli.progress import step_bar
    from localllm.errors import NativeLibraryError
    from localllm.machine import known_rates, rates

    if wanted is False:
        return None
    try:
        if wanted or sys.stderr.isatty():
            with step_bar("measuring this machine, once") as advance:
                return rates(progress=advance)
        return known_rates()
    except NativeLibraryError:
        if wanted:
            raise
        return None  # plans need no native library


def _pulled(got: Pulled) -> dict[str, Any]:
    return {
        "path": str(got.path),
        "projector": str(got.projector) if got.projector else None,
        "draft": str(got.draft) if got.draft else None,
        "reference": got.manifest.reference,
        "commit": got.manifest.commit,
        "files": [dataclasses.asdict(kept) for kept in got.manifest.files],
        "fetched_bytes": got.plan.fetch_bytes,
        "template_diff": got.template_diff,
    }
