"""Which model of a repository to take: pure policy over its sets of files.

A set that is not whole is never chosen. Each choice says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localllm.errors import IncompleteSetError, QuantNotFoundError
from localllm.hub.gguf_parse import TENSOR_TYPES
from localllm.hub.names import match_tag
from localllm.hub.options import check_kind, check_whole
from localllm.hub.sets import FileSet

# Bits per weight by name, as llama.cpp's quantize tool prints them for Llama 3.1 8B: for ranking where nothing is measured.
_NOMINAL_BITS = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_1": 6.0, "Q5_K_M": 5.7, "Q5_K": 5.7, "Q5_K_S": 5.57,
    "Q5_0": 5.5, "Q4_1": 5.1, "Q4_K_L": 5.1, "Q4_K_XL": 5.0, "Q4_K_M": 4.89, "Q4_K": 4.89, "Q4_K_S": 4.67, "Q4_0": 4.66,
    "Q4": 4.66,
    "IQ4_NL": 4.68, "IQ4_XS": 4.46, "MXFP4": 4.3, "MXFP4_MOE": 4.3, "NVFP4": 4.6, "Q3_K_XL": 4.5, "Q3_K_L": 4.3, "Q3_K_M": 4.0,
    "Q3_K": 4.0, "Q3_K_S": 3.64, "IQ3_M": 3.76, "IQ3_S": 3.66, "IQ3_XS": 3.5, "IQ3_XXS": 3.25, "Q2_K_XL": 3.3, "Q2_K_L": 3.2,
    "Q2_K": 3.16, "Q2_K_S": 2.97, "IQ2_M": 2.93, "IQ2_S": 2.74, "IQ2_XS": 2.59, "IQ2_XXS": 2.38, "IQ1_M": 2.15, "IQ1_S": 2.0,
    "TQ2_0": 2.06, "TQ1_0": 1.69, "Q6_K_L": 6.8, "Q6_K_XL": 7.0, "Q5_K_L": 5.9, "Q5_K_XL": 5.9, "Q8_K_XL": 10.0,
}  # fmt: skip
_MAX_BITS = 8.7  # Q8_0, with the embeddings that publishers leave in higher precision; more than that is bought for nothing
_ABOUT_EQUAL = 0.08  # share of bits per weight within which speed and class decide
_NATIVE_RATIO = 1.6  # a model published in MXFP4 hardly grows when it is stored as anything else
_DEFAULT_QUANT = "Q4_K_M"
_TYPES = frozenset(name for name, _, _ in TENSOR_TYPES.values())


@dataclass(frozen=True)
class Candidate:
    """A model of a repository, and what is known of it.

    Attributes:
        files: FileSet.
        bits_per_weight: float, measured (bytes of the files and parameters of the header), else nominal; 0.0 if not even that.
        needed_bytes: int, memory for weights, cache, scratch and companions; None if not known.
        repacked_share: float, share of the bytes that the CPU repacks, which speeds up prompts; None if not known.
    """

    files: FileSet
    bits_per_weight: float
    needed_bytes: int | None = None
    repacked_share: float | None = None

    @property
    def tag(self) -> str:
        return self.files.name.tag or self.files.path.rpartition("/")[2]


def candidate(files: FileSet, n_parameters: int = 0) -> Candidate:
    """A candidate of which only names and sizes are known.

    Args:
        files: FileSet.
        n_parameters: int, from the header of any quantization of the same model; 0: not known.
    """
    if n_parameters and files.is_complete:
        return Candidate(files, 8 * files.n_bytes / n_parameters)
    return Candidate(files, _NOMINAL_BITS.get(files.name.quant, 0.0))


@dataclass(frozen=True)
class Machine:
    """What the choice depends on.

    Attributes:
        free_bytes: int, memory that a model may take, margin already taken off; None: not known.
        on_cpu: bool, the CPU computes, so types that it repacks are preferred and i-quants are not.
        repacked: tensor types that it repacks (`memory.repacked_types`).
        gpu_bytes: int, free memory of GPUs, a margin taken off; layers that do not fit there stay with the CPU.
    """

    free_bytes: int | None = None
    on_cpu: bool = True
    repacked: frozenset[str] = frozenset()
    gpu_bytes: int = 0

    def __post_init__(self) -> None:
        if self.free_bytes is not None:
            check_whole("free_bytes", self.free_bytes, 0)
        check_whole("gpu_bytes", self.gpu_bytes, 0)
        check_kind("on_cpu", self.on_cpu, bool)
        check_kind("repacked", self.repacked, frozenset)

    @property
    def all_bytes(self) -> int | None:
        """What a model may take of both kinds of memory; None: not known."""
        return None if self.free_bytes is None else self.free_bytes + self.gpu_bytes


@dataclass(frozen=True)
class Choice:
    """One set of files, and why it.

    Attributes:
        files: FileSet.
        reason: str, one sentence.
        warnings: what the user should know, each a sentence.
        fits: bool, None if that is not known.
    """

    files: FileSet
    reason: str
    warnings: tuple[str, ...] = ()
    fits: bool | None = None


def choose_model(candidates: Sequence[Candidate], machine: Machine, repo: str, tag: str = "", file: str = "") -> Choice:
    """The model to take.

    Args:
        candidates: of one repository.
        machine: Machine.
        repo: str, what errors call the repository.
        tag: str, the quantization that was asked for; "" for the best that fits.
        file: str, the path of the file that was asked for; "" for none.

    Raises:
        QuantNotFoundError: There is no such file or quantization, or no model at all, or the tag could mean several.
        IncompleteSetError: What was asked for lacks files.
    """
    if file:
        return _by_file(candidates, machine, repo, file)
    if tag:
        return _by_tag(candidates, machine, repo, tag)
    whole = [one for one in candidates if one.files.is_complete]
    if not whole:
        raise QuantNotFoundError(f"{repo} has no complete GGUF model{_listed(candidates)}")
    partial = [one for one in candidates if not one.files.is_complete]
    warnings = [f"{one.tag} is left out: {_lacks(one.files)}." for one in partial]
    whole, others = _of_one_name(whole)
    if others:
        warnings.append(f"The repository holds other models, too ({', '.join(others)}); name a file to get one of them.")
    choice = _best_place(whole, machine)
    return Choice(choice.files, choice.reason, (*choice.warnings, *warnings), choice.fits)


def _of_one_name(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The candidates of the model that has most of them, and the names of the other models."""
    by_name: dict[str, list[Candidate]] = {}
    for one in candidates:
        by_name.setdefault(one.files.name.base.lower(), []).append(one)
    most = max(by_name.values(), key=len)
    return most, [found[0].files.name.base for found in by_name.values() if found is not most]


