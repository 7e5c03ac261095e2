"""Reuse of what has been computed: the answers stay the same, and the work does not."""

from __future__ import annotations

import errno
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localllm import ContextConfig, Delta, Engine, Request, SamplingParams
from localllm.engine.request import Finished

PROBED = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
# Plain attention can be continued anywhere; the others only where a state ends.
CUTTABLE = ["qwen3", "qwen3moe"]
UNCUTTABLE = ["gemma3", "qwen35", "mamba2", "lfm2"]


def request(engine: Engine, text: str, max_tokens: int = 12, **options) -> Request:
    return Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=max_tokens, sampling=PROBED, **options)


def follow_up(earlier: Request, answer, engine: Engine, text: str) -> Request:
    more = engine.model.tokenize(text, False, True)
    return Request(prompt=(*earlier.prompt, *answer.tokens, *more), max_tokens=12, sampling=PROBED)


@pytest.fixture
def count(monkeypatch):
    """Counts the tokens that an engine computes."""

    def watch(engine: Engine) -> list[int]:
        sizes: list[int] = []
        run = engine._core.runner.run
        monkeypatch.setattr(
            engine._core.runner, "run", lambda chunks: (sizes.append(sum(c.count for c in chunks)), run(chunks))[1]
        )
        return sizes

    return watch


@pytest.mark.parametrize("name", [*CUTTABLE, *UNCUTTABLE])
def test_the_next_turn_computes_only_what_is_new_and_says_the_same(engine_for, count, name, assert_same_greedy):
    cold, warm = engine_for(name, prefix_cache=False), engine_for(name)
    first = request(warm, "What is the capital of France? " * 4)
    answer = warm.generate(first)
    second = follow_up(first, answer, warm, " one two three")
    sizes = count(warm)
    again = warm.generate(second)
    assert again.usage.cached_tokens == len(first.prompt) + len(answer.tokens) - 1
    assert sum(sizes) == len(second.prompt) - again.usage.cached_tokens + len(again.tokens) - 1
    assert (again.usage.cached_from, again.usage.cache_miss) == ("device", "new")
    fresh = cold.generate(second)
    assert (fresh.usage.cached_tokens, fresh.usage.cached_from, fresh.usage.cache_miss) == (0, "", "off")
    assert_same_greedy(fresh.logprobs, again.logprobs)


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_a_state_that_was_not_kept_where_texts_part_is_told(engine_for, name):
    engine = engine_for(name)
    text = "the quick brown fox jumps over the lazy dog " * 4
    engine.generate(request(engine, text + "one two"))
    answer = engine.generate(request(engine, text + "What is a fox?"))
    assert (answer.usage.cached_tokens, answer.usage.cache_miss) == (0, "checkpoint")


def test_on_a_trained_model_warm_and_cold_texts_are_equal(engine_for, trained):
    cold, warm = engine_for(trained, n_ctx=1024, prefix_cache=False), engine_for(trained, n_ctx=1024)
    for text in ("The ", "It was ", "one two "):
        first = request(warm, text, 40)
        answer = warm.generate(first)
        second = follow_up(first, answer, warm, " and ")
        warmed = warm.generate(second)
        assert warmed.usage.cached_tokens > 0 and warmed.tokens == cold.generate(second).tokens


@pytest.mark.parametrize("name", CUTTABLE)
def test_another_question_about_the_same_text_computes_only_the_question(engine_for, count, name, assert_same_greedy):
    engine, cold = engine_for(name), engine_for(name, prefix_cache=False)
    text = "the quick brown fox jumps over the lazy dog " * 8
    engine.generate(request(engine, text + "one"))
    sizes = count(engine)
    for question in ("two two", "three", "What is a fox?"):
        asked = request(engine, text + question)
        answer = engine.generate(asked)
        assert answer.usage.cached_tokens >= len(engine.model.tokenize(text, True, True)) - 2
        assert_same_greedy(cold.generate(asked).logprobs, answer.logprobs)
    assert sum(sizes) < 3 * (12 + 12)


