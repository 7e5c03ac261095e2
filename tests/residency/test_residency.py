"""What stays loaded, for how long, and what makes way."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from pathlib import Path

import pytest

from localllm import ChatSession, LocalModel, Request, loaded_models, set_memory_budget
from localllm.errors import ClosedError, DoesNotFitError, InvalidRequestError, ModelError, ModelNotFoundError
from localllm.hub.layout import RepoCache, locked_if_free
from localllm.residency.registry import registry

GREEDY = {"temperature": 0, "max_tokens": 6}


def held(model: LocalModel) -> int:
    """Bytes that everything of a model's file takes now."""
    return sum(entry.n_bytes for entry in loaded_models() if entry.path == str(model.path))


def ask(model: LocalModel) -> tuple[int, ...]:
    return model.complete("one two three", **GREEDY).tokens


def test_an_idle_model_is_freed_and_loaded_again_at_the_next_use(local, clock, mapped, settle):
    model = local(keep_alive=60)
    answer = ask(model)
    settle()
    clock.pass_(59)
    assert model.loaded and mapped() == ["qwen3"]
    clock.pass_(1)
    assert not model.loaded and mapped() == []
    assert [entry.path for entry in loaded_models()] == []
    assert ask(model) == answer and model.loaded and mapped() == ["qwen3"]


def test_every_use_begins_the_time_anew(local, clock, settle):
    model = local(keep_alive=60)
    for _ in range(3):
        ask(model)
        settle()
        clock.pass_(45)
    assert model.loaded
    assert model.engine  # handing it out is a use, too
    clock.pass_(59)
    assert model.loaded
    clock.pass_(1)
    assert not model.loaded


def test_without_a_time_it_stays(local, clock, settle):
    model = local()
    ask(model)
    settle()
    clock.pass_(10**9)
    assert model.loaded


def test_at_once_means_when_the_last_request_has_ended(local):
    model = local(keep_alive=0, parallel=2)
    streams = [model.stream_complete("one", temperature=0, ignore_eos=True) for _ in range(2)]
    for stream in streams:
        next(stream)
        assert model.loaded
    streams[0].close()
    assert next(streams[1]) and model.loaded
    streams[1].close()
    deadline = threading.Event()
    for _ in range(1000):
        if not model.loaded:
            break
        deadline.wait(0.01)
    assert not model.loaded


def test_the_handle_that_keeps_it_longest_counts(local, clock, settle):
    short, long = local(keep_alive=10), local(keep_alive=100)
    ask(short), ask(long)
    settle()
    clock.pass_(50)
    assert short.loaded and long.loaded
    long.close()
    clock.pass_(0)
    assert not short.loaded
    for_ever = local()
    ask(for_ever), ask(short)
    settle()
    clock.pass_(10**6)
    assert short.loaded
    del for_ever
    gc.collect()


def test_a_running_request_is_never_unloaded(local, clock):
    model = local(keep_alive=1)
    stream = model.stream_complete("one", temperature=0, ignore_eos=True)
    first = next(stream)
    clock.pass_(1000)
    assert model.loaded and first.tokens and next(stream).tokens
    assert not registry._there.holdings()[0].evictable
    stream.close()


@pytest.mark.parametrize("keep_alive", [-1, "long", True, float("nan"), float("inf")])
def test_times_that_are_none(local, keep_alive):
    with pytest.raises(InvalidRequestError, match="^keep_alive:"):
        local(keep_alive=keep_alive)


@pytest.mark.parametrize("options", [{"pinned": 1}, {"check_memory": "no"}])
def test_flags_that_are_none(local, options):
    with pytest.raises(InvalidRequestError, match=f"^{next(iter(options))}:"):
        local(**options)


def test_terms_go_with_a_copy(local):
    model = local(keep_alive=5, pinned=True, check_memory=False)
    assert pickle.loads(pickle.dumps(model)).terms == model.terms
    with pytest.raises(InvalidRequestError, match="did you mean 'keep_alive'"):
        local(keepalive=5)


# ---- everything else goes on working


def test_sessions_templates_tokens_and_vectors_go_on(local, clock, mapped, settle):
    def conversation(model, pause):
        session = ChatSession(model, "Be brief.", temperature=0, max_tokens=4)
        said = []
        for text in ("one", "two", "three"):
            said.append(session.ask(text).message.content)
            pause()
        return said, model.render([{"role": "user", "content": "x"}]), model.tokenize("one"), model.embed("one two").vectors

    def unload():
        settle()
        clock.pass_(60)
        assert mapped() == []

    stays = local()
    expected = conversation(stays, lambda: None)
    stays.close()
    assert conversation(local(keep_alive=60), unload) == expected