def _by_file(candidates: Sequence[Candidate], machine: Machine, repo: str, file: str) -> Choice:
    for one in candidates:
        if file in (part.path for part in one.files.files):
            return _asked_for(one, machine, repo, f"{file} was asked for.")
    raise QuantNotFoundError(f"{repo} has no model {file!r}{_listed(candidates)}")


def _by_tag(candidates: Sequence[Candidate], machine: Machine, repo: str, tag: str) -> Choice:
    found = match_tag(tag, [one.files.name for one in candidates])
    named = [one for one in candidates if one.files.name in found.names]
    whole = [one for one in named if one.files.is_complete]
    if not named:
        raise QuantNotFoundError(f"{repo} has no {tag!r}{'; ' + found.note if found.note else ''}{_listed(candidates)}")
    if len(whole) > 1:
        paths = ", ".join(one.files.path for one in whole)
        raise QuantNotFoundError(f"{repo} has several models as {tag!r}; name one of the files: {paths}")
    reason = f"{tag} was asked for{'; ' + found.note if found.note else ''}."
    return _asked_for((whole or named)[0], machine, repo, reason)


def _asked_for(one: Candidate, machine: Machine, repo: str, reason: str) -> Choice:
    if not one.files.is_complete:
        raise IncompleteSetError(f"{repo}: {one.tag} is not whole: {_lacks(one.files)}")
    fits = _fits(one, machine)
    warnings = (
        (f"It needs {_gib(one.needed_bytes or 0)}, but only {_gib(machine.all_bytes or 0)} are free.",) if fits is False else ()
    )
    return Choice(one.files, reason, warnings, fits)


def _best(whole: Sequence[Candidate], machine: Machine) -> Choice:
    reasonable = [one for one in whole if one.bits_per_weight <= _MAX_BITS] or list(whole)
    if native := _native(whole):
        choice = _first_that_fits([native], machine)
        if choice is not None:
            return Choice(
                choice.files, f"{native.tag} is how the model was published; other types only make it larger.", (), choice.fits
            )
    if any(_fits(one, machine) is None for one in reasonable):
        return _usual(reasonable, machine)
    best = _first_that_fits(reasonable, machine)
    if best is not None:
        return best
    smallest = min(reasonable, key=lambda one: one.needed_bytes or one.files.n_bytes)
    needed, free = _gib(smallest.needed_bytes or 0), _gib(machine.all_bytes or 0)
    warning = (
        f"NOTHING FITS: even {smallest.tag} needs {needed}, but only {free} are free; "
        "a part of it would be read from disk again and again."
    )
    return Choice(smallest.files, f"{smallest.tag} is the smallest.", (warning,), False)