@pytest.mark.parametrize("name", [*CUTTABLE, *UNCUTTABLE])
def test_asking_the_same_again_gives_the_same(engine_for, name, assert_same_greedy):
    engine = engine_for(name)
    asked = request(engine, "one two three four five six seven " * 5)
    answers = [engine.generate(asked) for _ in range(3)]
    for answer in answers[1:]:
        assert_same_greedy(answers[0].logprobs, answer.logprobs)
    assert answers[1].usage.cached_tokens == len(asked.prompt) - 1, "one token has to be computed to choose the next"


def test_questions_that_arrive_together_compute_their_text_once(engine_for, count, together, assert_same_greedy):
    engine, cold = engine_for("qwen3", n_ctx=2048, parallel=8), engine_for("qwen3", n_ctx=2048, prefix_cache=False)
    text = "What is the capital of France? The capital of France is Paris. " * 16
    asked = [
        request(engine, f"{text}{question}") for question in ("one", "two", "three", "four", "five", "six", "seven", "eight")
    ]
    sizes = count(engine)
    events = together(engine, asked)
    distinct = max(len(each.prompt) for each in asked) + sum(8 for _ in asked)
    prompt_tokens = sum(sizes) - sum(11 for _ in asked)
    assert prompt_tokens <= 1.15 * distinct
    for each, seen in zip(asked, events, strict=True):
        given = [entry for event in seen if isinstance(event, Delta) for entry in event.logprobs]
        assert_same_greedy(cold.generate(each).logprobs, given)


@pytest.mark.parametrize("name", [*CUTTABLE, *UNCUTTABLE])
def test_several_answers_to_one_prompt_compute_it_once_and_share_its_cells(engine_for, count, name):
    engine, alone = engine_for(name, n_ctx=1024, parallel=4), engine_for(name, n_ctx=1024, prefix_cache=False)
    sampling = SamplingParams(temperature=1.5, seed=7, ignore_eos=True)
    text = "What is the capital of France? " * 8
    asked = Request(prompt=tuple(engine.model.tokenize(text, True, True)), max_tokens=12, sampling=sampling)
    sizes = count(engine)
    answers = engine.generate_all(asked.repeated(4))
    assert sum(sizes) == len(asked.prompt) + 3 + 4 * 11, "the last token of the prompt is computed for each"
    assert [answer.seed for answer in answers] == [7, 8, 9, 10]
    assert len({answer.tokens for answer in answers}) > 1
    cells = engine.stats().n_cells_used
    assert cells <= len(asked.prompt) + 4 * 12
    for seed, answer in zip((7, 8), answers, strict=False):
        one = Request(prompt=asked.prompt, max_tokens=12, sampling=SamplingParams(temperature=1.5, seed=seed, ignore_eos=True))
        # A random choice can fall on the other side of a rounding; a wrong state would show at once.
        assert alone.generate(one).tokens[:4] == answer.tokens[:4]


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35"])
def test_a_cancelled_prompt_leaves_what_it_had_computed_in_order(engine_for, name, assert_same_greedy):
    engine, cold = engine_for(name, n_ctx=4096, n_batch=64, n_ubatch=32), engine_for(name, n_ctx=4096, prefix_cache=False)
    long = request(engine, "the lazy dog " * 400)
    for _ in range(3):
        ended = threading.Event()
        request_id = engine.submit(long, lambda event, ended=ended: ended.set() if isinstance(event, Finished) else None)
        while not engine._core.worker._in_batch and not ended.is_set():
            pass
        engine.cancel(request_id)
        assert ended.wait(30)
    short = Request(prompt=long.prompt[:300], max_tokens=8, sampling=PROBED)
    assert_same_greedy(cold.generate(short).logprobs, engine.generate(short).logprobs)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen35", "mamba2"])
