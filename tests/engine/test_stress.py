"""Nothing grows, nothing is lost: many requests of all sorts, with cancellations at random."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import random
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from localllm import Delta, Engine, Finished, Lora, Request, SamplingParams, SpeculationConfig
from localllm.engine.request import Failed
from localllm.media.content import Image
from localllm.media.encoder import Encoder, ProjectorConfig
from localllm.native.handles import Sampler, Text
from localllm.native.projector import Split, TextPart

FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class HeapStatistics(ctypes.Structure):
    """glibc's `struct mallinfo2` (malloc.h)."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def allocated_bytes() -> int:
    """What the program holds on glibc's heap: resident memory goes up and down by tens of MiB with its fragmentation."""
    gc.collect()
    if not hasattr(libc := ctypes.CDLL(None), "mallinfo2"):
        return 0
    libc.mallinfo2.restype = HeapStatistics
    held = libc.mallinfo2()
    return int(held.uordblks + held.hblkhd)


def open_handles() -> int:
    """Native objects of answers that nobody has released."""
    return sum(isinstance(each, (Sampler, Text)) and not each.closed for each in gc.get_objects())


def mixed(rng: random.Random, prefixes: list[list[int]], lora: Lora | None = None) -> Request:
    prompt = [*rng.choice(prefixes)[: rng.randint(1, 90)], *(rng.randrange(5, 250) for _ in range(rng.randint(1, 20)))]
    sampling = rng.choice(
        [
            SamplingParams(temperature=0),
            SamplingParams(temperature=1.2, seed=rng.randrange(1000)),
            SamplingParams(temperature=0.7, repeat_penalty=1.2, n_probs=2, seed=1),
            SamplingParams(temperature=0.5, grammar="root ::= [a-z ]+", seed=2),
        ]
    )
    stop = ("zz", "\n") if rng.random() < 0.3 else ()
    return Request(
        prompt=tuple(prompt),
        max_tokens=rng.randint(1, 12),
        sampling=sampling,
        stop=stop,
        priority=rng.randint(0, 1),
        loras=(lora,) if lora and rng.random() < 0.3 else (),
        speculate=rng.random() < 0.8,
    )


