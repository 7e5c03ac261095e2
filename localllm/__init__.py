"""GGUF models in your own Python process.

    from localllm import LocalModel

    model = LocalModel("smollm2")
    print(model.chat([{"role": "user", "content": "What is the capital of France?"}]).message.content)

Names are imported when they are first used: `import localllm` loads neither numpy nor a native library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "LocalModel": "localllm.models",
    "loaded_models": "localllm.residency.registry",
    "set_memory_budget": "localllm.residency.registry",
    "LoadedModel": "localllm.residency.listing",
    "Placement": "localllm.residency.placement",
    "ChatOptions": "localllm.chat.prompt",
    "ChatDelta": "localllm.chat.types",
    "ChatMessage": "localllm.chat.types",
    "ChatResult": "localllm.chat.types",
    "ChatSession": "localllm.chat.session",
    "DropOldest": "localllm.chat.trimming",
    "Summarise": "localllm.chat.trimming",
    "ToolCall": "localllm.chat.types",
    "ToolCallDelta": "localllm.chat.types",
    "EmbedOptions": "localllm.embedding.texts",
    "Embeddings": "localllm.embedding.vectors",
    "Instructions": "localllm.embedding.instructions",
    "Ranked": "localllm.embedding.ranking",
    "ContextConfig": "localllm.engine.config",
    "ControlVector": "localllm.engine.steering",
    "ModelConfig": "localllm.engine.config",
    "SamplingParams": "localllm.engine.config",
    "SpeculationConfig": "localllm.engine.config",
    "Embedder": "localllm.engine.embedder",
    "EmbedRequest": "localllm.engine.embed_core",
    "EmbedderStats": "localllm.engine.stats",
    "Engine": "localllm.engine.engine",
    "EngineStats": "localllm.engine.stats",
    "Delta": "localllm.engine.request",
    "Finished": "localllm.engine.request",
    "Generation": "localllm.engine.request",
    "Lora": "localllm.engine.steering",
    "Request": "localllm.engine.request",
    "Timings": "localllm.engine.request",
    "Usage": "localllm.engine.request",
    "HubClient": "localllm.hub.client",
    "DownloadOptions": "localllm.hub.download",
    "ContextOptions": "localllm.hub.memory",
    "Plan": "localllm.hub.plan",
    "PlanOptions": "localllm.hub.plan",
    "aplan": "localllm.hub.planner",
    "plan": "localllm.hub.planner",
    "CancelToken": "localllm.hub.progress",
    "Progress": "localllm.hub.progress",
    "Pulled": "localllm.hub.pull",
    "apull": "localllm.hub.pull",
    "pull": "localllm.hub.pull",
    "Store": "localllm.hub.store",
}

__all__ = [*sorted(_HOME), "errors"]

if TYPE_CHECKING:
    from localllm import errors as errors
    from localllm.chat.prompt import ChatOptions as ChatOptions
    from localllm.chat.session import ChatSession as ChatSession
    from localllm.chat.trimming import DropOldest as DropOldest
    from localllm.chat.trimming import Summarise as Summarise
    from localllm.chat.types import ChatDelta as ChatDelta
    from localllm.chat.types import ChatMessage as ChatMessage
    from localllm.chat.types import ChatResult as ChatResult
    from localllm.chat.types import ToolCall as ToolCall
    from localllm.chat.types import ToolCallDelta as ToolCallDelta
    from localllm.embedding.instructions import Instructions as Instructions
    from localllm.embedding.ranking import Ranked as Ranked
    from localllm.embedding.texts import EmbedOptions as EmbedOptions
    from localllm.embedding.vectors import Embeddings as Embeddings
    from localllm.engine.config import ContextConfig as ContextConfig
    from localllm.engine.config import ModelConfig as ModelConfig
    from localllm.engine.config import SamplingParams as SamplingParams
    from localllm.engine.config import SpeculationConfig as SpeculationConfig
    from localllm.engine.embed_core import EmbedRequest as EmbedRequest
    from localllm.engine.embedder import Embedder as Embedder
    from localllm.engine.engine import Engine as Engine
    from localllm.engine.request import Delta as Delta
    from localllm.engine.request import Finished as Finished
    from localllm.engine.request import Generation as Generation
    from localllm.engine.request import Request as Request
    from localllm.engine.request import Timings as Timings
    from localllm.engine.request import Usage as Usage
    from localllm.engine.stats import EmbedderStats as EmbedderStats
    from localllm.engine.stats import EngineStats as EngineStats
    from localllm.engine.steering import ControlVector as ControlVector
    from localllm.engine.steering import Lora as Lora
    from localllm.hub.client import HubClient as HubClient
    from localllm.hub.download import DownloadOptions as DownloadOptions
    from localllm.hub.memory import ContextOptions as ContextOptions
    from localllm.hub.plan import Plan as Plan
    from localllm.hub.plan import PlanOptions as PlanOptions
    from localllm.hub.planner import aplan as aplan
    from localllm.hub.planner import plan as plan
    from localllm.hub.progress import CancelToken as CancelToken
    from localllm.hub.progress import Progress as Progress
    from localllm.hub.pull import Pulled as Pulled
    from localllm.hub.pull import apull as apull
    from localllm.hub.pull import pull as pull
    from localllm.hub.store import Store as Store
    from localllm.models import LocalModel as LocalModel
    from localllm.residency.listing import LoadedModel as LoadedModel
    from localllm.residency.placement import Placement as Placement
    from localllm.residency.registry import loaded_models as loaded_models
    from localllm.residency.registry import set_memory_budget as set_memory_budget


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("localllm.errors")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'localllm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