def test_many_conversations_in_few_cells_stay_right(engine_for, name, assert_same_greedy):
    """More conversations than slots and cells: prefixes are evicted and computed again, every answer is that of a cold engine."""
    engine = engine_for(name, n_ctx=400, parallel=2, kept_sequences=2)
    cold = engine_for(name, n_ctx=400, parallel=1, prefix_cache=False)
    talks = [request(engine, f"{word} one two three", 8) for word in ("fox", "dog", "lazy", "quick", "capital", "Paris")]
    for _ in range(3):
        for place, talk in enumerate(talks):
            answer = engine.generate(talk)
            assert_same_greedy(cold.generate(talk).logprobs, answer.logprobs)
            talks[place] = follow_up(talk, answer, engine, f" {place} and")


def test_without_the_cache_nothing_is_kept(engine_for):
    engine = engine_for("qwen3", prefix_cache=False)
    for _ in range(2):
        assert engine.generate(request(engine, "one two three")).usage.cached_tokens == 0
    assert engine._core.residents.ledger.n_used == 0 and engine._core.runner.n_slots == 4


def test_a_second_turn_through_the_chat_is_cached(smollm2):
    from localllm import LocalModel

    with LocalModel(smollm2, n_ctx=1024) as model:
        messages = [{"role": "user", "content": "Tell me about rivers."}]
        first = model.chat(messages, temperature=0, max_tokens=24)
        messages += [{"role": "assistant", "content": first.message.content}, {"role": "user", "content": "And lakes?"}]
        second = model.chat(messages, temperature=0, max_tokens=8)
        assert second.usage.cached_tokens >= first.usage.prompt_tokens


def test_a_context_of_many_slots_costs_a_dense_model_no_cells(models):
    with Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256, parallel=4, kept_sequences=64)) as engine:
        assert engine._core.runner.n_slots == 68 and engine.n_ctx == 256


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_a_state_that_cannot_be_cut_is_kept_where_messages_begin(engine_for, count, name, assert_same_greedy):
    engine, cold = engine_for(name), engine_for(name, prefix_cache=False)
    system = engine.model.tokenize("the quick brown fox jumps over the lazy dog " * 5, True, True)
    questions = [engine.model.tokenize(text, False, True) for text in ("one two", "three four five", "What is the capital?")]
    asked = [
        Request(prompt=(*system, *question), max_tokens=8, sampling=PROBED, boundaries=(len(system),)) for question in questions
    ]
    answers = [engine.generate(each) for each in asked]
    assert [answer.usage.cached_tokens for answer in answers] == [0, len(system), len(system)]
    for each, answer in zip(asked, answers, strict=True):
        assert_same_greedy(cold.generate(each).logprobs, answer.logprobs)


@pytest.mark.parametrize("name", ["gemma3", "qwen35", "mamba2"])
def test_agents_with_one_system_prompt_compute_it_once_although_the_state_cannot_be_cut(
    engine_for, count, name, together, assert_same_greedy
):
    engine, cold = engine_for(name, n_ctx=4096, parallel=4), engine_for(name, n_ctx=4096, prefix_cache=False)
    system = engine.model.tokenize("the quick brown fox jumps over the lazy dog " * 10, True, True)
    asked = [
        Request(
            prompt=(*system, *engine.model.tokenize(f"{n} one two", False, True)),
            max_tokens=6,
            sampling=PROBED,
            boundaries=(len(system),),
        )
        for n in range(6)
    ]
    sizes = count(engine)
    events = together(engine, asked)
    assert sum(sizes) <= len(system) + sum(len(each.prompt) - len(system) + 6 for each in asked)
    for each, seen in zip(asked, events, strict=True):
        given = [entry for event in seen if isinstance(event, Delta) for entry in event.logprobs]
        assert_same_greedy(cold.generate(each).logprobs, given)