def _best_place(whole: Sequence[Candidate], machine: Machine) -> Choice:
    """The best that a GPU holds as a whole; if it holds none, the best that fits into both kinds of memory."""
    if not machine.gpu_bytes:
        return _best(whole, machine)
    on_gpu = _best(whole, Machine(machine.gpu_bytes, on_cpu=False))
    if on_gpu.fits is not False:
        return on_gpu
    shared = _best(whole, Machine(machine.all_bytes, on_cpu=False))
    warning = "The GPU does not hold it as a whole: some of its layers stay with the CPU, which is slower."
    return Choice(shared.files, shared.reason, (*shared.warnings, *((warning,) if shared.fits else ())), shared.fits)


def _first_that_fits(candidates: Sequence[Candidate], machine: Machine) -> Choice | None:
    """The best by bits per weight; among those that are about as large, the one that is fast and of a good class."""
    fitting = [one for one in candidates if _fits(one, machine) is not False]
    if not fitting:
        return None
    most = max(one.bits_per_weight for one in fitting)
    near = [one for one in fitting if one.bits_per_weight >= most * (1 - _ABOUT_EQUAL)]
    best = max(near, key=lambda one: (_is_repacked(one, machine), _rank(one, machine), one.bits_per_weight))
    fits = _fits(best, machine)
    reason = f"{best.tag} is the best {'that fits' if fits else 'there is'}, with {best.bits_per_weight:.2f} bits per weight"
    larger = max(near, key=lambda one: one.bits_per_weight)
    if larger is not best and _is_repacked(best, machine) > _is_repacked(larger, machine):
        reason += f"; {larger.tag} is about as good, but llama.cpp repacks {best.tag} for this CPU, which makes prompts faster"
    elif larger is not best:
        reason += f"; {larger.tag} is about as large, but {_why_not(larger, best, machine)}"
    return Choice(best.files, reason + ".", (), fits)


def _usual(candidates: Sequence[Candidate], machine: Machine) -> Choice:
    """The choice while nobody knows what fits."""
    plain = [one for one in candidates if one.files.name.quant == _DEFAULT_QUANT]
    if plain:
        best = max(plain, key=lambda one: (one.files.name.variant == "", one.files.name.variant))
        return Choice(best.files, f"{best.tag} is the usual choice where the memory that is needed is not known.")
    target = _NOMINAL_BITS[_DEFAULT_QUANT]
    best = min(candidates, key=lambda one: (abs(one.bits_per_weight - target), -_rank(one, machine)))
    return Choice(
        best.files, f"{best.tag} comes nearest to {_DEFAULT_QUANT}, which is not there; the memory needed is not known."
    )


def _native(whole: Sequence[Candidate]) -> Candidate | None:
    """The MXFP4 set of a model that was trained in it: then no other is much larger."""
    fours = [one for one in whole if one.files.name.quant.startswith("MXFP4")]
    if not fours:
        return None
    smallest = min(fours, key=lambda one: one.files.n_bytes)
    largest = max(one.files.n_bytes for one in whole)
    return smallest if largest <= _NATIVE_RATIO * smallest.files.n_bytes else None


def _fits(one: Candidate, machine: Machine) -> bool | None:
    if one.needed_bytes is None or machine.all_bytes is None:
        return None
    return one.needed_bytes <= machine.all_bytes


def _is_repacked(one: Candidate, machine: Machine) -> bool:
    if not machine.on_cpu:
        return False
    if one.repacked_share is not None:
        return one.repacked_share > 0.5
    return main_type(one.files.name.quant) in machine.repacked


def main_type(quant: str) -> str:
    """The tensor type that a quantization is named after: Q4_K of "Q4_K_M", but IQ3_S of "IQ3_M"; "" if it is none."""
    head = quant.rpartition("_")[0]
    return next((name for name in (quant, head, f"{head}_S") if name in _TYPES), "")


def _rank(one: Candidate, machine: Machine) -> int:
    """Class of a type at equal size: K before the old ones; i-quants are slow on CPUs; few bits need an importance matrix."""
    quant, variant = one.files.name.quant, one.files.name.variant
    rank = 2 if "_K" in quant and not quant.startswith("IQ") else 0
    if quant.startswith("IQ"):
        rank = 0 if machine.on_cpu else 2
    if one.bits_per_weight <= 5.2 and variant:
        rank += 1
    return rank


def _why_not(other: Candidate, best: Candidate, machine: Machine) -> str:
    if other.files.name.quant.startswith("IQ") and machine.on_cpu:
        return "i-quants are slow on a CPU"
    if best.files.name.variant and not other.files.name.variant:
        return f"{best.tag} was made with an importance matrix or trained for its type, which counts with few bits"
    return "of an older kind, which loses more"


def _lacks(files: FileSet) -> str:
    missing = ", ".join(map(str, files.missing[:8]))
    return f"{len(files.missing)} of {files.n_expected} files are missing (number {missing})"


def _listed(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return "; it holds none"
    lines = [f"{one.tag} ({_gib(one.files.n_bytes)}{'' if one.files.is_complete else ', not whole'})" for one in candidates]
    return f"; there is {', '.join(dict.fromkeys(lines))}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
