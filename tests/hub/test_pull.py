"""Plans that are carried out: all of a model or nothing of it, and then a record."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from localllm.errors import (
    CorruptFileError,
    DoesNotFitError,
    DownloadCancelledError,
    HubError,
    InvalidRequestError,
    ModelNotFoundError,
    NetworkError,
    OfflineError,
)
from localllm.hub.choose import Machine
from localllm.hub.client import HubClient
from localllm.hub.layout import RepoCache
from localllm.hub.locate import locate
from localllm.hub.manifest import KeptFile
from localllm.hub.memory import ContextOptions
from localllm.hub.plan import PlanOptions
from localllm.hub.planner import aplan, plan
from localllm.hub.progress import CancelToken
from localllm.hub.pull import apull, pull
from localllm.hub.reference import parse_reference
from localllm.hub.store import Store

ROOMY = PlanOptions(context=ContextOptions(n_ctx=256, parallel=1), machine=Machine(free_bytes=1 << 40))
NARROW = PlanOptions(context=ContextOptions(n_ctx=256, parallel=1), machine=Machine(free_bytes=1 << 20))


@pytest.fixture(scope="session")
def files(gguf_files, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pull")
    found = {tag: gguf_files.model(folder / f"m-{tag}.gguf", kind)[0] for tag, kind in (("Q8_0", "Q8_0"), ("Q4_0", "Q4_0"))}
    for path in gguf_files.model(folder / "s-Q8_0.gguf", n_files=3):
        found[path.name] = path
    found["mmproj"] = gguf_files.projector(folder / "mmproj-F16.gguf")
    found["newer"] = gguf_files.model(folder / "newer-Q8_0.gguf", template="{{ messages }}", seed=1)[0]
    return found


@pytest.fixture
def repo(hub, files) -> str:
    hub.add("org/m", {"m-Q8_0.gguf": files["Q8_0"], "m-Q4_0.gguf": files["Q4_0"], "mmproj-F16.gguf": files["mmproj"]})
    return "org/m"


@pytest.fixture
def store(home) -> Store:
    return Store()


def test_a_pull_brings_all_that_belongs_together(client, repo, store, files, home):
    got = pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    assert got.path.read_bytes() == files["Q8_0"].read_bytes() and got.projector.read_bytes() == files["mmproj"].read_bytes()
    assert got.draft is None and got.template_diff == "" and got.plan.fetch_bytes == got.manifest.n_bytes
    assert store.manifests() == [got.manifest] and got.manifest.asked == f"{repo}:Q8_0"
    assert store.find(parse_reference(f"{repo}:Q8_0")) == got.path
    assert got.path.is_relative_to(home / "hub" / "models--org--m" / "snapshots" / got.manifest.commit)


def test_a_plan_is_carried_out_as_it_was_made(hub, client, repo, store, files):
    made = plan(f"{repo}:Q4_0", client=client, options=ROOMY)
    hub.add(repo, {"m-Q4_0.gguf": files["newer"]})
    got = pull(made, client=client)
    assert got.manifest.commit == made.commit and got.path.read_bytes() == files["Q4_0"].read_bytes()


def test_a_second_pull_fetches_nothing_and_repairs_what_was_damaged(hub, client, repo, store, files):
    path = pull(f"{repo}:Q4_0", client=client, options=ROOMY).path
    hub.forget()
    assert pull(f"{repo}:Q4_0", client=client, options=ROOMY).plan.fetch_bytes == 0
    assert not hub.gets() and len(store.manifests()) == 1
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.resolve().write_bytes(data)
    pull(f"{repo}:Q4_0", client=client, options=ROOMY)
    assert path.read_bytes() == files["Q4_0"].read_bytes()


def test_half_of_a_set_is_no_model(hub, client, store, files):
    names = [name for name in files if name.startswith("s-")]
    hub.add("org/s", {name: files[name] for name in names})
    hub.fail(path=names[1], times=None, status=503)
    with pytest.raises(NetworkError):
        pull("org/s", client=client, options=ROOMY)
    assert store.manifests() == [] and store.find(parse_reference("org/s")) is None
    hub.faults.clear()
    hub.forget()
    got = pull("org/s", client=client, options=ROOMY)
    assert got.path.name == names[0] and len(got.manifest.paths("model")) == 3


def test_a_failed_pull_leaves_the_older_version_in_its_place(hub, client, repo, store, files):
    old = pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    hub.add(repo, {"m-Q8_0.gguf": files["newer"]})
    hub.fail(flip_at=100_000, times=None)
    with pytest.raises(CorruptFileError):
        pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    assert store.find(parse_reference(f"{repo}:Q8_0")) == old.path
    hub.faults.clear()
    new = pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    assert store.find(parse_reference(f"{repo}:Q8_0")) == new.path != old.path
    assert old.path.exists() and len(store.manifests()) == 2, "the older one stays until it is removed"


def test_a_changed_template_is_shown(hub, client, repo, files, caplog):
    pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    hub.add(repo, {"m-Q8_0.gguf": files["newer"]})
    got = pull(f"{repo}:Q8_0", client=client, options=ROOMY)
    assert "+{{ messages }}" in got.template_diff and "-{% for m in messages %}" in got.template_diff
    assert "chat template" in caplog.text
    assert pull(f"{repo}:Q8_0", client=client, options=ROOMY).template_diff == ""


def test_what_does_not_fit_is_refused_before_a_byte_is_fetched(hub, client, repo, store):
    for reference in (repo, f"{repo}:Q4_0"):
        with pytest.raises(DoesNotFitError, match="force=True") as caught:
            pull(reference, client=client, options=NARROW)
        assert caught.value.needed_bytes > caught.value.free_bytes == 1 << 20
    assert store.manifests() == [] and not RepoCache.of(repo).folder.exists()
    got = pull(f"{repo}:Q4_0", client=client, options=NARROW, force=True)
    assert got.path.exists() and got.plan.warnings


def test_a_smaller_quantization_that_fits_is_named(client, repo):
    needed = {one.tag: one.needed_bytes for one in plan(f"{repo}:Q8_0", client=client, options=ROOMY).alternatives}
    between = PlanOptions(context=ROOMY.context, machine=Machine(free_bytes=(needed["Q8_0"] + needed["Q4_0"]) // 2))
    with pytest.raises(DoesNotFitError, match="take Q4_0"):
        pull(f"{repo}:Q8_0", client=client, options=between)


def test_a_store_that_cannot_be_written_is_told_before_a_byte_is_fetched(hub, client, repo, home, tmp_path):
    (tmp_path / "file").write_text("x")
    hub.forget()
    with pytest.raises(HubError, match="LOCALLLM_HOME"):
        pull(f"{repo}:Q4_0", client=client, store=Store(tmp_path / "file" / "models"), options=ROOMY)
    assert all(entry.range for entry in hub.gets()), "headers for the plan, and nothing else"
    assert not RepoCache.of(repo).folder.exists()


def test_what_is_fetched_must_be_what_it_was_taken_for(hub, client, repo, store, files):
    """A server that lists other contents than it gives headers of."""
    made = plan(f"{repo}:Q8_0", client=client, options=ROOMY)
    data = b"GGUF" + bytes(4096)
    commit = hub.add("org/bad", {"m-Q8_0.gguf": data})
    listing = client.listing("org/bad")
    bad = dataclasses.replace(made, repo="org/bad", commit=commit, files=(KeptFile("model", listing.files[0]),))
    with pytest.raises(CorruptFileError, match="cannot be used as model"):
        pull(bad, client=client)
    assert store.manifests() == []


def test_cancelled_and_continued(hub, client, repo, store, files):
    cancel = CancelToken()

    def stop(event) -> None:
        if event.phase == "downloading" and event.done_bytes > 0:
            cancel.cancel()

    hub.fail(path="m-Q8_0.gguf", times=None, chunk_bytes=65536, delay_seconds=0.01)
    with pytest.raises(DownloadCancelledError):
        pull(f"{repo}:Q8_0", client=client, options=ROOMY, progress=stop, cancel=cancel)
    assert store.manifests() == []
    hub.faults.clear()
    assert pull(f"{repo}:Q8_0", client=client, options=ROOMY).path.exists()


def test_another_server_has_records_of_its_own(hub, hub_server, client, repo, store, files):
    pull(f"{repo}:Q4_0", client=client, options=ROOMY)
    with hub_server.HubServer() as other:
        other.add(repo, {"m-Q4_0.gguf": files["newer"]})
        reference = f"{other.endpoint}/{repo}:Q4_0"
        got = pull(reference, options=ROOMY)
        assert got.path.read_bytes() == files["newer"].read_bytes() and got.manifest.endpoint == other.endpoint
    assert store.find(parse_reference(got.manifest.reference)) == got.path
    assert store.find(parse_reference(f"{repo}:Q4_0")).read_bytes() == files["Q4_0"].read_bytes()


def test_twins_for_loops(hub, repo, home):
    async def both() -> None:
        made = await aplan(f"{repo}:Q4_0", options=ROOMY)
        got = await apull(made)
        assert got.path.exists()
        hub.fail(path="m-Q8_0.gguf", times=None, chunk_bytes=4096, delay_seconds=0.05)
        task = asyncio.ensure_future(apull(f"{repo}:Q8_0", options=ROOMY))
        await asyncio.to_thread(hub.wait_for, lambda: hub.gets("m-Q8_0.gguf"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(both())
    assert [one.tag for one in Store().manifests()] == ["Q4_0"]


# ---- the file that a reference means


def test_locate_fetches_once(hub, repo, home):
    path = locate(f"{repo}:Q4_0")
    hub.forget()
    assert locate(f"{repo}:Q4_0") == locate(f"{repo}:Q4_0", offline=True) == path and not hub.log
    assert locate(path) == path and not hub.log


def test_locate_says_why_it_does_not_fetch(hub, repo, home, monkeypatch):
    with pytest.raises(ModelNotFoundError, match="localllm pull org/m:Q4_0"):
        locate(f"{repo}:Q4_0", download=False)
    with pytest.raises(OfflineError, match="offline mode is on"):
        locate(f"{repo}:Q4_0", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError):
        locate(f"{repo}:Q4_0")
    assert not hub.log


@pytest.mark.parametrize("token", [None, "hf_mine"])
def test_locate_asks_the_network_if_it_is_told_to(hub, repo, home, monkeypatch, token):
    hub.users["hf_mine"] = "me"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert locate(f"{repo}:Q4_0", offline=False, token=token).is_file() and hub.gets()


def test_options_are_for_a_reference(client, repo, store):
    made = plan(f"{repo}:Q4_0", client=client, store=store, options=ROOMY)
    with pytest.raises(InvalidRequestError, match="^options:"):
        pull(made, client=client, store=store, options=ROOMY)


def test_tokens_stay_out_of_records(hub, home, files, monkeypatch):
    hub.users["hf_secret"] = "me"
    hub.add("org/gated", {"m-Q4_0.gguf": files["Q4_0"]}, private=True, readers={"hf_secret"})
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    got = pull("org/gated", options=ROOMY)
    written = [path.read_bytes() for path in Store().folder.rglob("*") if path.is_file()]
    assert got.path.exists() and not any(b"hf_secret" in data for data in written)
    assert "hf_secret" not in json.dumps(got.plan.to_json())


def test_a_token_goes_to_the_endpoint_of_the_environment_only(hub, hub_server, home, files, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.users["hf_secret"] = "me"
    with hub_server.HubServer() as other:
        for server in (hub, other):
            server.add("org/m", {"m-Q4_0.gguf": files["Q4_0"]})
        pull(f"{other.endpoint}/org/m:Q4_0", options=ROOMY)
        pull(f"{hub.endpoint}/org/m:Q4_0", options=ROOMY)
        assert not any(entry.authorization for entry in other.log)
    assert {entry.authorization for entry in hub.log if entry.origin == "api"} == {"Bearer hf_secret"}


def test_the_client_of_a_pull_may_be_offline(client, repo, store):
    pull(f"{repo}:Q4_0", client=client, options=ROOMY)
    with HubClient(offline=True) as offline:
        assert pull(f"{repo}:Q4_0", client=offline, options=ROOMY).plan.fetch_bytes == 0
        with pytest.raises(OfflineError):
            pull(f"{repo}:Q8_0", client=offline, options=ROOMY)