def test_a_chat_names_its_boundaries(models):
    from localllm import LocalModel

    model = LocalModel(models["qwen35"], n_ctx=1024, n_threads=1)
    messages = [{"role": "system", "content": "the quick brown fox " * 12}, {"role": "user", "content": "one"}]
    first = model.chat(messages, temperature=0, max_tokens=4)
    other = model.chat([messages[0], {"role": "user", "content": "two two"}], temperature=0, max_tokens=4)
    assert first.usage.cached_tokens == 0 and other.usage.cached_tokens > 40
    again = model.chat(messages, temperature=0, max_tokens=4)
    assert again.usage.cached_tokens > other.usage.cached_tokens - 8 and again.message == first.message


# ---- copies in RAM


def settle(engine: Engine) -> None:
    """Waits until the engine has nothing left to copy."""
    core = engine._core
    while True:
        with core._wake:
            if core.scheduler.idle and not core.residents.next_to_save() and not core.residents.next_to_store():
                return


@pytest.mark.parametrize("name", [*CUTTABLE, *UNCUTTABLE])
def test_what_left_the_device_comes_back_from_ram(engine_for, count, name, assert_same_greedy):
    engine = engine_for(name, n_ctx=512, parallel=1, kept_sequences=3)
    cold = engine_for(name, n_ctx=512, parallel=1, prefix_cache=False)
    texts = [
        "the quick brown fox " * 24,
        "jumps over the lazy dog " * 20,
        "one two three four five " * 20,
        "What is the capital " * 20,
    ]
    asked = [request(engine, text, 8) for text in texts]
    for each in asked:
        engine.generate(each)
        settle(engine)
    onward = [Request(prompt=(*each.prompt, 5, 6, 7), max_tokens=8, sampling=PROBED) for each in asked]
    sizes = count(engine)
    answers = [engine.generate(each) for each in onward]
    settle(engine)
    for each, before, answer in zip(onward, asked, answers, strict=True):
        assert answer.usage.cached_tokens >= len(before.prompt) - 1, name
        assert_same_greedy(cold.generate(each).logprobs, answer.logprobs)
    assert sum(sizes) <= sum(4 + 8 for _ in asked)
    stats = engine.stats()
    assert stats.ram_bytes > 0 and "ram" in {answer.usage.cached_from for answer in answers}
    assert stats.saved_bytes >= stats.ram_bytes and stats.save_seconds > 0
    assert stats.restored_bytes > 0 and stats.restore_seconds > 0 and stats.cache_hits["ram"] == stats.n_restored


def test_the_budget_of_ram_is_kept(engine_for):
    engine = engine_for("qwen3", n_ctx=512, parallel=1, kept_sequences=3, cache_ram_bytes=200_000)
    for n in range(12):
        engine.generate(request(engine, f"{n} the quick brown fox " * 16, 4))
        settle(engine)
        assert engine._core.residents.tree.n_bytes("ram") <= 200_000
    assert engine._core.residents.tree.tier("ram")


def test_a_copy_larger_than_the_budget_is_tried_once(engine_for, monkeypatch):
    engine = engine_for("qwen3", n_ctx=512, parallel=1, kept_sequences=3, cache_ram_bytes=1000)
    saves = []
    save = engine._core.runner.save
    monkeypatch.setattr(engine._core.runner, "save", lambda slot: (saves.append(slot), save(slot))[1])
    for n in range(4):
        engine.generate(request(engine, f"{n} the quick brown fox " * 16, 4))
        settle(engine)
    assert 0 < len(saves) <= 4 and engine._core.residents.tree.tier("ram") == []


def test_a_damaged_copy_is_a_miss_and_not_a_wrong_answer(engine_for, assert_same_greedy):
    engine = engine_for("qwen3", n_ctx=512, parallel=1, kept_sequences=3)
    asked = [request(engine, f"{n} the quick brown fox " * 16, 4) for n in range(4)]
    wanted = [engine.generate(each) for each in asked]
    settle(engine)
    for entry in engine._core.residents.tree.tier("ram"):
        for at in range(64):
            entry.payload[at] ^= 0xFF
    for each, answer in zip(asked, wanted, strict=True):
        assert_same_greedy(answer.logprobs, engine.generate(each).logprobs)
    stats = engine.stats()
    assert stats.cache_misses["damaged"] > 0 and stats.restored_bytes == 0 and "ram" not in stats.cache_hits
    assert engine.generate(asked[0]).tokens


