"""A LiLiCorr draft from a checkpoint of the Hub as GGUF: in one file, or draft and head each in its own.

The keys and names are those of llama.cpp versions that know LiLiCorr (a head's tensors stand behind the draft's, as further
blocks), so one file also serves those. Matrices keep the type that the checkpoint has, or get another; all else is F32.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from localllm.convert.checkpoint import CONFIG, Checkpoint, Floats, damaged, open_checkpoint
from localllm.convert.gguf_file import NewFile, NewTensor, add_tokenizer, write_file
from localllm.convert.lilicorr_config import LilicorrConfig, lilicorr_config
from localllm.convert.lilicorr_names import SPECIAL, draft_names, draft_shapes, head_names, head_shapes
from localllm.errors import InvalidRequestError, LocalLLMError, ModelFileError, UnsupportedModelError
from localllm.files import publish, require_new
from localllm.hub.gguf import Header, read_model
from localllm.hub.unfinished import CONVERTING, unfinished
from localllm.packages import require_packages

if TYPE_CHECKING:
    from gguf import GGUFWriter

MatrixType = Literal["F32", "F16", "BF16"]
Progress = Callable[[int, int], None]

_FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32}  # llama_ftype
_OF_DTYPE: Mapping[str, MatrixType] = {"F64": "F32", "F32": "F32", "F16": "F16", "BF16": "BF16"}
_MASK = "tokenizer.ggml.mask_token_id"
_OWN_EMBEDDINGS = ("lm_head.weight", "embed_tokens.weight")


@dataclass(frozen=True)
class _Draft:
    """What is converted: a checkpoint whose tensors are all there, and the target that it drafts for."""

    checkpoint: Checkpoint
    config: LilicorrConfig
    target: Header
    type: MatrixType


def convert_lilicorr(
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    head: str | os.PathLike[str] | None = None,
    type: MatrixType | None = None,
    progress: Progress | None = None,
) -> Path:
    """Converts a checkpoint. An interruption or a failure leaves nothing behind.

    Args:
        checkpoint: folder with config.json and model.safetensors, of the architecture LiLiCorrDraftModel.
        target: GGUF file of the model that it drafts for, or the first one of its set: the tokenizer comes from there.
        output: the file to write, which must not exist: the draft with its head, or, if `head` is given, the draft alone, which
            any llama.cpp loads as DFlash.
        head: another file to write, for the head alone.
        type: of the matrices; None: as the checkpoint has most of them.
        progress: is told how many bytes of a file are written, and of how many.

    Returns:
        Path of `output`.

    Raises:
        MissingPackageError: The packages of the extra `convert` are not all installed.
        InvalidRequestError: There is something at `output` or `head` already, or the target is not the draft's.
        UnsupportedModelError: The checkpoint is of another kind, or has a part that is not known here.
        ModelFileError: A file is missing, damaged, or cannot be written; the message names it, and the key or tensor at fault.
    """
    if type is not None and type not in _FILE_TYPES:
        raise InvalidRequestError(f"type: must be one of {', '.join(_FILE_TYPES)}, not {type!r}")
    require_packages("convert: a conversion needs", "gguf", "safetensors", "ml_dtypes")
    paths = [Path(path) for path in (output, head) if path is not None]
    if len(set(paths)) < len(paths):
        raise InvalidRequestError(f"head: {head} is the file of the draft; name another one")
    for path in paths:
        require_new(path)
    try:
        draft = _open(Path(checkpoint), Path(target), type)
        made = [_whole(draft)] if head is None else [_draft_alone(draft), _head_alone(draft)]
        _write(dict(zip(paths, made, strict=True)), progress)
    except LocalLLMError:
        raise
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or str(error), error.filename or str(output)) from error
    return Path(output)


def _write(files: Mapping[Path, NewFile], progress: Progress | None) -> None:
    with ExitStack() as stack:
        written = {}
        for path, file in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            written[path] = stack.enter_context(unfinished(path.parent, CONVERTING))
            write_file(file, written[path], progress)
        for path, temporary in written.items():
            publish(temporary, path)


# ---- what is there --------------------------------------------------------------------------------------------------------


def _open(folder: Path, target: Path, type: MatrixType | None) -> _Draft:
    checkpoint = open_checkpoint(folder)
    config = lilicorr_config(checkpoint.config, folder / CONFIG)
    header = read_model(target)
    _require_fit(config, header)
    names = {**draft_names(config), **head_names(config)}
    own = {name for name in _OWN_EMBEDDINGS if name in checkpoint.tensors}
    for name in sorted(set(checkpoint.tensors) - set(names.values()) - set(SPECIAL) - own):
        raise UnsupportedModelError(f"{checkpoint.tensors[name].path}: {name} is not known for a LiLiCorr draft")
    shapes = {**draft_shapes(config), **head_shapes(config)}
    for name in own:
        shapes[name] = (header.vocab_size, config.width)
    for name in sorted({*names.values(), *SPECIAL, *own}):
        _require(checkpoint, name, shapes[name])
    matrices = [tensor.dtype for name, tensor in checkpoint.tensors.items() if _is_matrix(name, shapes[name])]
    most = max(set(matrices), key=matrices.count)
    return _Draft(checkpoint, config, header, type or _OF_DTYPE.get(most, "F32"))


def _require(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise damaged(checkpoint.folder, f"{name} is missing")
    # Some exports keep dimensions of one, some do not.
    if [n for n in tensor.shape if n != 1] != [n for n in shape if n != 1]:
        raise damaged(tensor.path, f"{name} is {list(tensor.shape)}, by {CONFIG} it is {list(shape)}")


def _require_fit(config: LilicorrConfig, target: Header) -> None:
    def require(condition: bool, what: str) -> None:
        if not condition:
            raise InvalidRequestError(f"target: {target.path} is not what this draft is for: {what}")

    require(target.kind == "model", f"it is a {target.kind}")
    width, n_layers, n_vocab = target.embedding_length, target.block_count, target.vocab_size
    require(width == config.width, f"its rows have {width:,} values, the draft's {config.width:,}")
    require(max(config.target_layers) < n_layers, f"it has {n_layers} layers, the draft reads {list(config.target_layers)}")
    require(config.mask_token < n_vocab, f"it has {n_vocab:,} tokens, the draft's mask is {config.mask_token}")


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Products with these; the rest is added, or multiplies value by value."""
    return len(shape) == 2 and name not in SPECIAL and "embedding" not in name


