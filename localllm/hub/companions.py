"""What goes with a model: the projector for images and sound, a draft that predicts for it, adapters that change it.

Projectors are looked for in the model's folder and above it, drafts everywhere in the repository. What a header can tell is
checked before anything is taken; what it forbids is not taken, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localllm.hub.gguf import Header
from localllm.hub.sets import FileSet, Grouped


@dataclass(frozen=True)
class Companion:
    """A set of files that is taken along, or is not.

    Attributes:
        files: FileSet; None if nothing is taken.
        reason: str, one sentence.
    """

    files: FileSet | None
    reason: str


@dataclass(frozen=True)
class CompanionSets:
    """The companions of one model.

    Attributes:
        projector, draft: Companion.
        adapters: FileSets that could be applied; they are never taken by themselves.
    """

    projector: Companion
    draft: Companion
    adapters: tuple[FileSet, ...]


def choose_companions(
    model: FileSet, sets: Grouped, headers: Mapping[str, Header], *, prefers_bf16: bool = False
) -> CompanionSets:
    """What to take along with a model.

    Args:
        model: FileSet that was chosen.
        sets: Grouped, all of the repository.
        headers: path of a first file -> Header, as many as are known; the model's own is needed to check the others.
        prefers_bf16: bool, the projector runs on a GPU that computes in BF16; a CPU is faster with F16.
    """
    adapters = tuple(one for one in sets.adapters if one.is_complete)
    return CompanionSets(
        choose_projector(model, sets.projectors, headers, prefers_bf16=prefers_bf16),
        choose_draft(model, sets.drafts, headers),
        adapters,
    )


def choose_projector(
    model: FileSet, projectors: Sequence[FileSet], headers: Mapping[str, Header], *, prefers_bf16: bool = False
) -> Companion:
    """The projector of a model; arguments as for `choose_companions`."""
    reachable = [one for one in projectors if one.is_complete and _is_above(one.name.folder, model.name.folder)]
    if not reachable:
        return Companion(None, "There is no projector beside the model or above it.")
    sound, refused = _sorted_out(reachable, lambda one: projector_problem(headers.get(model.path), headers.get(one.path)))
    if not sound:
        return Companion(None, f"No projector goes with the model ({'; '.join(refused)}).")
    order = ("BF16", "F16") if prefers_bf16 else ("F16", "BF16")
    best = min(sound, key=lambda one: (-len(one.name.folder), *_precision(one, order), one.path))
    reason = f"{best.path} goes with the model"
    if len(sound) > 1:
        device = "GPU" if prefers_bf16 else "CPU"
        reason += f"; of {len(sound)} it is the nearest, and {best.name.quant or 'its type'} suits the {device}"
    return Companion(best, reason + ("." if not refused else f"; refused: {'; '.join(refused)}."))


def projector_problem(model: Header | None, projector: Header | None) -> str:
    """Why a projector does not go with a model; "" if nothing is known against it."""
    if projector is None:
        return ""
    if projector.kind != "projector":
        return f"it is no projector, but a {projector.kind}"
    if model is None or not projector.projection_length or not model.embedding_length:
        return ""
    if projector.projection_length != model.embedding_length:
        return f"it gives {projector.projection_length} values, the model takes {model.embedding_length}"
    return ""


def choose_draft(model: FileSet, drafts: Sequence[FileSet], headers: Mapping[str, Header]) -> Companion:
    """The draft of a model; arguments as for `choose_companions`. Only one whose header shows that it belongs is taken."""
    own = headers.get(model.path)
    if own is not None and own.has_mtp:
        return Companion(None, f"The model predicts {own.n_layer_nextn} token(s) ahead by itself; no draft is needed.")
    whole = [one for one in drafts if one.is_complete]
    if not whole:
        return Companion(None, "There is no draft for it.")

    def problem(one: FileSet) -> str:
        header = headers.get(one.path)
        return "its header is not known" if header is None or own is None else draft_problem(own, header)

    sound, refused = _sorted_out(whole, problem)
    if not sound:
        return Companion(None, f"No draft goes with the model ({'; '.join(refused)}).")
    # The same order as llama.cpp's, then the smallest: a draft is only as good as it is fast.
    best = min(sound, key=lambda one: (_DRAFT_ORDER.index(_kind(headers[one.path])), one.n_bytes, one.path))
    return Companion(best, f"{best.path} predicts for this model ({headers[best.path].draft_kind}).")


def draft_problem(model: Header, draft: Header) -> str:
    """Why a draft does not go with a model; "" if nothing speaks against it."""
    if draft.tokens_hash and model.tokens_hash:
        # A dense draft proposes tokens by number, so every one must mean the same text.
        return "" if draft.tokens_hash == model.tokens_hash else "its vocabulary is another one"
    width = draft.get("target_hidden_size") or (draft.embedding_length if draft.kind == "draft" else 0)
    if draft.kind == "draft" and isinstance(width, int) and width == model.embedding_length:
        return ""
    if draft.kind == "draft":
        return f"it was made for models of width {width}, this one has {model.embedding_length}"
    return "it has no vocabulary to compare"


_DRAFT_ORDER = ("mtp", "lilicorr", "dspark", "dflash", "eagle3", "")


def _kind(header: Header) -> str:
    return header.draft_kind if header.draft_kind in _DRAFT_ORDER else ""


def _is_above(folder: str, other: str) -> bool:
    """Whether `folder` is `other` or one that it lies in."""
    return folder == "" or other == folder or other.startswith(folder + "/")


def _precision(files: FileSet, order: tuple[str, str]) -> tuple[int, int]:
    quant = files.name.quant
    if quant in order:
        return order.index(quant), 0
    return {"F32": (2, 0), "Q8_0": (3, 0)}.get(quant, (4, files.n_bytes))


def _sorted_out(found: Sequence[FileSet], problem: Callable[[FileSet], str]) -> tuple[list[FileSet], list[str]]:
    """Those that have no problem, and the problems of the others."""
    problems = {one.path: problem(one) for one in found}
    refused = [f"{path}: {why}" for path, why in problems.items() if why]
    return [one for one in found if not problems[one.path]], refused