def test_without_ram_nothing_is_copied(engine_for):
    engine = engine_for("qwen3", n_ctx=512, parallel=1, kept_sequences=3, cache_ram_bytes=0)
    for n in range(4):
        engine.generate(request(engine, f"{n} the quick brown fox " * 16, 4))
    settle(engine)
    assert engine._core.residents.tree.tier("ram") == []


def test_stats_tell_what_was_computed_and_what_was_not(engine_for):
    engine = engine_for("qwen3", n_ctx=512, parallel=1, kept_sequences=2)
    first = request(engine, "the quick brown fox " * 12, 4)
    engine.generate(first)
    engine.generate(first)
    stats = engine.stats()
    n = len(first.prompt)
    assert (stats.n_requests, stats.n_running, stats.n_waiting) == (2, 0, 0)
    assert (stats.prompt_tokens, stats.cached_tokens) == (2 * n, n - 1)
    assert stats.computed_tokens == n + 3 + 1 + 3 and stats.n_steps == 8
    assert (stats.n_cells, stats.n_cells_used, stats.n_resident) == (512, n + 3, 1)
    assert (stats.n_evicted, stats.n_restored) == (0, 0) and stats.prefill_tokens_per_second > 0
    assert (stats.cache_hits, stats.cache_misses) == ({"device": 1}, {"new": 1})
    for n in range(4):
        engine.generate(request(engine, f"{n} jumps over the lazy dog " * 12, 4))
        settle(engine)
    stats = engine.stats()
    assert stats.n_evicted > 0 and stats.n_saved > 0 and stats.n_ram > 0 and stats.ram_bytes > 0


# ---- files


@pytest.mark.parametrize("name", [*CUTTABLE, *UNCUTTABLE])
def test_a_new_engine_goes_on_from_files(engine_for, count, tmp_path, name, assert_same_greedy):
    cold = engine_for(name, prefix_cache=False)
    first = engine_for(name, cache_dir=str(tmp_path))
    asked = request(first, "the quick brown fox jumps over the lazy dog " * 8, 8)
    first.generate(asked)
    settle(first)
    first.close()
    second = engine_for(name, cache_dir=str(tmp_path))
    sizes = count(second)
    onward = Request(prompt=(*asked.prompt, 5, 6, 7), max_tokens=8, sampling=PROBED)
    answer = second.generate(onward)
    assert answer.usage.cached_tokens >= len(asked.prompt) - 1 and sum(sizes) <= 4 + 8
    assert_same_greedy(cold.generate(onward).logprobs, answer.logprobs)


def test_files_of_another_kind_of_cache_are_not_used(engine_for, tmp_path):
    first = engine_for("qwen3", cache_dir=str(tmp_path))
    asked = request(first, "the quick brown fox " * 16, 4)
    first.generate(asked)
    settle(first)
    first.close()
    for options in ({"type_k": "f32", "type_v": "f32"}, {"flash_attention": "off"}, {"rope_freq_base": 5000.0}):
        other = engine_for("qwen3", cache_dir=str(tmp_path), **options)
        assert other.generate(asked).usage.cached_tokens == 0, options
    assert engine_for("qwen3moe", cache_dir=str(tmp_path)).generate(asked).usage.cached_tokens == 0