def run_many(engine: Engine, n_requests: int, seed: int, lora: Lora | None = None) -> Counter:
    """Submits in waves, cancels some at once and some later. How each request ended."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(5, 250) for _ in range(90)] for _ in range(3)]
    endings: Counter = Counter()
    last_events: Counter = Counter()
    left = threading.Semaphore(0)

    def sink(number):
        def put(event):
            assert last_events[number] == 0, "an event after the last one"
            if isinstance(event, Delta):
                return
            last_events[number] += 1
            endings[event.reason if isinstance(event, Finished) else type(event.error).__name__] += 1
            left.release()

        return put

    submitted: list[int] = []
    for number in range(n_requests):
        submitted.append(engine.submit(mixed(rng, prefixes, lora), sink(number)))
        if rng.random() < 0.3:
            engine.cancel(rng.choice(submitted[-6:]))
        if number % 50 == 49:
            for _ in range(50):
                assert left.acquire(timeout=60)
    assert sum(endings.values()) == n_requests and set(last_events.values()) == {1}
    return endings


@pytest.mark.parametrize("speculation", [None, "ngram-map-k"])
@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_a_thousand_mixed_requests_leave_nothing_behind(engine_for, name, speculation, builder, makers):
    drafts = SpeculationConfig(kind=speculation, n_match=1, n_max=4) if speculation else "none"
    engine = engine_for(name, n_ctx=768, parallel=4, kept_sequences=4, cache_ram_bytes=2**20, speculation=drafts)
    lora = Lora(builder.save(f"{name}-lora", makers.lora(builder.load(name))))
    run_many(engine, 200, seed=1, lora=lora)
    endings: Counter = Counter()
    levels = [(allocated_bytes(), sys.getallocatedblocks())]
    for seed in range(2, 7):
        endings += run_many(engine, 200, seed=seed, lora=lora)
        levels.append((allocated_bytes(), sys.getallocatedblocks()))
    assert bool(engine.stats().drafted_tokens) == bool(speculation)
    assert open_handles() == 0
    assert set(endings) <= {"stop", "length", "cancelled"} and endings["cancelled"] > 50 and endings["length"] > 200
    core = engine._core
    assert core.scheduler.idle and not core._sequences and not core._inbox
    residents = core.residents
    held = sum(residents.ledger.n_freed_by_clearing(entry.payload) for entry in residents.tree.tier("device"))
    assert held <= residents.ledger.n_used <= 768
    assert len(residents._free) + len(residents.tree.tier("device")) == core.runner.n_slots
    assert_level(levels)


def assert_level(levels: list[tuple[int, int]]) -> None:
    """Scratch memory grows once in a while, by many MiB, when a batch needs more than any before; what requests leave behind
    would show in every round: 1 KiB of each of 200 would be 200 KiB."""
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(levels)]
    assert min(n_bytes for n_bytes, _ in steps) < 150 * 1024, steps
    assert min(n_blocks for _, n_blocks in steps) < 200, steps


@pytest.mark.parametrize("kind", ["draft-mtp", "draft-eagle3", "draft-dflash", "draft-lilicorr", "draft-simple"])
def test_five_hundred_requests_that_models_draft_for_leave_nothing_behind(engine_for, trained, lilicorr_files, models, kind):
    path, draft = {
        "draft-mtp": (trained, ""),
        "draft-eagle3": (trained, trained.parent / "tiny-trained-qwen35-eagle3.gguf"),
        "draft-dflash": (trained, trained.parent / "tiny-trained-qwen35-dflash.gguf"),
        "draft-lilicorr": (lilicorr_files["target"], lilicorr_files["lilicorr-unified"]),
        "draft-simple": (models["gemma3"], models["gemma3"]),
    }[kind]
    config = SpeculationConfig(kind=kind, draft=draft, n_max=4)
    # As much RAM for copies as the first requests fill.
    engine = engine_for(path, n_ctx=768, parallel=4, kept_sequences=4, cache_ram_bytes=2**17, speculation=config)
    run_many(engine, 100, seed=1)
    endings: Counter = Counter()
    levels = [(allocated_bytes(), sys.getallocatedblocks())]
    for seed in range(2, 7):
        endings += run_many(engine, 100, seed=seed)
        levels.append((allocated_bytes(), sys.getallocatedblocks()))
    stats = engine.stats().speculation
    assert stats.drafted_tokens > stats.accepted_tokens > 0
    assert open_handles() == 0 and set(endings) <= {"stop", "length", "cancelled"} and endings["cancelled"] > 25
    core = engine._core
    assert core.scheduler.idle and len(core._speculator._throttles) <= 4
    twin, native = core.runner.twin, core.runner.native
    for slot in core.residents._free:
        assert native.llama_memory_seq_pos_max(twin.context.memory, slot) == -1
    assert_level(levels)


def test_sixteen_threads_and_a_loop_share_an_engine(engine_for):
    engine = engine_for("qwen3", n_ctx=2048, parallel=8)
    rng = random.Random(5)
    prefixes = [[rng.randrange(5, 250) for _ in range(90)] for _ in range(2)]
    asked = [mixed(rng, prefixes) for _ in range(16)]
    ended: list = []

    def work(request: Request) -> None:
        for _ in range(5):
            ended.append(engine.generate(request))

    async def loop() -> list:
        return await asyncio.gather(*(engine.agenerate(request) for request in asked))

    threads = [threading.Thread(target=work, args=(request,)) for request in asked]
    for thread in threads:
        thread.start()
    answers = asyncio.run(loop())
    for thread in threads:
        thread.join(60)
    assert len(ended) == 16 * 5 and len(answers) == 16
    assert all(answer.finish_reason in ("stop", "length") for answer in [*ended, *answers])
    assert not isinstance(answers[0], Failed)


@pytest.mark.parametrize("name", ["gemma4", "qwen35", "qwen3vl"])
def test_three_hundred_pictures_with_cancels_leave_nothing_behind(models, engine_for, name):
    engine = engine_for(name, n_ctx=768, parallel=4, kept_sequences=4, cache_ram_bytes=2**17)
    encoder = Encoder(engine.model, str(models[f"{name}-mmproj"]), ProjectorConfig(media_ram_bytes=100_000), 1)
    rng = random.Random(3)
    levels = []
    for at in range(6):
        left = threading.Semaphore(0)
        submitted: list[int] = []
        for number in range(50):
            pixels = np.random.default_rng(1000 * at + number // 2).integers(0, 256, (64, 96, 3), dtype=np.uint8)
            prompt = encoder.split([TextPart("Look:", special=True), Image(pixels), TextPart(" What is it?")], add_special=True)
            asked = Request(prompt=prompt.ids, media=prompt.runs, max_tokens=rng.randint(1, 6))
            submitted.append(engine.submit(asked, lambda event, left=left: isinstance(event, Delta) or left.release()))
            if rng.random() < 0.3:
                engine.cancel(rng.choice(submitted[-6:]))
        for _ in range(50):
            assert left.acquire(timeout=60)
        del prompt, asked
        levels.append((allocated_bytes(), sys.getallocatedblocks()))
    assert open_handles() == 0
    assert not [each for each in gc.get_objects() if isinstance(each, Split) and not each._owned.closed]
    assert encoder.cached_bytes <= 100_000
    assert engine.stats().media_encoded >= 75
    assert_level(levels)
    encoder.close()
