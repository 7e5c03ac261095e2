"""What would be fetched, why, and at what cost: asked from a Hub, and from what is here."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from localllm.errors import (
    IncompleteSetError,
    InvalidRequestError,
    OfflineError,
    QuantNotFoundError,
    ReferenceFormatError,
    RevisionNotFoundError,
)
from localllm.hub.catalog import Aliases
from localllm.hub.choose import Machine
from localllm.hub.client import HubClient
from localllm.hub.memory import ContextOptions
from localllm.hub.plan import Plan, PlanOptions
from localllm.hub.planner import plan
from localllm.hub.pull import pull
from localllm.hub.speed import Rates, TypeRate

MIB = 1 << 20
SMALL = ContextOptions(n_ctx=256, parallel=1, kept_sequences=0, n_batch=64, n_ubatch=64)
# Types of which a file of this name is made, and its bits per weight.
QUANTS = {"F16": "F16", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q5_K_M": "Q5_K", "Q4_K_M": "Q4_K", "Q4_0": "Q4_0", "Q2_K": "Q2_K"}
ROOMY = Machine(free_bytes=1 << 40)


def options(machine: Machine = ROOMY, **others) -> PlanOptions:
    return PlanOptions(context=SMALL, machine=machine, **others)


@pytest.fixture(scope="session")
def files(gguf_files, tmp_path_factory) -> dict[str, Path]:
    """A small model as many quantizations, by their tags, and what could go with it."""
    folder = tmp_path_factory.mktemp("repo")
    found = {tag: gguf_files.model(folder / f"tiny-{tag}.gguf", kind)[0] for tag, kind in QUANTS.items()}
    for number, path in enumerate(gguf_files.model(folder / "set-Q8_0.gguf", n_files=3), 1):
        found[f"shard{number}"] = path
    found["mmproj"] = gguf_files.projector(folder / "mmproj-F16.gguf")
    found["mmproj-bf16"] = gguf_files.projector(folder / "mmproj-BF16.gguf", quant="BF16")
    found["mmproj-wide"] = gguf_files.projector(folder / "mmproj-wide.gguf", width=512)
    found["draft"] = gguf_files.model(folder / "mtp-tiny.gguf", n_layers=1)[0]
    found["draft-other"] = gguf_files.model(folder / "mtp-other.gguf", n_layers=1, tokens=["a", "b", "c", "d"] * 64)[0]
    found["adapter"] = gguf_files.adapter(folder / "lora.gguf")
    return found


@pytest.fixture
def repo(hub, files) -> str:
    hub.add("org/tiny-GGUF", {f"tiny-{tag}.gguf": files[tag] for tag in QUANTS})
    return "org/tiny-GGUF"


def test_a_plan_reads_lists_and_headers_only(hub, client, repo, home):
    made = plan(repo, client=client, options=options())
    assert (made.repo, made.revision, made.tag, made.fits) == (repo, "main", "Q8_0", True)
    assert made.fetch_bytes == made.n_bytes == made.files[0].file.n_bytes and made.present_bytes == 0
    assert made.licence == "apache-2.0" and "Q8_0 is the best that fits" in made.reason
    assert not (home / "hub").exists() and not home.parent.joinpath("localllm").exists()
    assert len(hub.gets(origin="api")) == 2, "the commit, and the list"
    assert {entry.file for entry in hub.gets()} == {"tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"}, (
        "the usual type, then what it made likely"
    )
    assert all(entry.range for entry in hub.gets())


def test_thirty_quantizations_cost_no_more_requests_than_few(hub, client, repo, files):
    thirty = {f"v{at}/tiny{at}-{tag}.gguf": files[tag] for tag in QUANTS for at in range(5)}
    hub.add("org/thirty-GGUF", {**thirty, "tiny-Q4_0.gguf": files["Q4_0"]})
    for reference in (f"{repo}:Q4_0", "org/thirty-GGUF/tiny-Q4_0.gguf"):
        hub.forget()
        assert plan(reference, client=client, options=options()).tag == "Q4_0"
        assert len(hub.log) <= 5


@pytest.mark.parametrize(
    ("free", "tag", "fits"),
    [
        (1 << 40, "Q8_0", True),
        (3.2 * MIB, "Q8_0", True),
        (2.9 * MIB, "Q6_K", True),
        (2.4 * MIB, "Q5_K_M", True),
        (0, "Q2_K", False),
    ],
)
def test_the_best_that_fits_is_chosen_by_what_the_header_tells(client, repo, free, tag, fits):
    made = plan(repo, client=client, options=options(Machine(free_bytes=int(free))))
    assert (made.tag, made.fits) == (tag, fits), [(one.tag, one.needed_bytes) for one in made.alternatives]
    for one in made.alternatives:
        assert one.fits == (one.needed_bytes <= free)
    chosen = next(one for one in made.alternatives if one.chosen)
    assert chosen.tag == tag and chosen.needed_bytes == made.memory.total_bytes
    assert bool(made.warnings) != fits


def test_estimates_of_what_was_not_read_are_near(client, repo, files):
    made = {one.tag: one for one in plan(f"{repo}:Q4_0", client=client, options=options()).alternatives}
    for tag in ("F16", "Q8_0", "Q2_K"):
        exact = plan(f"{repo}:{tag}", client=client, options=options()).memory.total_bytes
        assert made[tag].needed_bytes == pytest.approx(exact, rel=0.02)


def test_unknown_memory_means_the_usual_type(client, repo):
    made = plan(repo, client=client, options=options(Machine(free_bytes=None)))
    assert (made.tag, made.fits) == ("Q4_K_M", None)


@pytest.mark.parametrize("reference", ["org/tiny-GGUF:q5_k_m", "org/tiny-GGUF/tiny-Q5_K_M.gguf", "hf://org/tiny-GGUF:Q5_K_M"])
def test_what_is_named_is_taken(client, repo, reference):
    assert plan(reference, client=client, options=options()).tag == "Q5_K_M"


@pytest.mark.parametrize(
    ("reference", "error", "says"),
    [
        ("org/tiny-GGUF:F32", QuantNotFoundError, "Q5_K_M"),
        ("org/tiny-GGUF:4_1", ReferenceFormatError, "quantization"),
        ("org/tiny-GGUF/no.gguf", QuantNotFoundError, "no model 'no.gguf'"),
    ],
)
def test_what_is_not_there_is_an_error_that_lists_what_is(client, repo, reference, error, says):
    with pytest.raises(error, match=says):
        plan(reference, client=client, options=options())


def test_revisions_are_kept_apart(hub, client, files):
    first = hub.add("org/m", {"m-Q8_0.gguf": files["Q8_0"]})
    hub.add("org/m", {"m-Q4_0.gguf": files["Q4_0"]})
    hub.add("org/m", {"m-F16.gguf": files["F16"]}, branch="refs/pr/1")
    assert plan("org/m", client=client, options=options()).tag == "Q4_0"
    assert plan(f"org/m@{first}", client=client, options=options()).tag == "Q8_0"
    assert plan("org/m@refs/pr/1", client=client, options=options()).tag == "F16"
    with pytest.raises(RevisionNotFoundError):
        plan("org/m@v9", client=client, options=options())


def test_a_renamed_repository_is_known_by_its_present_name(hub, client, repo):
    hub.rename(repo, "org/new-GGUF")
    assert plan(f"{repo}:Q4_0", client=client, options=options()).repo == "org/new-GGUF"


def test_names_stand_for_references(client, repo):
    Aliases().set("mine", f"{repo}:Q4_0")
    assert plan("mine", client=client, options=options()).tag == "Q4_0"
    assert plan("mine:Q6_K", client=client, options=options()).tag == "Q6_K"


def test_catalog_names_know_projector_and_licence(hub, client, files):
    hub.add("ggml-org/gemma-3-4b-it-GGUF", {"gemma-Q4_K_M.gguf": files["Q4_K_M"], "mmproj-model-f16.gguf": files["mmproj"],
                                            "mmproj-BF16.gguf": files["mmproj-bf16"]})  # fmt: skip
    made = plan("gemma-3-4b", client=client, options=options())
    assert [kept.file.path for kept in made.files] == ["gemma-Q4_K_M.gguf", "mmproj-model-f16.gguf"]


def test_files_on_this_machine_need_no_plan(client, files):
    for reference in (files["Q8_0"], "smollm2"):
        with pytest.raises(InvalidRequestError, match="on this machine already"):
            plan(reference, client=client)


def test_shards_are_one_model_and_all_of_them_are_needed(hub, client, files):
    whole = {f"set/set-Q8_0-{n:05d}-of-00003.gguf": files[f"shard{n}"] for n in (1, 2, 3)}
    hub.add("org/set", whole)
    made = plan("org/set", client=client, options=options())
    assert [kept.role for kept in made.files] == ["model"] * 3 and made.header.n_files == 3
    assert made.memory.weights_bytes == sum(tensor.n_bytes for tensor in made.header.tensors)
    hub.add("org/set", {path: data for path, data in whole.items() if "00002" not in path})
    for reference in ("org/set:Q8_0", "org/set/set/set-Q8_0-00001-of-00003.gguf"):
        with pytest.raises(IncompleteSetError, match="number 2"):
            plan(reference, client=client, options=options())
    with pytest.raises(QuantNotFoundError, match="no complete"):
        plan("org/set", client=client, options=options())


def taken(made: Plan) -> dict[str, str]:
    return {kept.role: kept.file.path for kept in made.files}


def test_companions_come_along_if_they_go_with_the_model(hub, client, files):
    hub.add("org/m", {
        "Q8_0/m-Q8_0.gguf": files["Q8_0"], "mmproj-F16.gguf": files["mmproj"], "mmproj-BF16.gguf": files["mmproj-bf16"],
        "mtp-m.gguf": files["draft"], "lora-m.gguf": files["adapter"],
    })  # fmt: skip
    made = plan("org/m:Q8_0", client=client, options=options())
    assert taken(made) == {"model": "Q8_0/m-Q8_0.gguf", "projector": "mmproj-F16.gguf", "draft": "mtp-m.gguf"}
    assert made.adapters == ("lora-m.gguf",) and made.memory.companions_bytes > 0
    gpu = Machine(free_bytes=1 << 40, on_cpu=False)
    assert taken(plan("org/m:Q8_0", client=client, options=options(gpu)))["projector"] == "mmproj-BF16.gguf"
    alone = plan("org/m:Q8_0", client=client, options=options(projector=False, draft=False))
    assert taken(alone) == {"model": "Q8_0/m-Q8_0.gguf"} and alone.memory.companions_bytes == 0
    named = plan("org/m:Q8_0", client=client, options=options(projector="mmproj-BF16.gguf"))
    assert taken(named)["projector"] == "mmproj-BF16.gguf"
    with pytest.raises(QuantNotFoundError, match="mmproj-F16"):
        plan("org/m:Q8_0", client=client, options=options(projector="mmproj-Q8_0.gguf"))


def test_what_does_not_go_with_the_model_stays_and_the_reason_is_told(hub, client, files):
    hub.add("org/m", {"m-Q8_0.gguf": files["Q8_0"], "mmproj-m.gguf": files["mmproj-wide"], "mtp-m.gguf": files["draft-other"],
                      "mmproj-bad.gguf": b"GGUF" + bytes(60)})  # fmt: skip
    made = plan("org/m", client=client, options=options())
    assert taken(made) == {"model": "m-Q8_0.gguf"}
    assert "gives 512 values, the model takes 256" in made.companions[0] and "vocabulary" in made.companions[1]
    assert any("mmproj-bad.gguf is not taken along" in warning for warning in made.warnings)
    with pytest.raises(QuantNotFoundError, match="does not go with"):
        plan("org/m", client=client, options=options(projector="mmproj-m.gguf"))


def test_repositories_without_models_say_what_they_hold(hub, client, files):
    hub.add("org/text", {"README.md": b"x", "model.safetensors": b"x"})
    hub.add("org/projectors", {"mmproj-F16.gguf": files["mmproj"]})
    with pytest.raises(QuantNotFoundError, match="-GGUF"):
        plan("org/text", client=client)
    with pytest.raises(QuantNotFoundError, match="only what goes with one"):
        plan("org/projectors", client=client)


def test_a_header_tells_more_than_a_name(hub, client, files):
    """A LoRA whose name looks like a model's was taken for one by llama.cpp's own downloader."""
    hub.add("org/m", {"m-adapter-Q4_K_M.gguf": files["adapter"], "m-Q4_0.gguf": files["Q4_0"]})
    made = plan("org/m", client=client, options=options())
    assert taken(made) == {"model": "m-Q4_0.gguf"} and made.adapters == ("m-adapter-Q4_K_M.gguf",)
    hub.add("org/n", {"n-Q4_K_M.gguf": files["adapter"]})
    with pytest.raises(QuantNotFoundError, match="no language model, but an? adapter"):
        plan("org/n", client=client, options=options())


def test_plain_data_of_a_plan(client, repo):
    data = json.loads(json.dumps(plan(f"{repo}:Q4_0", client=client, options=options()).to_json()))
    assert data["tag"] == "Q4_0" and data["fetch_bytes"] == data["n_bytes"] > 0
    assert len(data["alternatives"]) == len(QUANTS) and data["memory"]["total_bytes"] > 0


# ---- by speed and place


def test_speeds_are_told_where_rates_are_known(client, repo):
    """Q4_0 is repacked and Q4_K is not, so of about the same size the faster one is taken."""
    types = [TypeRate(name, name == "Q4_0", 7e9 if name == "Q4_0" else 2e9, 1e9) for name in ("Q8_0", "Q4_0", "Q4_K", "F32")]
    rates = Rates(tuple(types), 1e-6, 1e-9, 1e-9, 1e-9, n_threads=2)
    machine = Machine(free_bytes=2_200_000, repacked=frozenset({"Q4_0"}))
    made = plan(repo, client=client, options=options(machine, rates=rates))
    speeds = {one.tag: one.speed for one in made.alternatives}
    assert made.tag == "Q4_0" and "repacks" in made.reason
    assert speeds["Q4_0"].prefill_tokens_per_second > 2 * speeds["Q4_K_M"].prefill_tokens_per_second
    assert speeds["Q2_K"].decode_tokens_per_second > speeds["Q8_0"].decode_tokens_per_second
    assert speeds["Q2_K"].assumed and not speeds["Q4_0"].assumed
    exact = plan(f"{repo}:Q8_0", client=client, options=options(machine, rates=rates))
    read = next(one.speed for one in exact.alternatives if one.chosen)
    assert speeds["Q8_0"].prefill_tokens_per_second == pytest.approx(read.prefill_tokens_per_second, rel=0.02)
    assert json.loads(json.dumps(exact.to_json()))["alternatives"][0]["speed"]["n_tokens"] == 512


@pytest.mark.parametrize(
    ("gpu", "free", "tag", "fits", "warned"),
    [
        (4 * MIB, 1 << 40, "Q8_0", True, False),
        (2_500_000, 1 << 40, "Q5_K_M", True, False),  # a smaller one that the GPU holds whole, before a larger one in parts
        (1 << 20, 3 * MIB, "Q8_0", True, True),
        (1_100_000, 1_100_000, "Q4_K_M", True, True),
        (1 << 10, 1 << 10, "Q2_K", False, True),
    ],
)
def test_what_a_gpu_holds_as_a_whole_comes_first(client, repo, gpu, free, tag, fits, warned):
    made = plan(repo, client=client, options=options(Machine(int(free), on_cpu=False, gpu_bytes=int(gpu))))
    assert (made.tag, made.fits, bool(made.warnings)) == (tag, fits, warned), made.alternatives
    assert made.free_bytes == int(gpu) + int(free) and all(one.speed is None for one in made.alternatives)


# ---- from what is here


@pytest.fixture
def no_sockets(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_offline_is_planned_from_records_although_main_has_moved(hub, client, repo, files, no_sockets_later):
    pull(f"{repo}:Q4_0", client=client, options=options())
    hub.add(repo, {"tiny-Q8_0.gguf": files["Q8_0"]})
    pull(f"{repo}:Q8_0", client=client, options=options())
    no_sockets_later()
    with HubClient(offline=True) as offline:
        for tag in ("Q4_0", "Q8_0"):
            made = plan(f"{repo}:{tag}", client=offline, options=options())
            assert (made.tag, made.fetch_bytes) == (tag, 0)
        with pytest.raises(OfflineError, match="Q6_K"):
            plan(f"{repo}:Q6_K", client=offline, options=options())


@pytest.fixture
def no_sockets_later(request):
    return lambda: request.getfixturevalue("no_sockets")


def test_offline_is_planned_from_what_another_program_brought(hub, repo, home, no_sockets_later, monkeypatch):
    from huggingface_hub import hf_hub_download

    hf_hub_download(repo, "tiny-Q4_0.gguf", endpoint=hub.endpoint, cache_dir=home / "hub")
    no_sockets_later()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = plan(f"{repo}:Q4_0", options=options())
    assert (made.tag, made.fetch_bytes, made.repo) == ("Q4_0", 0, repo)


def test_what_is_here_already_is_not_counted_as_to_be_fetched(hub, client, repo):
    pull(f"{repo}:Q4_0", client=client, options=options())
    hub.forget()
    made = plan(f"{repo}:Q4_0", client=client, options=options())
    assert made.fetch_bytes == 0 and not hub.gets(), "the header is read from the cache"
