"""What an interrupted download left has a name of its own, by which it is completed or removed, whatever else is here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest

from localllm.errors import InUseError, NetworkError
from localllm.hub.catalog import Aliases
from localllm.hub.checking import repair
from localllm.hub.entry import Entry
from localllm.hub.inventory import entries_of, models_here
from localllm.hub.layout import RepoCache, locked_if_free
from localllm.hub.planner import plan
from localllm.hub.pull import pull
from localllm.hub.removal import remove

LARGE = 1 << 19  # values of a file that is large enough for a record beside its partial one
SHARDS = [f"big-Q4_0-{n + 1:05d}-of-00003.gguf" for n in range(3)]


@pytest.fixture
def repo(hub, gguf) -> dict[str, bytes]:
    files = {
        "model-Q4_0.gguf": gguf("four"),
        "model-Q8_0.gguf": gguf("eight", n_values=LARGE),
        "mmproj-model-F16.gguf": gguf("eyes", "projector", n_values=2 * LARGE),
    }
    hub.add("org/model", files)
    return files


@pytest.fixture
def cut(hub, store, client) -> Callable[..., None]:
    """`cut("org/model:Q8_0", "model-Q8_0.gguf")`: a pull that is broken off in these files."""

    def cut(reference: str, *names: str) -> None:
        made = plan(reference, client=client, store=store)
        for name in names:
            hub.fail(path=name, cut_after=1_200_000)
            hub.fail(path=name, status=404, times=None)
        with pytest.raises(NetworkError):
            pull(made, client=client, store=store)
        hub.faults.clear()

    return cut


def partials(store) -> dict[str, Entry]:
    return {one.reference: one for one in models_here(store) if one.state == "partial"}


def complete(store) -> list[str]:
    return [one.reference for one in models_here(store) if one.state == "complete"]


def test_it_is_completed_by_its_quantization_beside_another_one(hub, repo, pulled, store, client, cut):
    pulled("org/model:Q4_0")
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    ((reference, entry),) = partials(store).items()
    assert (reference, entry.quantization) == ("org/model:Q8_0", "Q8_0")
    assert entry.problem == "A file of it came in part; localllm repair org/model:Q8_0 fetches the rest."
    assert entries_of(store, "org/model")[0].state == "complete"
    hub.forget()
    (done,) = repair(store, [reference], client=client)
    assert (done.files, done.problem) == (("model-Q8_0.gguf",), "")
    (again,) = [one for one in hub.gets("model-Q8_0.gguf") if one.range.endswith("-") and one.range != "bytes=0-"]
    assert int(again.range.removeprefix("bytes=").split("-")[0]) >= 1 << 20
    assert sorted(complete(store)) == ["org/model:Q4_0", "org/model:Q8_0"] and not partials(store)
    assert entries_of(store, reference)[0].companions == ("mmproj-model-F16.gguf",)


def test_removing_it_takes_nothing_else(repo, pulled, store, cut):
    pulled("org/model:Q4_0")
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    plan = remove(store, ["org/model:Q8_0"])
    assert [one.state for one in plan.models] == ["partial"] and plan.freed_bytes > 1 << 20
    assert complete(store) == ["org/model:Q4_0"] and not partials(store)


def test_what_nobody_can_name_has_a_name_that_means_no_quantization(hub, repo, pulled, store, client):
    pulled("org/model:Q4_0")
    blobs = RepoCache.of("org/model", store.cache).blobs
    eight = hashlib.sha256(repo["model-Q8_0.gguf"]).hexdigest()
    for name in (f"{eight}.12345678.incomplete", "ab" * 32 + ".downloadInProgress"):
        (blobs / name).write_bytes(b"x" * 1000)
    assert list(partials(store)) == ["org/model:partial"]
    (done,) = repair(store, ["org/model:partial"], client=client)
    assert done.files == ("model-Q8_0.gguf",)
    assert remove(store, ["org/model:partial"]).freed_bytes == 1000  # the rest goes with gc
    assert sorted(complete(store)) == ["org/model:Q4_0", "org/model:Q8_0"]


def test_an_update_that_was_broken_off_is_told_by_its_commit(hub, repo, pulled, store, client, cut, gguf):
    first = pulled("org/model:Q8_0")
    commit = hub.add("org/model", {**repo, "model-Q8_0.gguf": gguf("newer", n_values=LARGE)})
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    assert list(partials(store)) == [f"org/model@{commit[:12]}:Q8_0"]
    assert repair(store, [f"org/model@{commit[:12]}:Q8_0"], client=client)[0].files == ("model-Q8_0.gguf",)
    assert [one.commit for one in store.manifests()] == [commit, first.commit]


def test_what_the_branch_has_no_more_is_fetched_at_its_commit(hub, repo, store, client, cut):
    commit = hub.repos["org/model"].branches["main"]
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    hub.add("org/model", {"model-Q4_0.gguf": repo["model-Q4_0.gguf"]})
    assert repair(store, ["org/model:Q8_0"], client=client)[0].files == ("model-Q8_0.gguf",)
    assert complete(store) == [f"org/model@{commit}:Q8_0"]


def test_a_set_of_which_some_came_is_one_row_and_gets_a_record(hub, gguf, pulled, store, client, cut):
    hub.add("org/big", {name: gguf("big", shard=(n, 3), n_values=LARGE) for n, name in enumerate(SHARDS)})
    cut("org/big:Q4_0", SHARDS[1])
    assert list(partials(store)) == ["org/big:Q4_0"]
    assert partials(store)["org/big:Q4_0"].problem.endswith("; localllm repair org/big:Q4_0 fetches the rest.")
    assert set(repair(store, ["org/big:Q4_0"], client=client)[0].files) == set(SHARDS)
    assert complete(store) == ["org/big:Q4_0"] and not partials(store)


def test_two_at_once_and_their_projector_are_told_apart(hub, repo, pulled, store, cut):
    hub.add("org/model", {**repo, "model-Q4_0.gguf": repo["model-Q8_0.gguf"][:-1] + b"x"})
    cut("org/model:Q4_0", "model-Q4_0.gguf", "mmproj-model-F16.gguf")
    assert list(partials(store)) == ["org/model:Q4_0"] and len(partials(store)["org/model:Q4_0"].interrupted.checksums) == 2
    cut("org/model:Q8_0", "model-Q8_0.gguf", "mmproj-model-F16.gguf")
    assert set(partials(store)) == {"org/model:Q4_0", "org/model:Q8_0", "org/model/mmproj-model-F16.gguf"}
    for reference in partials(store):
        assert entries_of(store, reference) == [partials(store)[reference]]
    Aliases().set("half", "org/model:Q8_0")
    assert partials(store)["org/model:Q8_0"].aliases == ("half",)


def test_what_another_program_fetches_now_is_left_to_it(repo, store, cut):
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    place = RepoCache.of("org/model", store.cache)
    (checksum,) = partials(store)["org/model:Q8_0"].interrupted.checksums
    with locked_if_free(place.lock(checksum)):
        assert partials(store)["org/model:Q8_0"].problem == "A file of it came in part; another program is fetching it now."
        with pytest.raises(InUseError, match="another program is fetching"):
            remove(store, ["org/model:Q8_0"])
    assert remove(store, ["org/model:Q8_0"]).freed_bytes > 1 << 20


@pytest.mark.parametrize("wrong", [{"path": "../x.gguf"}, {"commit": "main"}, {"path": 5}, {"checksum": "ab" * 32}, None])
def test_a_record_that_cannot_be_believed_names_nothing(repo, store, cut, wrong):
    cut("org/model:Q8_0", "model-Q8_0.gguf")
    (record,) = RepoCache.of("org/model", store.cache).blobs.glob("*.json")
    record.write_text("[]" if wrong is None else json.dumps(json.loads(record.read_text()) | wrong))
    assert list(partials(store)) == ["org/model:partial"]
