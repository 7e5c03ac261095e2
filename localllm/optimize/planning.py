"""What a version of a model for this machine would be: its types, how much faster it is expected to be, and at what cost."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import InvalidRequestError, NoGainError, UnsupportedModelError
from localllm.hub.choose import main_type
from localllm.hub.gguf import Header, read_model
from localllm.hub.gguf_parse import TENSOR_TYPES, TensorInfo
from localllm.hub.inventory import optimized_folder
from localllm.hub.names import parse_name
from localllm.hub.speed import Rates, Speed, expected

_BLOCKS = {name: (values, n_bytes) for name, values, n_bytes in TENSOR_TYPES.values()}
_UNQUANTISED = ("F32", "F16", "BF16", "F64")
_ALIGNMENT = 32  # of tensors in files that llama.cpp writes (GGUF_DEFAULT_ALIGNMENT)
# Of mixtures that nobody asked for: hardly fewer bits than now, and not more; for unquantised models the one that hides the loss.
_LEAST_BITS, _MOST_BITS = 0.85, 1.05
_NEARLY_LOSSLESS = "Q8_0"
_UNQUANTISED_BITS = 15.0
# What is weighed: a prompt of this length, and its answer. From so much less time on it is worth writing a file.
_PROMPT_TOKENS, _ANSWER_TOKENS = 512, 128
_LEAST_GAIN = 1.1
_ABOUT_EQUAL = 1.05  # mixtures that take so much longer than the fastest are as good as it, and the largest of them is taken
_NEEDS_IMATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S")  # llama-quant.cpp
_NO_MODEL = {
    "projector": "a projector (mmproj)",
    "adapter": "a LoRA adapter",
    "control vector": "a control vector",
    "draft": "a draft, whose types are those that its target was trained with",
    "vocabulary": "only a vocabulary",
    "other": "no language model",
}


@dataclass(frozen=True)
class OptimizePlan:
    """What a version for this machine would be.

    Attributes:
        source: Path of the model's only or first file.
        type: str, the mixture of tensor types to write, by llama.cpp's name, e.g. "Q4_0".
        header: Header of the source, with the tensors of all its files.
        result: Header as the new file will have it.
        before, after: Speeds that are expected on this machine.
        reason: str, a sentence on why this type.
        warning: str, a sentence on what it costs in quality; "" if nothing worth a word.
        n_threads: int, to write with.
    """

    source: Path
    type: str
    header: Header
    result: Header
    before: Speed
    after: Speed
    reason: str
    warning: str
    n_threads: int

    @property
    def expected_bytes(self) -> int:
        """Size of the new file, but for a few bytes of metadata."""
        return self.result.file_bytes

    @property
    def prefill_gain(self) -> float:
        """How many times as fast prompts are expected to be."""
        return self.after.prefill_tokens_per_second / self.before.prefill_tokens_per_second

    @property
    def decode_gain(self) -> float:
        """How many times as fast answers are expected to be."""
        return self.after.decode_tokens_per_second / self.before.decode_tokens_per_second

    @property
    def default_output(self) -> Path:
        """Where the file goes if nothing else is said: LOCALLLM_HOME/optimized/<name>-<TYPE>.gguf."""
        return optimized_folder() / f"{_stem(self.source)}-{self.type}.gguf"


def plan_optimize(path: str | os.PathLike[str], rates: Rates, *, type: str | None = None) -> OptimizePlan:
    """What a version of a model for this machine would be; writes nothing.

    Args:
        path: the model's only or first file.
        rates: Rates of the machine (`localllm.machine.rates`).
        type: str, the mixture to write, e.g. "Q4_0", whether that gains something or not; None: the best of about that quality.

    Raises:
        InvalidRequestError: `type` is no mixture.
        UnsupportedModelError: The file is no model, or the mixture needs an importance matrix.
        NoGainError: No mixture of about the same quality is faster, or the model has this type already.
        ModelError, HubError: The file, or one of its set, is missing, damaged or unknown to llama.cpp.
    """
    source = Path(path)
    header = read_model(source)
    if header.kind != "model":
        raise UnsupportedModelError(f"{source}: this file is {_NO_MODEL[header.kind]}; only models are written in other types")
    wanted = _checked_type(type) if type is not None else None
    mixtures = _mixtures(source)
    results = {name: _with_types(header, types) for name, types in mixtures.items() if wanted in (None, name)}
    before = expected(header, rates, n_tokens=_PROMPT_TOKENS)
    speeds = {name: expected(result, rates, n_tokens=_PROMPT_TOKENS) for name, result in results.items()}
    chosen, reason = (wanted, f"{wanted} was asked for.") if wanted else _best(header, results, before, speeds)
    result = results[chosen]
    if result.tensors == header.tensors:
        raise NoGainError(f"{source}: its tensors have the types of {chosen} already; there is nothing to write")
    return OptimizePlan(
        source=source,
        type=chosen,
        header=header,
        result=result,
        before=before,
        after=speeds[chosen],
        reason=reason,
        warning=_warning(header, result, chosen),
        n_threads=rates.n_threads,
    )


def mixture_names() -> list[str]:
    """The mixtures of tensor types that need no importance matrix.

    Raises:
        NativeLibraryError: The native libraries cannot be used.
    """
    from localllm.native.library import load

    names: list[str] = load().json_call("lm_quantize_types")
    return names


def _checked_type(name: str) -> str:
    upper = name.strip().upper() if isinstance(name, str) else ""
    if upper in _NEEDS_IMATRIX:
        raise UnsupportedModelError(
            f"{upper} needs an importance matrix, made from many texts; fetch a model that its publisher has written in it"
        )
    known = mixture_names()
    if upper not in known:
        raise InvalidRequestError(f"type: {name!r} is none of {', '.join(known)}")
    return upper


def _mixtures(source: Path) -> dict[str, dict[str, str]]:
    from localllm.native import logs
    from localllm.native.library import load

    native = load()
    try:
        found: dict[str, dict[str, str]] = native.json_call("lm_quantize_plan", os.fsencode(source), prefix=str(source))
        return found
    finally:
        logs.forward(native)


def _with_types(header: Header, types: dict[str, str]) -> Header:
    tensors = tuple(_with_type(tensor, types[tensor.name]) for tensor in header.tensors)
    n_bytes = sum(-(-tensor.n_bytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)
    return dataclasses.replace(header, tensors=tensors, file_bytes=header.data_offset_bytes + n_bytes, n_files=1)


def _with_type(tensor: TensorInfo, type_name: str) -> TensorInfo:
    if type_name == tensor.type:
        return tensor
    values, n_bytes = _BLOCKS[type_name]
    return dataclasses.replace(tensor, type=type_name, n_bytes=tensor.n_elements // values * n_bytes)


def _best(header: Header, results: dict[str, Header], before: Speed, speeds: dict[str, Speed]) -> tuple[str, str]:
    """The mixture that takes the least time, of those of about the same quality, and why."""
    bits = header.bits_per_weight
    if bits >= _UNQUANTISED_BITS:
        near = [_NEARLY_LOSSLESS]
    else:
        least_bits = _LEAST_BITS * _bits(header.quantization)
        near = [
            name
            for name, one in results.items()
            if _LEAST_BITS <= one.bits_per_weight / bits <= _MOST_BITS and _bits(main_type(name)) >= least_bits
        ]
    seconds = {name: speeds[name].seconds(_PROMPT_TOKENS, _ANSWER_TOKENS) for name in near}
    now = before.seconds(_PROMPT_TOKENS, _ANSWER_TOKENS)
    least = min(seconds.values(), default=now)
    if now < _LEAST_GAIN * least:
        raise NoGainError(
            f"{header.path}: on this machine no type of about {bits:.1f} bits per weight is expected to be "
            f"{_LEAST_GAIN - 1:.0%} faster than {header.quantization}; name a type to write it all the same"
        )
    fast = [name for name in near if seconds[name] <= _ABOUT_EQUAL * least]
    chosen = max(fast, key=lambda name: (results[name].bits_per_weight, -seconds[name]))
    reason = f"Of the types with about as many bits as {header.quantization}, {chosen} is expected to be the fastest on this CPU."
    if bits >= _UNQUANTISED_BITS:
        reason = f"{chosen} takes half the memory of {header.quantization}, and what it loses is hardly noticed."
    return chosen, reason


def _bits(type_name: str) -> float:
    values, n_bytes = _BLOCKS[type_name]
    return 8 * n_bytes / values


def _warning(header: Header, result: Header, chosen: str) -> str:
    changed: Counter[str] = Counter()
    for old, new in zip(header.tensors, result.tensors, strict=True):
        if old.type != new.type and old.type not in _UNQUANTISED:
            changed[old.type] += old.n_bytes
    if not changed:
        return ""
    names = ", ".join(name for name, _ in changed.most_common(3))
    share = sum(changed.values()) / header.n_tensor_bytes
    return (
        f"{share:.0%} of the weights are quantized already ({names}) and will be rounded a second time: answers get somewhat "
        f"worse than from {chosen} made of the original. If the publisher offers {chosen}, fetch that instead."
    )


def _stem(source: Path) -> str:
    """The name of the model, without its quantization and the number of a shard, as far as that leaves anything."""
    return parse_name(source.name).base or source.stem