def test_damaged_files_are_misses_and_the_answer_is_right(engine_for, tmp_path, caplog, assert_same_greedy):
    first = engine_for("qwen3", cache_dir=str(tmp_path))
    asked = request(first, "the quick brown fox " * 16, 4)
    wanted = first.generate(asked)
    settle(first)
    first.close()
    for path in tmp_path.glob("*.lmstate"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    second = engine_for("qwen3", cache_dir=str(tmp_path))
    answer = second.generate(asked)
    assert answer.usage.cached_tokens == 0 and "damaged" in caplog.text
    assert_same_greedy(wanted.logprobs, answer.logprobs)


SHARING = """
import pickle, sys
from localllm import ContextConfig, Engine, Request, SamplingParams
from localllm.engine.cache.lookup import DISK
path, folder, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = ContextConfig(n_ctx=512, parallel=2, n_threads=1, cache_dir=folder, cache_disk_bytes=1_000_000, cache_ram_bytes=0)
greedy = SamplingParams(temperature=0, ignore_eos=True, n_probs=5)
print(flush=True)
sys.stdin.readline()
for turn in range(6):
    with Engine(path, context=context) as engine:
        for n in range(4):
            prompt = (*range(20 + n, 120 + n), turn * at % 3)  # of these both processes ask some
            asked = Request(prompt=prompt, max_tokens=8, sampling=greedy)
            print(pickle.dumps((asked, engine.generate(asked).logprobs)).hex())
        core = engine._core
        while True:
            with core._wake:
                if core.scheduler.idle and not core.residents.next_to_store():
                    break
"""


def test_two_processes_use_one_folder_at_the_same_time(engine_for, models, tmp_path, assert_same_greedy):
    """Both read, write and evict, in a budget of a few states; every answer is that of an engine without a cache."""
    command = [sys.executable, "-c", SHARING, str(models["qwen3"]), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, str(at)], **pipes) for at in (1, 2)]
    for process in both:
        process.stdout.readline()
    for process in both:  # now, at the same time
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120) for process in both]
    assert [(process.returncode, error) for process, (_, error) in zip(both, told, strict=True)] == [(0, "")] * 2
    cold = engine_for("qwen3", prefix_cache=False, parallel=1)
    for line in {line for out, _ in told for line in out.splitlines()}:
        asked, logprobs = pickle.loads(bytes.fromhex(line))
        assert_same_greedy(cold.generate(asked).logprobs, logprobs)
    sizes = [path.stat().st_size for path in tmp_path.iterdir() if path.name != ".lock"]
    assert sizes and sum(sizes) <= 1_000_000


def test_a_folder_that_another_process_locks_delays_no_answer(engine_for, tmp_path):
    import fcntl

    engine = engine_for("qwen3", cache_dir=tmp_path)
    asked = request(engine, "the quick brown fox jumps over the lazy dog " * 8, 8)
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first = engine.generate(asked)
        for n in range(3):
            assert engine.generate(request(engine, f"{n} the quick brown fox", 2)).tokens
        assert list(tmp_path.glob("*.lmstate")) == [] and engine.generate(asked).tokens == first.tokens
    settle(engine)
    assert list(tmp_path.glob("*.lmstate")) != [], "what could not be written then is written now"


def test_a_full_disk_costs_the_files_and_no_answer(engine_for, tmp_path, monkeypatch, caplog, assert_same_greedy):
    opened = Path.open

    def full(path, mode="r", *arguments, **options):
        if mode == "xb":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    engine, cold = engine_for("qwen3", cache_dir=tmp_path), engine_for("qwen3", prefix_cache=False)
    for n in range(3):
        asked = request(engine, f"{n} the quick brown fox jumps over the lazy dog " * 6, 8)
        for _ in range(2):
            assert_same_greedy(cold.generate(asked).logprobs, engine.generate(asked).logprobs)
            settle(engine)
    assert caplog.text.count("No space left") == 1 and [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_cache_folder_that_cannot_be_used_is_an_error(models, tmp_path):
    from localllm.errors import InvalidRequestError

    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="^cache_dir:"):
        Engine(str(models["qwen3"]), context=ContextConfig(n_ctx=256, cache_dir=str(tmp_path / "file" / "x")))