# ---- what is written ------------------------------------------------------------------------------------------------------


def _whole(draft: _Draft) -> NewFile:
    writer = _draft_writer(draft)
    _add_head_keys(writer, draft.config)
    return NewFile(writer, [*_tensors(draft, draft_names(draft.config)), *_head_tensors(draft)])


def _draft_alone(draft: _Draft) -> NewFile:
    """llama.cpp reads convolutions only beside the selector of a DFlash2 draft; one of zeros changes nothing."""
    writer, tensors = _draft_writer(draft), list(_tensors(draft, draft_names(draft.config)))
    if draft.config.conv_taps:
        writer.add_uint32("dflash.selector_rank", 1)
        writer.add_uint32("dflash.selector_top_k", 1)
        n_vocab, width = draft.target.vocab_size, draft.config.width
        shapes = {"predecessor": (n_vocab, 1), "successor": (n_vocab, 1), "hidden": (1, width)}
        tensors += [_array(f"selector_{name}.weight", np.zeros(shape, np.float32)) for name, shape in shapes.items()]
    return NewFile(writer, tensors)


def _head_alone(draft: _Draft) -> NewFile:
    config = draft.config
    writer = _writer("lilicorr-head", draft)
    counts = {"block_size": config.block, "embedding_length": config.width, "block_count": config.n_layers}
    for name, value in counts.items():
        writer.add_uint32(f"dflash.{name}", value)
    writer.add_float32("dflash.attention.layer_norm_rms_epsilon", config.rms_eps)
    _add_head_keys(writer, config)
    return NewFile(writer, list(_head_tensors(draft)))


