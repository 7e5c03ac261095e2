"""What an engine has done and what it holds, for whoever wants to know why something was fast or slow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from localllm.engine.speculation.tally import SpeculationStats


@dataclass(frozen=True)
class EngineStats:
    """A moment of an engine.

    Attributes:
        n_waiting, n_running: requests in the queue, and in batches.
        n_requests: requests that have ended, of whatever reason.
        n_steps: batches decoded.
        prompt_tokens: tokens of the prompts that started.
        cached_tokens: of these, how many were resident already.
        computed_tokens: tokens decoded, prompts, answers and drafts.
        drafted_tokens, accepted_tokens: tokens of all drafts, and how many of them were right.
        speculation: SpeculationStats of all drafts; None where there are to be none.
        n_cells, n_cells_used: KV cells in all, and held by running or ended sequences.
        n_resident: ended sequences and checkpoints in device memory.
        n_ram, ram_bytes: copies in RAM.
        n_adapters: LoRA adapters and control vectors that are loaded.
        n_evicted: prefixes that had to leave device memory.
        n_saved, n_restored: copies made, and taken back.
        cache_hits: requests of whose prompt something was resident, by where ("device", "running", "ram", "disk").
        cache_misses: requests of whose prompt more could have been resident, by why it was not; see Usage.cache_miss.
        media_tokens: tokens of prompts that were pictures or sound.
        media_encoded, media_cached: pictures and sounds for which the encoder has run, and those for which it had not to.
        encode_seconds: what the encoder took.
        saved_bytes, save_seconds: copied out of the context, for RAM, files and save_state, and the time that took.
        restored_bytes, restore_seconds: copied back into it.
        prefill_tokens_per_second, copy_bytes_per_second: measured rates, by which restoring is weighed against computing.
    """

    n_waiting: int
    n_running: int
    n_requests: int
    n_steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    n_cells: int
    n_cells_used: int
    n_resident: int
    n_ram: int
    ram_bytes: int
    n_adapters: int
    n_evicted: int
    n_saved: int
    n_restored: int
    cache_hits: dict[str, int]
    cache_misses: dict[str, int]
    saved_bytes: int
    save_seconds: float
    restored_bytes: int
    restore_seconds: float
    prefill_tokens_per_second: float
    copy_bytes_per_second: float
    media_tokens: int = 0
    media_encoded: int = 0
    media_cached: int = 0
    encode_seconds: float = 0.0
    speculation: SpeculationStats | None = None


@dataclass(frozen=True)
class EmbedderStats:
    """A moment of an embedder.

    Attributes:
        n_waiting, n_running: requests in the queue, and begun.
        n_requests: requests that have ended, of whatever reason.
        n_texts: texts computed.
        n_batches: batches computed; n_tokens: their tokens.
    """

    n_waiting: int
    n_running: int
    n_requests: int
    n_texts: int
    n_batches: int
    n_tokens: int


@dataclass
class Totals:
    """What is counted as it happens."""

    n_requests: int = 0
    n_steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    media_tokens: int = 0
    media_encoded: int = 0
    media_cached: int = 0
    encode_seconds: float = 0.0
    cache_hits: Counter[str] = field(default_factory=Counter)
    cache_misses: Counter[str] = field(default_factory=Counter)

    def values(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**vars(self), "cache_hits": _counted(self.cache_hits), "cache_misses": _counted(self.cache_misses)}


def _counted(counter: Counter[str]) -> dict[str, int]:
    # A copy first: the engine's thread goes on counting.
    return {key: n for key, n in counter.copy().items() if n}