def test_what_was_computed_is_found_on_disk_after_it_was_loaded_again(local, clock, tmp_path, settle):
    model = local(keep_alive=60, cache_dir=tmp_path / "states", cache_ram_bytes=0)
    prompt = "one two three four five six seven eight " * 12
    first = model.complete(prompt, **GREEDY)
    settle()
    clock.pass_(60)
    assert not model.loaded
    again = model.complete(prompt, **GREEDY)
    assert again.tokens == first.tokens
    assert (again.usage.cached_from, first.usage.cached_from) == ("disk", "") and again.usage.cached_tokens > 0


def test_coroutines_keep_it_and_a_cancelled_one_does_not(local, clock, settle):
    model = local(keep_alive=30)

    async def main():
        whole = await model.acomplete("one two three", **GREEDY)
        events = model.astream_complete("one", temperature=0, ignore_eos=True)
        await anext(events)
        clock.pass_(1000)
        assert model.loaded
        await events.aclose()
        task = asyncio.create_task(model.acomplete("one", temperature=0, ignore_eos=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return whole.tokens

    tokens = asyncio.run(main())
    gc.collect()
    settle()
    clock.pass_(30)
    assert not model.loaded
    assert ask(model) == tokens


def test_a_file_that_was_replaced_meanwhile(local, clock, models, tmp_path, settle):
    model = local(keep_alive=5)
    ask(model)
    model.render([{"role": "user", "content": "x"}])
    settle()
    replacement = tmp_path / "new"
    replacement.write_bytes(models["qwen3moe"].read_bytes())
    replacement.replace(model.path)
    ask(model)
    assert model.header.architecture == "qwen3", "what is loaded stays"
    settle()
    clock.pass_(5)
    ask(model)
    assert model.header.architecture == "qwen3moe"
    assert model.engine.model.metadata()["general.architecture"] == "qwen3moe"
    settle()
    clock.pass_(50)
    model.path.unlink()
    with pytest.raises(ModelNotFoundError, match=r"qwen3\.gguf"):
        ask(model)


def test_an_engine_in_the_programs_hands_is_closed_when_it_was_idle_for_long(local, clock, settle):
    model = local(keep_alive=1)
    engine = model.engine
    settle()
    clock.pass_(4)
    assert not engine.closed, "it was only just handed out"
    clock.pass_(1)
    assert engine.closed and not model.loaded
    with pytest.raises(ClosedError):
        engine.generate(Request(prompt=(1,)))
    assert model.engine is not engine


# ---- many at once


def test_many_threads_load_once_and_several_models_at_the_same_time(local, monkeypatch):
    from localllm.residency import registry as module

    loads = []
    model_class = module.Model
    monkeypatch.setattr(module, "Model", lambda path, params: (loads.append(path), model_class(path, params))[1])
    names = ("qwen3", "qwen3moe", "gemma3")
    handles = [local(name) for name in names for _ in range(6)]
    start, answers, failed = threading.Barrier(len(handles)), {}, []

    def use(handle):
        try:
            start.wait(30)
            answers.setdefault(handle.reference, set()).add(ask(handle))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert sorted(loads) == sorted({handle.reference for handle in handles})
    assert len(answers) == 3


def test_a_failed_load_is_told_to_all_who_wait_and_tried_anew(local, models):
    model = local()
    sound = model.path.read_bytes()
    handles = [local() for _ in range(6)]
    model.path.write_bytes(models["foobar"].read_bytes())
    start, errors = threading.Barrier(len(handles)), []

    def use(handle):
        start.wait(30)
        try:
            assert handle.engine
        except ModelError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=use, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 6 and all("foobar" in error for error in errors)
    assert loaded_models() == []
    model.path.write_bytes(sound)
    assert ask(handles[0]) == ask(model)


def test_requests_unloading_and_loading_at_once(local):
    """Threads ask, and the models are unloaded again and again under them: every answer is right."""
    names = ("qwen3", "qwen3moe")
    expected = {name: ask(local(name)) for name in names}
    handles = {name: local(name, keep_alive=0) for name in names}
    wrong, stop = [], threading.Event()

    def work(name):
        try:
            for _ in range(15):
                if ask(handles[name]) != expected[name]:
                    wrong.append(name)
        except BaseException as error:
            wrong.append(error)

    def unload():
        while not stop.is_set():
            with registry._claims() as claimed:
                with registry._lock:
                    registry._claim_idle(claimed)
                registry._unload(claimed)

    workers = [threading.Thread(target=work, args=(name,)) for name in names for _ in range(2)]
    unloader = threading.Thread(target=unload)
    for thread in (*workers, unloader):
        thread.start()
    for thread in workers:
        thread.join(120)
    stop.set()
    unloader.join(30)
    assert not wrong


def test_a_hundred_times_in_and_out_leaves_nothing(local, clock, mapped, settle):
    from localllm.native.handles import Owned

    def native():
        gc.collect()
        return sum(1 for one in gc.get_objects() if isinstance(one, Owned) and not one.closed)

    model = local(keep_alive=1)
    model.tokenize("x")
    ask(model)
    settle()
    clock.pass_(1)
    before, threads, files = native(), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        model.complete("one", max_tokens=1)
        settle()
        clock.pass_(1)
        assert mapped() == []
    assert (native(), len(list(Path("/proc/self/fd").iterdir()))) == (before, files)
    assert threading.active_count() <= threads + 1


# ---- budget


def test_the_least_recently_used_makes_way_and_only_as_much_as_is_needed(local, clock, mapped, settle):
    first, second, third = (local(name) for name in ("qwen3", "qwen3moe", "gemma3"))
    sizes = []
    for model in (first, second):
        ask(model)
        settle()
        sizes.append(held(model))
        clock.pass_(1)
    set_memory_budget(sum(sizes) + sizes[0])
    ask(first)
    settle()
    clock.pass_(1)
    ask(third)
    assert mapped() == ["gemma3", "qwen3"], "the second was used before the first was used again"
    assert sum(entry.n_bytes for entry in loaded_models()) <= sum(sizes) + sizes[0]
    assert first.loaded and third.loaded and not second.loaded
    settle()
    clock.pass_(1)
    ask(second)
    assert mapped()[-1] == "qwen3moe" and sum(entry.n_bytes for entry in loaded_models()) <= sum(sizes) + sizes[0]


def test_busy_and_pinned_ones_stay_and_the_error_says_what_holds_the_memory(local, mapped, settle):
    busy, pinned, wanted = local("qwen3"), local("qwen3moe", pinned=True), local("gemma3")
    ask(pinned)
    stream = busy.stream_complete("one", temperature=0, ignore_eos=True, context_shift=1)
    next(stream)
    used = sum(entry.n_bytes for entry in loaded_models())
    set_memory_budget(used + 1000)
    before = loaded_models()
    with pytest.raises(DoesNotFitError) as caught:
        ask(wanted)
    text = str(caught.value)
    assert "gemma3" in text and "of the memory budget" in text and "set_memory_budget" in text
    assert "qwen3.gguf (engine," in text and ", busy)" in text and ", pinned)" in text
    assert caught.value.needed_bytes > caught.value.free_bytes == 1000
    assert [(entry.path, entry.purpose) for entry in loaded_models()] == [(entry.path, entry.purpose) for entry in before]
    assert mapped() == ["qwen3", "qwen3moe"] and next(stream).tokens
    stream.close()
    settle()
    set_memory_budget(used + 2**19)  # gemma3 takes a little more than what makes way
    ask(wanted)
    assert mapped() == ["gemma3", "qwen3moe"]


def test_nothing_makes_way_for_what_does_not_fit_anyway(local, mapped, settle):
    small, large = local("qwen3"), local("qwen3moe", n_ctx=65536)
    ask(small)
    settle()
    set_memory_budget(2 * held(small))
    with pytest.raises(DoesNotFitError, match="n_ctx=[0-9]+ at most would fit"):
        ask(large)
    assert mapped() == ["qwen3"] and small.loaded


def test_weights_are_counted_once_and_stay_for_the_other_context_over_them(local, mapped, settle):
    model = local("qwen3")
    ask(model)
    alone = held(model)
    model.embed("one")
    settle()
    weights = next(entry.n_bytes for entry in loaded_models() if entry.purpose == "weights")
    contexts = [entry.n_bytes for entry in loaded_models() if entry.purpose != "weights"]
    assert held(model) == weights + sum(contexts) and alone == weights + contexts[1]
    assert [entry.purpose for entry in loaded_models()] == ["weights", "embedder", "engine"]


def test_a_smaller_budget_takes_effect_at_once(local, mapped, settle):
    first, second = local("qwen3"), local("qwen3moe", pinned=True)
    ask(first), ask(second)
    settle()
    set_memory_budget(0)
    assert mapped() == ["qwen3moe"] and not first.loaded
    with pytest.raises(DoesNotFitError):
        ask(first)
    set_memory_budget(None)
    assert ask(first)


@pytest.mark.parametrize("budget", [-1, 1.5, "1 GB", True])
def test_budgets_that_are_none(budget):
    with pytest.raises(InvalidRequestError, match="^budget:"):
        set_memory_budget(budget)


def test_the_budget_may_come_from_the_environment(local, monkeypatch):
    model = local()
    monkeypatch.setenv("LOCALLLM_MEMORY_BUDGET", "1000")
    with pytest.raises(DoesNotFitError, match="memory budget"):
        ask(model)
    set_memory_budget(10**12)  # goes before it
    assert ask(model)
    model.close()
    set_memory_budget(None)
    monkeypatch.setenv("LOCALLLM_MEMORY_BUDGET", "2G")
    with pytest.raises(InvalidRequestError, match="LOCALLLM_MEMORY_BUDGET"):
        ask(model)


def test_what_the_program_holds_by_itself_is_counted(local, mapped, settle):
    first, second = local("qwen3"), local("qwen3moe")
    engine = first.engine
    first.close()
    settle()
    used = sum(entry.n_bytes for entry in loaded_models())
    assert used and mapped() == ["qwen3"] and not engine.closed
    set_memory_budget(used + 1000)
    with pytest.raises(DoesNotFitError, match=r"qwen3\.gguf"):
        ask(second)
    assert first.engine is engine, "and is used again"
    del engine
    settle()
    first.close()
    set_memory_budget(None)
    assert ask(second)


def test_several_models_in_turn_under_a_budget_for_one(local, mapped, settle):
    handles = [local(name) for name in ("qwen3", "qwen3moe", "gemma3")]
    expected = []
    for handle in handles:
        expected.append(ask(handle))
        settle()
    largest = max(held(handle) for handle in handles)
    set_memory_budget(int(largest * 1.2))
    for _ in range(4):
        for handle, tokens in zip(handles, expected, strict=True):
            settle()
            assert ask(handle) == tokens
            assert sum(entry.n_bytes for entry in loaded_models()) <= largest * 1.2
            assert len(mapped()) == 1


def test_threads_with_several_models_under_a_budget_for_two(local, settle):
    """Who finds all the memory busy is told so; nobody gets a wrong answer, and the budget holds at every moment."""
    names = ("qwen3", "qwen3moe", "gemma3")
    expected = {name: ask(local(name)) for name in names}
    settle()
    sizes = sorted(held(local(name)) for name in names)
    budget = int((sizes[1] + sizes[2]) * 1.1)
    set_memory_budget(budget)
    done, wrong, most, given_up = [], [], [], threading.Event()

    def work(name):
        model = local(name)
        try:
            while done.count(name) < 10 and not given_up.is_set():
                try:
                    answer = ask(model)
                except DoesNotFitError:
                    continue
                done.append(name)
                most.append(sum(entry.n_bytes for entry in loaded_models()))
                if answer != expected[name]:
                    wrong.append(name)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    given_up.set()
    assert not wrong and len(done) == 30 and max(most) <= budget


# ---- what an interruption leaves


class Interrupted(BaseException):
    """As Ctrl-C."""


@pytest.mark.parametrize("by", ["a budget", "another model", "time"])
def test_what_was_to_be_unloaded_when_an_interruption_came_can_be_used(local, clock, monkeypatch, by, settle):
    model, other = local("qwen3", keep_alive=5), local("qwen3moe")
    answer = ask(model)
    settle()
    used = sum(entry.n_bytes for entry in loaded_models())

    def interrupted(claimed):
        assert [resident.unloading for resident in claimed] == [True]
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(registry, "_unload", interrupted)
        with pytest.raises(Interrupted):
            if by == "a budget":
                set_memory_budget(0)
            elif by == "another model":
                registry.budget_bytes = used + (1 << 19)
                ask(other)
            else:
                clock.pass_(5)
        clock.now -= 5  # it is not due any more
    set_memory_budget(None)
    assert model.loaded and ask(model) == answer


def test_a_model_that_went_and_came_back_is_found(hub, models):
    from localllm.hub.resolve import expand
    from localllm.hub.store import Store

    hub.add("org/model", {"m-Q4_0.gguf": models["qwen3"]})
    model = LocalModel("org/model", n_ctx=256, n_threads=1, keep_alive=0)
    answer = ask(model)
    for use in (ask, lambda handle: handle.tokenize("x"), lambda handle: handle.render([{"role": "user", "content": "x"}])):
        model.close()
        path = Store().find(expand("org/model"))
        path.resolve().unlink()
        path.unlink()
        assert use(model)
    assert ask(model) == answer
    model.close()


def test_nobody_waits_for_the_download_of_another_model(hub, gguf_files, models, tmp_path):
    hub.add("org/model", {"model-Q8_0.gguf": gguf_files.model(tmp_path / "model-Q8_0.gguf", n_layers=1)[0]})
    file = hub.repos["org/model"].commits[hub.repos["org/model"].branches["main"]]["model-Q8_0.gguf"]
    fetched, local = LocalModel("org/model:Q8_0"), LocalModel(str(models["qwen3"]))
    threads = [threading.Thread(target=lambda model=model: model.header, daemon=True) for model in (fetched, local)]
    with locked_if_free(RepoCache.of("org/model").lock(file.sha256)) as free:
        assert free
        threads[0].start()
        hub.wait_for(lambda: hub.log)
        threads[1].start()
        threads[1].join(20)
        assert not threads[1].is_alive() and threads[0].is_alive()
    threads[0].join(20)
    assert fetched.path.is_file()
