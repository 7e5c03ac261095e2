"""What the header of a GGUF file says: metadata and tensor table, no weights, and the facts that follow from them."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.errors import IncompleteSetError, ModelFileError, ModelNotFoundError
from localllm.hub.gguf_parse import KEPT_NUMBERS, TEMPLATE, TENSOR_TYPES, LongArray, ReadRange, TensorInfo, parse
from localllm.hub.names import parse_name

__all__ = ["TENSOR_TYPES", "Header", "LongArray", "TensorInfo", "merge_shards", "parse_header", "read_header", "read_model"]

# Architectures that predict for another model and cannot stand alone, and of which kind they are. From the pinned source:
# each needs the context of its target (llama-context.cpp), lilicorr-head is ours.
_DRAFTS = {"eagle3": "eagle3", "dflash": "dflash", "gemma4-assistant": "mtp", "lilicorr-head": "lilicorr"}
# Architectures whose tokens are, or become, sound: family of speech. From src/models and tools/mtmd of the pinned source.
_SPEECH = {"pockettts": "pockettts", "qwen3tts": "qwen3tts", "wavtokenizer-dec": "wavtokenizer"}
_GENERATORS = {"pockettts_gen": "pockettts", "qwen3tts_gen": "qwen3tts", "soprano": "soprano"}


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of one GGUF file, or of the files of a set together.

    Attributes:
        path: str, the file, or the first one of the set, as errors name it.
        version: int, of the format.
        metadata: what the file says of itself. Arrays that are too long to be facts are LongArrays.
        tensors: TensorInfos in the file's order.
        data_offset_bytes: int, where the tensor data begin.
        file_bytes: int, size of the file, or of all files.
        tokens_hash: str, the same for two models whose vocabularies have the same texts; padding at the end does not count.
        n_files: int, files that the tensors are from.
    """

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset_bytes: int
    file_bytes: int
    tokens_hash: str = field(default="", repr=False)
    n_files: int = 1

    def get(self, suffix: str) -> Any:
        """A value of the architecture's own keys, e.g. `get("context_length")` for `llama.context_length`; None if missing."""
        return self.metadata.get(f"{self.architecture}.{suffix}")

    @property
    def architecture(self) -> str:
        return _text(self.metadata.get("general.architecture"))

    @property
    def name(self) -> str:
        return _text(self.metadata.get("general.name"))

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for; 0 if the file does not say."""
        return _count(self.get("context_length"))

    @property
    def embedding_length(self) -> int:
        return _count(self.get("embedding_length"))

    @property
    def block_count(self) -> int:
        return _count(self.get("block_count"))

    @property
    def vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, LongArray):
            return tokens.length
        return len(tokens) if isinstance(tokens, tuple) else 0

    @property
    def chat_template(self) -> str:
        """Jinja text; "" if there is none."""
        return _text(self.metadata.get("tokenizer.chat_template"))

    @property
    def chat_templates(self) -> dict[str, str]:
        """All templates of the file by name; the usual one is "default", others are for tool use or retrieval, say."""
        found = {key[len(TEMPLATE) + 1 :]: value for key, value in self.metadata.items() if key.startswith(TEMPLATE + ".")}
        return {"default": self.chat_template, **found} if self.chat_template else found

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the special tokens that the file names, e.g. {"bos": 1, "eos": 2}."""
        prefix, suffix = "tokenizer.ggml.", "_token_id"
        return {
            key[len(prefix) : -len(suffix)]: value
            for key, value in self.metadata.items()
            if key.startswith(prefix) and key.endswith(suffix) and isinstance(value, int)
        }

    @functools.cached_property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @functools.cached_property
    def n_tensor_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_tensor_bytes / self.n_parameters if self.n_parameters else 0.0

    @functools.cached_property
    def quantization(self) -> str:
        """The tensor type that holds most of the bytes, e.g. "Q4_K"."""
        return next(iter(self.tensor_types), "")

    @functools.cached_property
    def tensor_types(self) -> dict[str, int]:
        """Bytes by tensor type, the largest share first. The name of a file says less, and may be wrong."""
        by_type: Counter[str] = Counter()
        for tensor in self.tensors:
            by_type[tensor.type] += tensor.n_bytes
        return dict(by_type.most_common())

    @property
    def n_layer_nextn(self) -> int:
        """Layers that predict further tokens (multi-token prediction); they come last and are no part of the trunk."""
        return min(_count(self.get("nextn_predict_layers")), self.block_count)

    @functools.cached_property
    def has_mtp(self) -> bool:
        """Whether the file holds layers that predict further tokens, and those that they stand on."""
        return self.kind == "model" and self.n_layer_nextn > 0 and any(".nextn." in tensor.name for tensor in self.tensors)

    @functools.cached_property
    def modalities(self) -> frozenset[str]:
        """What a projector turns into embeddings ("image", "audio") or makes of them ("speech"); empty for other files."""
        if self.kind != "projector":
            return frozenset()
        keys = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder", "speech": "clip.has_gen_audio_encoder"}
        found = {what for what, key in keys.items() if self.metadata.get(key) is True}
        # Files from before these keys existed are for images.
        return frozenset(found or {"image"})

    @property
    def projection_length(self) -> int:
        """Values in an embedding that a projector gives, which must be the model's `embedding_length`; 0 if it does not say."""
        for part in ("vision", "audio", "gen.audio"):
            if length := _count(self.metadata.get(f"clip.{part}.projection_dim")):
                return length
        return 0

    @property
    def speech(self) -> str:
        """The family of speech models that the file belongs to, e.g. "qwen3tts" for its model and its projector; "" for none."""
        if self.architecture == "clip":
            return _GENERATORS.get(_text(self.metadata.get("clip.gen.audio.projector_type")), "")
        if _text(self.metadata.get("tokenizer.ggml.pre")) == "soprano":
            return "soprano"
        return _SPEECH.get(self.architecture, "")

    @functools.cached_property
    def draft_kind(self) -> str:
        """How a draft predicts: "eagle3", "dflash", "dspark", "lilicorr" or "mtp"; "" for files that are no drafts."""
        if self.kind != "draft":
            return ""
        names = {tensor.name for tensor in self.tensors}
        if self.architecture == "dflash" and any(name.startswith("lilicorr.") for name in (*names, *self.metadata)):
            return "lilicorr"
        if self.architecture == "dflash" and "markov_w1.weight" in names:
            return "dspark"
        return _DRAFTS.get(self.architecture, "mtp")

    @functools.cached_property
    def kind(self) -> str:
        """What the file is for.

        "model", "vocabulary" (no tensors), "projector", "adapter", "control vector", "draft" or "other".
        """
        file_type = _text(self.metadata.get("general.type"))
        if self.architecture == "clip" or file_type == "mmproj":
            return "projector"
        if file_type == "adapter":
            return "adapter"
        if self.architecture == "controlvector":
            return "control vector"
        if self.architecture in _DRAFTS:
            return "draft"
        if not self.architecture or file_type not in ("", "model"):
            return "other"
        split = _count(self.metadata.get("split.count")) > self.n_files
        if not self.tensors:
            return "model" if split else "vocabulary"
        has_trunk = any(tensor.name.startswith("blk.0.") for tensor in self.tensors)
        if not split and not has_trunk and _count(self.get("nextn_predict_layers")) > 0:
            return "draft"
        return "model"


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads and checks the header of a GGUF file.

    Args:
        path: a file.

    Raises:
        ModelNotFoundError: There is no such file.
        ModelFileError: A directory, not readable, empty, not a GGUF, damaged, or shorter than its tensors.
    """
    name = os.fspath(path)
    try:
        if Path(name).is_dir():
            raise ModelFileError(errno.EISDIR, "is a directory; give the GGUF file in it", name)
        if Path(name).exists() and not Path(name).is_file():
            raise ModelFileError(errno.EINVAL, "not a regular file", name)
        with Path(name).open("rb") as file:

            def read(start: int, length: int) -> bytes:
                file.seek(start)
                return file.read(length)

            return parse_header(read, os.fstat(file.fileno()).st_size, name)
    except FileNotFoundError as error:
        raise ModelNotFoundError(errno.ENOENT, "no such file", name) from error
    except ModelFileError:
        raise
    except PermissionError as error:
        raise ModelFileError(error.errno, "no permission to read it", name) from error
    except OSError as error:
        raise ModelFileError(error.errno, error.strerror or "cannot be read", name) from error


def parse_header(read: ReadRange, total_bytes: int, name: str) -> Header:
    """Reads and checks a header from anywhere, e.g. from a server that answers ranges.

    Reads from the start, the first 256 KiB, then up to 1, 4, 16 MiB and so on, until the header ends; never more than 64 MiB.

    Args:
        read: called with start and length in bytes, gives exactly those; what it raises is passed on.
        total_bytes: int, size of the whole file.
        name: str, what errors call the file, and the header's path.

    Raises:
        ModelFileError: Empty, not a GGUF, damaged, or shorter than its tensors.
    """
    found = parse(read, total_bytes, name)
    return Header(name, found.version, found.metadata, found.tensors, found.data_offset_bytes, total_bytes, found.tokens_hash)


def read_model(path: str | os.PathLike[str]) -> Header:
    """Reads the header of a model that may lie in several files, side by side, and checks that they belong together.

    Args:
        path: the file, or the first file of the set.

    Returns:
        Header with the metadata of the first file and the tensors of all.

    Raises:
        IncompleteSetError: A file of the set is missing, or is not a part of it; or `path` is not the first.
        ModelNotFoundError, ModelFileError: As for `read_header`.
    """
    first = read_header(path)
    count = _count(first.metadata.get("split.count"))
    if count < 2:
        return first
    given = Path(path)
    shard = parse_name(given.name).shard
    if shard is None or shard != (1, count):
        raise IncompleteSetError(f"{path}: one of {count} files, but not named as the first, ...-00001-of-{count:05d}.gguf")
    head = given.name[: -len("-00001-of-00001.gguf")]
    others = [given.with_name(f"{head}-{number:05d}-of-{count:05d}{given.suffix}") for number in range(2, count + 1)]
    missing = [other.name for other in others if not other.is_file()]
    if missing:
        raise IncompleteSetError(f"{path}: {len(missing)} of its {count} files are missing: {', '.join(missing[:4])}")
    return merge_shards([first, *(read_header(other) for other in others)])


def merge_shards(headers: Sequence[Header]) -> Header:
    """The header of a set: metadata of the first file, tensors and bytes of all.

    Args:
        headers: of every file of the set, in order.

    Raises:
        IncompleteSetError: They are not all, not in order, or not of one set.
    """
    first = headers[0]
    for number, header in enumerate(headers):
        said = (header.metadata.get("split.no", 0), header.metadata.get("split.count", 1))
        if said != (number, len(headers)) and len(headers) > 1:
            raise IncompleteSetError(
                f"{header.path}: says it is file {said[0]} of {said[1]}, taken as {number} of {len(headers)}"
            )
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if len({tensor.name for tensor in tensors}) != len(tensors) or len(tensors) != expected:
        raise IncompleteSetError(
            f"{first.path}: its {len(headers)} files hold {len(tensors)} tensors, not the {expected} of the set"
        )
    n_bytes = sum(header.file_bytes for header in headers)
    return dataclasses.replace(first, tensors=tensors, file_bytes=n_bytes, n_files=len(headers))


def per_layer(header: Header, suffix: str, default: Any, n_layers: int) -> tuple[Any, ...]:
    """A value of the architecture that may be one for all layers, or one for each.

    Args:
        header: Header.
        suffix: str, the key without the architecture.
        default: for layers that the file says nothing about.
        n_layers: int, entries to give.
    """
    value = header.get(suffix)
    if isinstance(value, tuple) and len(value) <= KEPT_NUMBERS:
        return (*value[:n_layers], *[default] * (n_layers - len(value)))
    if isinstance(value, (bool, int, float)):
        return (value,) * n_layers
    return (default,) * n_layers


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
