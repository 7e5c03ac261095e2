"""A version of a model that is faster on this machine: what it would be, and writing it.

llama.cpp repacks only some tensor types for the CPU at hand, so a model of the same size can be much faster in another.
The file that is written says in its metadata what it came from: localllm.parent.name, .sha256 (of the file, or of all files of a
set one after the other) and .types.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import localllm
from localllm.errors import DiskSpaceError, InvalidRequestError, LocalLLMError, ModelFileError, NoGainError, UnsupportedModelError
from localllm.hub.catalog import Aliases
from localllm.hub.choose import main_type
from localllm.hub.gguf import Header, read_header, read_model
from localllm.hub.gguf_parse import TENSOR_TYPES, TensorInfo
from localllm.hub.inventory import PARENT, optimized_folder
from localllm.hub.names import parse_name
from localllm.hub.speed import Rates, Speed, expected

#: Is told how many bytes are written, and of how many.
OptimizeProgress = Callable[[int, int], None]

_BLOCKS = {name: (values, n_bytes) for name, values, n_bytes in TENSOR_TYPES.values()}
_UNQUANTISED = ("F32", "F16", "BF16", "F64")
_ALIGNMENT = 32  # of tensors in files that llama.cpp writes (GGUF_DEFAULT_ALIGNMENT)
_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_POLL_SECONDS = 0.1
_MAX_VALUE_BYTES = 127  # llama_model_kv_override.val_str
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


def register(path: Path) -> str:
    """Gives a written version a name of the user's, by which it is run: its file's name in small letters, without ".gguf".

    Args:
        path: Path, from `optimize`.

    Returns:
        str, the name; "" if that name stands for something else already, which it goes on to do.

    Raises:
        HubError: The file of names is damaged or cannot be written.
    """
    names, name = Aliases(), re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).strip("-._").lower()
    target = str(path.absolute())
    if not name or names.get(name) not in (None, target):
        return ""
    names.set(name, target)
    return name


def optimize(plan: OptimizePlan, output: str | os.PathLike[str] | None = None, progress: OptimizeProgress | None = None) -> Path:
    """Writes what was planned. An interruption, as by Ctrl-C, or a failure leaves nothing behind.

    Args:
        plan: OptimizePlan.
        output: a file that does not exist yet; None: `plan.default_output`.
        progress: called about ten times a second; what it raises ends the writing, and is passed on.

    Returns:
        Path of the file.

    Raises:
        InvalidRequestError: There is something at `output` already.
        DiskSpaceError: It would not fit on the disk.
        ModelFileError: The file cannot be written, or the source has changed since it was planned.
        NativeError: llama.cpp failed.
    """
    target = Path(output) if output is not None else plan.default_output
    require_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _require_room(target, plan.expected_bytes)
        _require_same(plan)
        temporary = target.parent / f".optimizing-{secrets.token_hex(8)}"
        try:
            _write(plan, temporary, progress)
            _verify(plan, temporary)
            _sync(temporary)
            _publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except LocalLLMError:
        raise
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or str(error), str(target)) from error
    return target


def mixture_names() -> list[str]:
    """The mixtures of tensor types that need no importance matrix.

    Raises:
        NativeLibraryError: The native libraries cannot be used.
    """
    from localllm.native.library import load

    names: list[str] = load().json_call("lm_quantize_types")
    return names


# ---- planning


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


# ---- writing


def require_new(target: Path) -> None:
    """Raises InvalidRequestError if there is something at `target`: nothing is ever written over."""
    if os.path.lexists(target):
        raise InvalidRequestError(f"output: {target} exists already; remove it, or name another file")


def _require_room(target: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < n_bytes + _MARGIN_BYTES:
        raise DiskSpaceError(
            f"{target}: {n_bytes:,} bytes are to be written, and {free:,} are free; make room, or name a file on another disk",
            n_bytes,
            free,
        )


def _require_same(plan: OptimizePlan) -> None:
    now = read_model(plan.source)
    if (now.tensors, now.file_bytes) != (plan.header.tensors, plan.header.file_bytes):
        raise ModelFileError(None, "it has changed since it was planned; plan again", str(plan.source))


def _write(plan: OptimizePlan, temporary: Path, progress: OptimizeProgress | None) -> None:
    """Lets llama.cpp write on a thread of its own, so that this one hears of Ctrl-C."""
    from localllm.native import logs
    from localllm.native.library import load

    native = load()
    abort = ctypes.c_int32(0)
    done = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            if metadata := _parent(plan, abort):
                arguments = (os.fsencode(plan.source), os.fsencode(temporary), plan.type.encode(), plan.n_threads)
                native.check(native.lm_quantize(*arguments, json.dumps(metadata).encode(), ctypes.byref(abort)), str(plan.source))
        except Exception as error:  # raised again in the thread that waits
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, name="localllm-optimize", daemon=True)
    thread.start()
    try:
        while not done.wait(_POLL_SECONDS):
            if progress is not None:
                progress(min(_size(temporary), plan.expected_bytes), plan.expected_bytes)
    finally:
        abort.value = 1
        thread.join()
        logs.forward(native)
    if failures:
        raise failures[0]
    if progress is not None:
        progress(plan.expected_bytes, plan.expected_bytes)


def _parent(plan: OptimizePlan, abort: ctypes.c_int32) -> dict[str, str]:
    """What the new file says of its source; empty if it was aborted."""
    digest = hashlib.sha256()
    for file in _files(plan):
        with file.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                if abort.value:
                    return {}
                digest.update(chunk)
    name = plan.source.name.encode(errors="replace")[:_MAX_VALUE_BYTES].decode(errors="ignore")
    return {
        "localllm.version": localllm.__version__,
        PARENT: name,
        "localllm.parent.sha256": digest.hexdigest(),
        "localllm.parent.types": ",".join(plan.header.tensor_types)[:_MAX_VALUE_BYTES],
    }


def _files(plan: OptimizePlan) -> list[Path]:
    count = plan.header.n_files
    if count == 1:
        return [plan.source]
    head = plan.source.name[: -len("-00001-of-00001.gguf")]
    return [plan.source.with_name(f"{head}-{at:05d}-of-{count:05d}{plan.source.suffix}") for at in range(1, count + 1)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _verify(plan: OptimizePlan, temporary: Path) -> None:
    if _described(read_header(temporary)) != _described(plan.result):
        raise ModelFileError(None, "llama.cpp has written other tensors than planned; please report this", str(plan.source))


def _described(header: Header) -> dict[str, tuple[str, int, int]]:
    """The tensors, but for what writing may change: their order, and dimensions of 1 at the end of a shape."""
    return {tensor.name: (tensor.type, tensor.shape[0], tensor.n_elements) for tensor in header.tensors}


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _publish(temporary: Path, target: Path) -> None:
    """Gives the file its name, never in place of another."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        require_new(target)
        raise
    except OSError:  # a file system without hard links
        require_new(target)
        temporary.rename(target)
