"""The commands that keep models: what is here, whether it is sound, and making room."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localllm.cli import exits
from localllm.cli.printable import print_json, say
from localllm.cli.removed import ask, older_commits, show_removed
from localllm.cli.tables import age_text, parse_size, parse_time, show_table, size_text
from localllm.errors import InvalidRequestError, ModelNotFoundError

if TYPE_CHECKING:
    from localllm.hub.checking import Checked
    from localllm.hub.entry import Entry

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Reference, as localllm list shows it, or an alias.")]
Models = Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]", help="References; all of the Hub if missing.")]
Deep = Annotated[bool, typer.Option("--deep/--no-deep", help="Hash the whole files, or look at sizes and headers only.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only tell what would go.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("list")(list_models)
    app.command("ls", hidden=True)(list_models)
    for name, command in (
        ("verify", verify), ("repair", repair), ("rm", rm), ("gc", gc), ("pin", pin), ("unpin", unpin), ("alias", alias),
        ("du", du), ("export", export), ("import", import_),
    ):  # fmt: skip
        app.command(name)(command)


def list_models(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also older commits, and where each is.")] = False,
    as_json: Json = False,
) -> None:
    """The models on this machine, whoever brought them."""
    from localllm.hub.inventory import models_here
    from localllm.hub.store import Store

    entries = [one for one in models_here(Store()) if everything or one.state != "superseded"]
    if as_json:
        return print_json([one.to_json() for one in entries])
    columns = ["MODEL", "STATE", ">SIZE", "QUANT", ">USED", "NAMES"]
    rows = [_row(one) for one in entries]
    if everything:
        columns += ["COMMIT", "PATH"]
        rows = [[*row, one.commit[:7], str(one.path or "")] for row, one in zip(rows, entries, strict=True)]
    plain: list[list[str | int]] = [
        [
            *(one.reference, one.state, one.n_bytes, one.quantization, ",".join(one.aliases), one.commit, str(one.path or "")),
            "pinned" if one.pinned else "",
        ]
        for one in entries
    ]
    show_table(columns, rows, plain)
    for one in entries:
        if one.problem and sys.stdout.isatty():
            say(f"{one.reference}: {one.problem}")
    return None


def _row(entry: Entry) -> list[str | int]:
    state = f"{entry.state}, pinned" if entry.pinned else entry.state
    size = size_text(entry.n_bytes)
    names = [*entry.aliases, *((f"(from {entry.parent})",) if entry.parent else ())]
    return [entry.reference, state, size, entry.quantization, age_text(entry.used_at), ", ".join(names)]


def _in_use() -> Callable[[Path], bool]:
    """Tells whether a program of this user has a file loaded."""
    from localllm.residency.listing import others

    used = {os.path.realpath(model.path) for model in others()}
    return lambda path: os.path.realpath(path) in used


def verify(models: Models = None, deep: Deep = True, as_json: Json = False) -> None:
    """Check sizes, headers and checksums. Exit code 14 if something is damaged, 17 if files are missing."""
    from localllm.cli.progress import transfer_bars
    from localllm.hub.checking import verify as run
    from localllm.hub.store import Store

    with transfer_bars() as told:
        found = run(Store(), models or None, deep=deep, progress=told)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        _show_checked(found)
        _tell_of_interrupted(models)
    if any(one.is_damaged for one in found):
        raise typer.Exit(exits.DAMAGED)
    if any(one.is_missing for one in found):
        raise typer.Exit(exits.INCOMPLETE)


_STATES = {"size": "damaged", "header": "damaged", "content": "damaged", "unknown": "not hashed"}
_NO_CHECKSUM = "Its size and header are right; nothing tells which checksum it should have."


def _tell_of_interrupted(models: Sequence[str] | None) -> None:
    """Where all models are meant, half of a download is not one of them."""
    from localllm.hub.inventory import models_here
    from localllm.hub.store import Store

    if models or not sys.stdout.isatty():
        return
    partial = [one for one in models_here(Store()) if one.state == "partial"]
    for one in partial:
        _say(f"{one.reference} is not here as a whole: {one.problem}")


def _show_checked(found: tuple[Checked, ...]) -> None:
    rows: list[list[str | int]] = []
    for one in found:
        bad = [file for file in one.files if file.problem]
        rows += [[one.entry.reference, _STATES.get(file.state, file.state), file.path, file.problem] for file in bad]
        if not bad:
            state = one.files[0].state if one.files else "damaged"
            why = _NO_CHECKSUM if state == "unknown" else ""
            rows.append([one.entry.reference, _STATES.get(state, state), "", why if one.files else one.entry.problem])
    show_table(["MODEL", "STATE", "FILE", "PROBLEM"], rows, rows)
    mended = [one.entry.reference for one in found if not one.is_sound and one.files and one.entry.repo]
    if mended:
        _say(f"localllm repair {shlex.join(mended)} mends {'it' if len(mended) == 1 else 'them'}")


def repair(models: Models = None, deep: Deep = True, as_json: Json = False) -> None:
    """Fetch damaged and missing files once more, and no others."""
    from localllm.cli.progress import continuable, transfer_bars
    from localllm.hub.checking import repair as run
    from localllm.hub.store import Store

    with continuable(), transfer_bars() as told:
        found = run(Store(), models or None, deep=deep, progress=told)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        rows: list[list[str | int]] = [
            [one.entry.reference, "damaged" if one.problem else "repaired", ", ".join(one.files), one.problem] for one in found
        ]
        show_table(["MODEL", "STATE", "FILES", "PROBLEM"], rows, rows)
        if not found:
            _say("nothing is damaged")
        _tell_of_interrupted(models)
    if any(one.problem for one in found):
        raise typer.Exit(exits.DAMAGED)


def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="References, as localllm list shows them.")],
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Pinned ones, too.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove models, with everything that nothing else needs. A terminal is asked first; for scripts they go, as named."""
    from localllm.hub.removal import remove
    from localllm.hub.store import Store

    store = Store()
    if not dry_run and not yes and _is_interactive():
        plan = remove(store, models, force=force, in_use=_in_use(), dry_run=True)
        ask(plan, older_commits(plan))
    removed = remove(store, models, force=force, in_use=_in_use(), dry_run=dry_run)
    show_removed(removed, older_commits(removed), dry_run, as_json, {})


