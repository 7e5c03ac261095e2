"""What this process has loaded: weights once per file and options, contexts once per use of them.

Nothing here keeps anything alive: engines and embedders hold their model, and whoever uses them holds them.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from localllm.engine.config import ContextConfig, ModelConfig
from localllm.engine.embedder import Embedder
from localllm.engine.engine import Engine
from localllm.engine.params import model_params
from localllm.native.handles import Model
from localllm.native.library import load

_lock = threading.Lock()
_models: weakref.WeakValueDictionary[tuple[object, ...], Model] = weakref.WeakValueDictionary()
_engines: weakref.WeakValueDictionary[tuple[object, ...], Engine] = weakref.WeakValueDictionary()
_embedders: weakref.WeakValueDictionary[tuple[object, ...], Embedder] = weakref.WeakValueDictionary()


def engine(path: Path, config: ModelConfig, context: ContextConfig) -> Engine:
    """The engine for a file as it is now, and these options.

    Raises:
        ModelError: The file cannot be loaded.
        NativeLibraryError: The native libraries cannot be used.
    """
    key = (*_key(path, config), context)
    with _lock:
        found = _engines.get(key)
        if found is None or found.closed:
            found = _engines[key] = Engine(_model(path, config), context=context)
        return found


def embedder(path: Path, config: ModelConfig, context: ContextConfig, *, rank: bool) -> Embedder:
    """The embedder, with `rank` for scores, for a file as it is now, and these options; raises as `engine` does."""
    key = (*_key(path, config), context, rank)
    with _lock:
        found = _embedders.get(key)
        if found is None or found.closed:
            found = _embedders[key] = Embedder(_model(path, config), context=context, rank=rank)
        return found


def _model(path: Path, config: ModelConfig) -> Model:
    key = _key(path, config)
    found = _models.get(key)
    if found is None or found.closed:
        found = _models[key] = Model(str(path), model_params(load(), config))
    return found


def _key(path: Path, config: ModelConfig) -> tuple[object, ...]:
    stat = path.stat()
    # True and 1 are equal, and yet different metadata.
    types = tuple(type(value) for _, value in config.overrides)
    return os.path.realpath(path), stat.st_mtime_ns, stat.st_size, config, types
