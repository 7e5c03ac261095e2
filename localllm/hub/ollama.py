"""Models in Ollama's store, read only.

The store is a folder with `manifests/<host>/<namespace>/<model>/<tag>`, JSON files that list layers, and `blobs/sha256-<hex>`,
the layers' content; what a layer is for says its media type. Manifests are data: of their content only digests, sizes and a fixed
list of parameters are used, and no path is made of anything else.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.errors import CorruptFileError, ModelNotFoundError
from localllm.hub.environment import expanded
from localllm.hub.plain_json import parsed

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_MANIFEST_BYTES = 1 << 20
_MAX_TEXT_BYTES = 1 << 22
_MAX_LAYERS = 256
_MEDIA = "application/vnd.ollama.image."
_SERVICE_FOLDER = Path("/usr/share/ollama/.ollama/models")  # where Ollama's installer for Linux lets its service live

# Parameters of a Modelfile that mean something here: name -> types.
_PARAMETERS: dict[str, tuple[type, ...]] = {
    "temperature": (int, float), "top_k": (int,), "top_p": (int, float), "min_p": (int, float), "typical_p": (int, float),
    "repeat_penalty": (int, float), "repeat_last_n": (int,), "presence_penalty": (int, float), "frequency_penalty": (int, float),
    "mirostat": (int,), "mirostat_tau": (int, float), "mirostat_eta": (int, float), "seed": (int,), "num_ctx": (int,),
    "num_predict": (int,), "num_keep": (int,), "stop": (list, str),
}  # fmt: skip


@dataclass(frozen=True)
class OllamaModel:
    """One model of the store.

    Attributes:
        name: str, as Ollama shows it, with its tag.
        model: Path of the GGUF file; its name has no suffix.
        projectors, adapters: Paths of GGUF files.
        template: str, in Go's template language, which is not Jinja; "" for none.
        system: str, the system message; "" for none.
        parameters: the parameters that are known here, with their values.
        ignored: media types of layers and names of parameters that are not used.
        n_bytes: int, of all GGUF files.
    """

    name: str
    model: Path
    projectors: tuple[Path, ...] = ()
    adapters: tuple[Path, ...] = ()
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    n_bytes: int = 0


def store_folder() -> Path:
    """Where Ollama keeps its models: OLLAMA_MODELS, else the user's own folder, else the service's."""
    if given := os.environ.get("OLLAMA_MODELS"):
        return expanded(given, "OLLAMA_MODELS")
    own = Path("~/.ollama/models")
    with contextlib.suppress(RuntimeError):  # a user without a home
        own = own.expanduser()
    return own if own.is_dir() or not _SERVICE_FOLDER.is_dir() else _SERVICE_FOLDER


def find(name: str, tag: str = "", folder: Path | None = None) -> OllamaModel:
    """Looks a model up.

    Args:
        name: str, "model", "namespace/model" or "host/namespace/model".
        tag: str, "" for "latest".
        folder: Path of the store, None: `store_folder()`.

    Raises:
        ModelNotFoundError: There is no such model, or it has no GGUF file; the message says what there is.
        CorruptFileError: Its manifest is damaged, or a layer is missing or has another size.
    """
    folder = folder or store_folder()
    shown = f"{name}:{tag or _TAG}"
    path = _manifest_path(folder, name, tag)
    if path is None:
        raise ModelNotFoundError(errno.ENOENT, _advice(folder, shown), f"ollama:{shown}")
    return _read(folder, path, shown)


def names(folder: Path | None = None) -> tuple[str, ...]:
    """The names of all models of the store, in order; () if there is no store."""
    manifests = (folder or store_folder()) / "manifests"
    found = []
    for path in manifests.glob("*/*/*/*"):
        parts = path.relative_to(manifests).parts
        if path.is_file() and all(_PART.fullmatch(part) for part in parts):
            found.append(_shown(*parts))
    return tuple(sorted(found))


def _shown(host: str, namespace: str, model: str, tag: str) -> str:
    if host != _HOST:
        return f"{host}/{namespace}/{model}:{tag}"
    return f"{model}:{tag}" if namespace == _NAMESPACE else f"{namespace}/{model}:{tag}"


def _manifest_path(folder: Path, name: str, tag: str) -> Path | None:
    parts = name.split("/")
    wanted = [*[_HOST, _NAMESPACE][: max(0, 3 - len(parts))], *parts, tag or _TAG]
    if len(wanted) != 4 or not all(_PART.fullmatch(part) for part in wanted):
        return None
    path = folder / "manifests"
    for part in wanted:
        exact = path / part
        if exact.exists():
            path = exact
            continue
        # Ollama's names are blind to case, its folders are spelled as the model was first pulled.
        near = [child for child in _children(path) if child.name.lower() == part.lower()]
        if not near:
            return None
        path = near[0]
    return path if path.is_file() else None


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(folder: Path, manifest: Path, shown: str) -> OllamaModel:
    layers = _layers(manifest)
    files: dict[str, list[Path]] = {"model": [], "projector": [], "adapter": []}
    texts: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    ignored: list[str] = []
    n_bytes = 0
    for media, digest, size in layers:
        kind = media.removeprefix(_MEDIA)
        if kind in files:
            files[kind].append(_blob(folder, digest, size, manifest))
            n_bytes += size
        elif kind in ("template", "system"):
            texts[kind] = _text(_blob(folder, digest, size, manifest), manifest)
        elif kind == "params":
            parameters, unknown = _parameters(_text(_blob(folder, digest, size, manifest), manifest), manifest)
            ignored += unknown
        else:
            ignored.append(media)
    if len(files["model"]) != 1:
        what = "no GGUF file" if not files["model"] else f"{len(files['model'])} GGUF files, which llama.cpp cannot load as one"
        raise ModelNotFoundError(errno.ENOENT, f"Ollama's {shown} has {what}", f"ollama:{shown}")
    return OllamaModel(
        shown, files["model"][0], tuple(files["projector"]), tuple(files["adapter"]), texts.get("template", ""),
        texts.get("system", ""), parameters, tuple(ignored), n_bytes,
    )  # fmt: skip


def _layers(manifest: Path) -> list[tuple[str, str, int]]:
    """(media type, hex digest, bytes) of each layer."""
    data = _json(_bounded(manifest, _MAX_MANIFEST_BYTES, manifest), manifest)
    layers = data.get("layers") if isinstance(data, dict) else None
    if not isinstance(layers, list) or len(layers) > _MAX_LAYERS:
        raise _damaged(manifest, "it lists no layers")
    found = []
    for layer in layers:
        media, digest, size = (
            (layer.get(key) for key in ("mediaType", "digest", "size")) if isinstance(layer, dict) else (None,) * 3
        )
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if not isinstance(media, str) or match is None or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _damaged(manifest, f"a layer of it is {str(layer)[:80]!r}")
        found.append((media, match[1], size))
    return found


def _blob(folder: Path, digest: str, size: int, manifest: Path) -> Path:
    path = folder / "blobs" / f"sha256-{digest}"
    try:
        have = path.stat().st_size
    except OSError as error:
        raise _damaged(manifest, f"its layer {path.name[:19]}... is not there") from error
    if have != size:
        raise _damaged(manifest, f"its layer {path.name[:19]}... has {have:,} bytes instead of {size:,}")
    return path


def _text(path: Path, manifest: Path) -> str:
    return _bounded(path, _MAX_TEXT_BYTES, manifest).decode("utf-8", errors="replace")


def _parameters(text: str, manifest: Path) -> tuple[dict[str, Any], list[str]]:
    data = _json(text.encode(), manifest)
    if not isinstance(data, dict):
        raise _damaged(manifest, "its parameters are no table")
    known: dict[str, Any] = {}
    ignored = []
    for key, value in data.items():
        types = _PARAMETERS.get(key, ())
        sound = isinstance(value, types) and not isinstance(value, bool)
        if isinstance(value, list):
            sound = sound and all(isinstance(one, str) for one in value)
        if sound:
            known[key] = tuple(value) if isinstance(value, list) else (value,) if key == "stop" else value
        else:
            ignored.append(f"parameter {key}")
    return known, ignored


def _bounded(path: Path, limit: int, manifest: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _damaged(manifest, error.strerror or "it cannot be read") from error
    if len(data) > limit:
        raise _damaged(manifest, f"{path.name[:19]} is longer than {limit:,} bytes")
    return data


def _json(data: bytes, manifest: Path) -> Any:
    try:
        return parsed(data)
    except ValueError as error:
        raise _damaged(manifest, "it is no JSON") from error


def _damaged(manifest: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(errno.EINVAL, f"damaged: {reason}; pull the model again with Ollama", str(manifest))


def _advice(folder: Path, shown: str) -> str:
    there = names(folder)
    if not there:
        return f"there is no model in Ollama's store ({folder}; OLLAMA_MODELS names another place)"
    near = difflib.get_close_matches(shown, there, n=1, cutoff=0.5)
    return f"no such model in Ollama's store; {f'did you mean {near[0]!r}? ' if near else ''}there is {', '.join(there[:12])}"