def gc(
    max_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Most that models may take, e.g. 20GB.")] = None,
    older_than: Annotated[str | None, typer.Option(metavar="TIME", help="Models not used for so long go, e.g. 30d.")] = None,
    partials: Annotated[bool, typer.Option("--partials/--no-partials", help="Interrupted downloads go, too.")] = True,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make room: older commits, leftovers, then what was not used for long. Never what is pinned or of other programs."""
    from localllm.hub.garbage import gc as run
    from localllm.hub.store import Store

    limits: dict[str, Any] = {
        "max_bytes": parse_size("--max-size", max_size) if max_size is not None else None,
        "older_than_seconds": parse_time("--older-than", older_than) if older_than is not None else None,
        "partials": partials,
        "in_use": _in_use(),
    }
    store = Store()
    if not dry_run and not yes:
        plan = run(store, **limits, dry_run=True)
        if plan.removal.files or plan.removal.models:
            if not _is_interactive():
                raise InvalidRequestError("--yes: is needed where nobody can be asked; --dry-run tells what would go")
            ask(plan.removal, plan.reasons)
    found = run(store, **limits, dry_run=dry_run)
    more = {"models_bytes": found.models_bytes, "is_enough": found.is_enough}
    show_removed(found.removal, found.reasons, dry_run, as_json, more)
    if not found.is_enough:
        say(f"localllm: {size_text(found.models_bytes)} stay: what is left is pinned or in use")


def pin(model: Model, as_json: Json = False) -> None:
    """Keep a model from being removed by gc, or by rm without --force."""
    _pin(model, True, as_json)


def unpin(model: Model, as_json: Json = False) -> None:
    """Let a model be removed again."""
    _pin(model, False, as_json)


def _pin(model: str, pinned: bool, as_json: bool) -> None:
    from localllm.hub.inventory import pin as run
    from localllm.hub.store import Store

    entry = run(Store(), model, pinned)
    if as_json:
        return print_json(entry.to_json())
    _say(f"{entry.reference} is {'pinned' if pinned else 'not pinned any more'}")
    return None


def alias(
    name: Annotated[str | None, typer.Argument(help="Letters, digits, '.', '-' and '_'; all names are shown if missing.")] = None,
    reference: Annotated[str | None, typer.Argument(help="What the name is to stand for.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the name.")] = False,
    as_json: Json = False,
) -> None:
    """Show, give or take away names of your own for models."""
    from localllm.hub.catalog import Aliases
    from localllm.hub.naming import give_name, loss

    aliases = Aliases()
    if remove and (name is None or reference is not None):
        raise InvalidRequestError("--remove: takes one NAME and no REFERENCE")
    if name is not None and remove:
        if not aliases.remove(name):
            raise _no_alias(name)
    elif name is not None and reference is not None:
        for sentence in give_name(name, reference):
            say(f"localllm: {sentence}")
    elif name is not None and aliases.get(name) is None:
        raise _no_alias(name)
    found = aliases.all()
    if name is not None:
        found = {key: value for key, value in found.items() if key == name.lower()}
    if as_json:
        return print_json(found)
    if not remove:
        rows: list[list[str | int]] = [[key, value] for key, value in found.items()]
        show_table(["NAME", "REFERENCE"], rows, rows)
        for sentence in filter(None, map(loss, found)):
            _say(sentence)
    return None


def _no_alias(name: str) -> ModelNotFoundError:
    return ModelNotFoundError(2, "is no name of yours; localllm alias shows them", name)


def du(as_json: Json = False) -> None:
    """What models take on the disk, by repository."""
    from localllm.hub.store import Store
    from localllm.hub.usage import usage

    found = usage(Store())
    if as_json:
        return print_json(found.to_json())
    columns = ["REPOSITORY", ">DISK", ">SHARED", ">UNREFERENCED", ">PARTIAL", ">DAMAGED"]
    plain: list[list[str | int]] = [
        [one.repo, one.disk_bytes, one.shared_bytes, one.unreferenced_bytes, one.partial_bytes, one.corrupt_bytes]
        for one in found.repositories
    ]
    if found.optimized_bytes:
        plain.append(["made for this machine", found.optimized_bytes, 0, 0, 0, 0])
    sums = (found.disk_bytes, found.shared_bytes, found.unreferenced_bytes, found.partial_bytes, found.corrupt_bytes)
    plain.append(["total", *sums])
    rows = [[row[0], *(size_text(int(cell)) if cell else "" for cell in row[1:])] for row in plain]
    show_table(columns, rows, plain)
    _say(f"{size_text(found.free_bytes)} are free at {found.cache}")
    return None


def export(
    model: Model,
    file: Annotated[str, typer.Argument(help="File to be written; a folder if it ends in a slash.")],
    folder: Annotated[bool, typer.Option("--folder", help="Write a folder.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a model into one file, or a folder, for a machine without a network."""
    from localllm.cli.progress import transfer_bars
    from localllm.hub.archive import export as run
    from localllm.hub.store import Store

    with transfer_bars() as told:
        done = run(Store(), model, file, folder=folder or None, overwrite=force, progress=told)
    if as_json:
        return print_json({"reference": done.manifest.reference, "path": str(done.path), "n_bytes": done.n_bytes})
    print(done.path)
    return None


def import_(
    file: Annotated[str, typer.Argument(help="File or folder that localllm export wrote.")], as_json: Json = False
) -> None:
    """Take a model from what export wrote."""
    from localllm.cli.progress import transfer_bars
    from localllm.hub.archive import import_ as run
    from localllm.hub.store import Store

    with transfer_bars() as told:
        manifest = run(Store(), file, progress=told)
    if as_json:
        facts = {"reference": manifest.reference, "path": str(manifest.first("model")), "n_bytes": manifest.n_bytes}
        return print_json(facts)
    print(manifest.reference)
    return None


# ---- talking


def _say(sentence: str) -> None:
    """A remark for a person; a program that reads the output, or runs the command, has no use for it."""
    if sys.stdout.isatty():
        say(sentence)


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