def _writer(architecture: str, draft: _Draft) -> GGUFWriter:
    from gguf import GGUFWriter

    writer = GGUFWriter(None, architecture)
    writer.add_name(os.fsencode(draft.checkpoint.folder.name).decode(errors="replace"))
    return writer


def _draft_writer(draft: _Draft) -> GGUFWriter:
    config = draft.config
    counts = {
        "context_length": config.n_context, "embedding_length": config.width, "block_count": config.n_layers,
        "feed_forward_length": config.n_ff, "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads, "attention.key_length": config.head_width,
        "attention.value_length": config.head_width, "block_size": config.block,
    }  # fmt: skip
    if config.conv_taps:
        counts.update(conv_kernel_size=config.conv_taps, conv_group_size=config.conv_group)
    writer = _writer("dflash", draft)
    writer.add_file_type(_FILE_TYPES[draft.type])
    for name, value in counts.items():
        writer.add_uint32(f"dflash.{name}", value)
    writer.add_float32("dflash.attention.layer_norm_rms_epsilon", config.rms_eps)
    writer.add_float32("dflash.rope.freq_base", config.rope_theta)
    # There the layer is named whose input is taken.
    writer.add_array("dflash.target_layers", [layer + 1 for layer in config.target_layers])
    writer.add_bool("dflash.attention.causal", False)
    add_tokenizer(writer, draft.target, but=[_MASK])
    writer.add_uint32(_MASK, config.mask_token)
    return writer


def _add_head_keys(writer: GGUFWriter, config: LilicorrConfig) -> None:
    counts = {
        "hidden_size": config.hidden, "candidate_topk": config.n_candidates, "num_heads": config.n_lattice_heads,
        "num_layers": config.n_lattice_layers, "factor_dim": config.n_factors, "mlp_hidden_size": config.n_mlp,
    }  # fmt: skip
    for name, value in counts.items():
        writer.add_uint32(f"lilicorr.{name}", value)
    writer.add_float32("lilicorr.vector_eps", config.vector_eps)
    writer.add_float32("lilicorr.logit_scale", config.logit_scale)


def _head_tensors(draft: _Draft) -> Iterator[NewTensor]:
    yield from _tensors(draft, head_names(draft.config))
    relative, same = (draft.checkpoint.tensors[name].read() for name in SPECIAL)
    yield _array("lilicorr.attention_bias.bias", attention_bias(relative, same.reshape(-1), draft.config))


def attention_bias(relative: Floats, same: Floats, config: LilicorrConfig) -> Floats:
    """The bias of each pair of nodes, [heads, queries, keys], from tables by distance of their slots, [heads, 2 blocks - 1], and
    for nodes of one slot, [heads]."""
    slots = np.repeat(np.arange(config.n_slots), config.n_candidates)
    away = slots[:, None] - slots[None, :]
    dense: Floats = relative[:, away + config.block - 1] + same[:, None, None] * (away == 0)
    return dense.astype(np.float32)


def _tensors(draft: _Draft, names: Mapping[str, str]) -> Iterator[NewTensor]:
    config, stored = draft.config, draft.checkpoint.tensors
    shapes = {**draft_shapes(config), **head_shapes(config)}
    for theirs, name in names.items():
        shape = shapes[name]
        yield NewTensor(theirs, shape, draft.type if _is_matrix(name, shape) else "F32", stored[name].read)
    if "fc.weight" in names:
        for theirs, name in (("output.weight", "lm_head.weight"), ("token_embd.weight", "embed_tokens.weight")):
            if name in stored:
                yield NewTensor(theirs, (draft.target.vocab_size, config.width), draft.type, stored[name].read)


def _array(name: str, values: Floats) -> NewTensor:
    return NewTensor(name, values.shape, "F32", lambda: values)
