"""Gives a name of the user's to a model, if it would mean it from everywhere."""

from __future__ import annotations

from pathlib import Path

from localllm.errors import LocalLLMError, ReferenceFormatError
from localllm.files import whole_path
from localllm.hub.catalog import Aliases, catalog
from localllm.hub.reference import EMBEDDED
from localllm.hub.resolve import expand, resolve


def give_name(name: str, reference: str) -> tuple[str, ...]:
    """Lets a name stand for a reference; that of a file is kept as its whole path, so that the name means it in any folder.

    Args:
        name: str, letters, digits, ".", "-", "_".
        reference: str, as users write it.

    Returns:
        What the user should know: what the name meant before, or what it hides; each a sentence.

    Raises:
        ReferenceFormatError: Not a possible name, that of an embedded model, one that would stand for itself, or no reference.
        ModelNotFoundError, ModelFileError, IncompleteSetError: There is no such model on this machine; see `resolve`. Models of
            the Hub need not be here.
        HubError: The file of names is damaged or cannot be written.
    """
    if name.lower() in EMBEDDED:
        raise ReferenceFormatError(f"{name}: is the name of an embedded model, and always means that; choose another one")
    aliases = Aliases()
    before = aliases.get(name)
    target = _target(reference)
    aliases.set(name, target)
    try:
        expand(name)
    except LocalLLMError:
        _put_back(aliases, name, before)
        raise
    return _notes(name, target, before)


def loss(name: str) -> str:
    """Why a name of the user's means nothing any more, and how to be rid of it, in one sentence; "" if it does mean something."""
    try:
        if expand(name).source != "hub":
            resolve(name)
    except (LocalLLMError, OSError) as error:
        return loss_text(name, error)
    return ""


def loss_text(name: str, error: Exception) -> str:
    """What to tell of a name that leads nowhere, by the error that says so."""
    reason = getattr(error, "strerror", None) or error
    return f"The name {name} leads nowhere ({reason}); localllm alias {name} --remove forgets it."


def _target(reference: str) -> str:
    found = expand(reference)
    if found.source == "path":
        resolve(reference)
        # A name of the user for it stays a name: it may come to mean something else.
        is_name = Aliases().get(reference) is not None
        return reference if is_name else str(whole_path(Path(found.name)))
    if found.source == "ollama":
        resolve(reference)
    return reference


def _put_back(aliases: Aliases, name: str, before: str | None) -> None:
    if before is None:
        aliases.remove(name)
    else:
        aliases.set(name, before)


def _notes(name: str, target: str, before: str | None) -> tuple[str, ...]:
    if before is not None:
        return () if before == target else (f"{name} stood for {before} before.",)
    known = catalog().get(name.lower())
    if known is None:
        return ()
    return (
        f"{name} is a name of the catalog, too, for {known.repo}:{known.quant}; localllm alias {name} --remove brings it back.",
    )
