"""The command line as users drive it: real processes, from nothing to an answer, and every way in which that goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localllm.hub.store import Store

QUESTION = ("What is the capital of France?", "--system", "You are a helpful assistant.", "-t", "0", "-n", "24")


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "localllm", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return ended(start(*arguments, **environment))


@pytest.fixture(scope="session")
def files(gguf_files, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("commands")
    found = {
        tag: gguf_files.model(folder / f"m-{tag}.gguf", kind, n_layers=48)[0]
        for tag, kind in (("Q8_0", "Q8_0"), ("Q2_K", "Q2_K"))
    }
    for path in gguf_files.model(folder / "s-Q4_0.gguf", "Q4_0", n_files=3):
        found[path.name] = path
    return found


@pytest.fixture
def repo(hub, files) -> str:
    hub.add("org/m", {"m-Q8_0.gguf": files["Q8_0"], "m-Q2_K.gguf": files["Q2_K"], "README.md": b"hello"})
    return "org/m"


def test_from_nothing_to_an_answer_and_again_offline(hub, home, smollm2):
    """A whole model, a name for it, a set of files: each answers, and then needs no network."""
    hub.add("org/smol-GGUF", {"SmolLM2-135M-Instruct-Q4_1.gguf": smollm2})
    code, first, err = run("run", "org/smol-GGUF:Q4_1", *QUESTION)
    assert code == 0 and "Paris" in first and err == ""
    hub.forget()
    assert run("run", "org/smol-GGUF:Q4_1", *QUESTION)[1] == first
    assert run("run", "org/smol-GGUF", *QUESTION, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")[1] == first
    assert not hub.log


def test_a_set_of_files_answers_as_the_whole_does(hub, home, smollm2, tmp_path, split):
    hub.add("org/smol-GGUF", {f"Q4_1/{path.name}": path for path in split(smollm2, tmp_path / "smol-Q4_1", 3)})
    code, out, _ = run("run", "org/smol-GGUF:Q4_1", *QUESTION)
    assert code == 0 and "Paris" in out


def test_a_plan_in_a_terminal_and_for_programs(hub, home, repo):
    code, out, err = run("plan", repo)
    assert code == 0 and err == ""
    for word in ("Q8_0", "Q2_K", "bits/weight", "fits", "to fetch", "apache-2.0", "no projector"):
        assert word in out
    made = json.loads(run("plan", f"{repo}:Q2_K", "--json")[1])
    assert made["tag"] == "Q2_K" and made["fits"] is True and not (home / "hub").exists()
    assert json.loads(run("pull", f"{repo}:Q2_K", "--dry-run", "--json")[1])["tag"] == "Q2_K" and not (home / "hub").exists()


def test_a_pull_prints_where_the_model_is_and_nothing_else(hub, home, repo):
    code, out, err = run("pull", f"{repo}:Q2_K")
    assert (code, err) == (0, "") and Path(out.strip()).is_file()
    data = json.loads(run("pull", f"{repo}:Q2_K", "--json")[1])
    assert data["path"] == out.strip() and data["fetched_bytes"] == 0 and data["reference"] == "org/m:Q2_K"


def test_facts_of_a_model_that_is_not_here_cost_its_header(hub, home, repo, files):
    facts = json.loads(run("info", f"{repo}:Q8_0", "--json")[1])
    assert facts["quantization"] == "Q8_0" and facts["file_bytes"] == files["Q8_0"].stat().st_size
    assert not (home / "hub").exists() and all(entry.range for entry in hub.gets())


# What a command line brings, the exit code, a part of the message. "{e}" is the endpoint.
REFUSED = {
    "no such repository": (("pull", "org/none"), 10, "no repository 'org/none'"),
    "no such quantization": (("pull", "org/m:Q5_K_M"), 10, "Q8_0"),
    "no such file": (("pull", "org/m/x.gguf"), 10, "no model 'x.gguf'; there is Q8_0"),
    "no such revision": (("pull", "org/m@v7"), 10, "v7"),
    "gated": (("pull", "org/gated:Q8_0"), 11, "org/gated"),
    "private": (("pull", "org/private:Q8_0"), 10, "HF_TOKEN"),
    "lacks shards": (("pull", "org/lacks:Q4_0"), 17, "number 2"),
    "no room": (("pull", "org/m:Q8_0", "--cache-dir", "{small}"), 12, "free"),
    "no memory": (("pull", "org/m:Q8_0", "--n-ctx", "100000000"), 13, "--force"),
    "offline": (("pull", "org/m:Q8_0", "--offline"), 16, "offline"),
    "not a reference": (("pull", "org/m:what?"), 2, "what?"),
    "on this machine": (("pull", "smollm2"), 2, "on this machine already"),
    "contradiction": (("plan", "org/m", "--mmproj", "x.gguf", "--no-mmproj"), 2, "exclude"),
    "no rate": (("pull", "org/m", "--rate-limit", "fast"), 2, "fast"),
}


@pytest.fixture
def small_disk(tmp_path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("what", REFUSED)
def test_every_refusal_has_its_exit_code_and_says_what_to_do(hub, home, repo, files, what, request):
    arguments, expected, says = REFUSED[what]
    hub.add("org/gated", {"m-Q8_0.gguf": files["Q8_0"]}, gated=True)
    hub.add("org/private", {"m-Q8_0.gguf": files["Q8_0"]}, private=True)
    hub.add("org/lacks", {name: path for name, path in files.items() if name.startswith("s-") and "00002" not in name})
    if "{small}" in arguments:
        arguments = (*arguments[:-1], str(request.getfixturevalue("small_disk")))
    code, out, err = run(*arguments)
    assert (code, out) == (expected, ""), err
    assert says in err and err.startswith("localllm: ") and "Traceback" not in err
    assert Store().manifests() == []


def test_a_damaged_download_and_a_dead_server_have_theirs(hub, home, repo):
    hub.fail(path="m-Q2_K.gguf", flip_at=3_000_000, times=None)
    assert run("pull", f"{repo}:Q2_K")[0] == 14
    assert run("pull", f"{repo}:Q2_K", HF_ENDPOINT="http://127.0.0.1:9")[0] == 15


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)])
def test_what_was_interrupted_goes_on_where_it_ended(hub, home, repo, files, how, code):
    size = files["Q8_0"].stat().st_size
    hub.fail(path="m-Q8_0.gguf", times=None, chunk_bytes=128 << 10, delay_seconds=0.02)
    process = start("pull", f"{repo}:Q8_0")
    partial = home / "hub/models--org--m/blobs"
    until = time.monotonic() + 30
    while not any(path.stat().st_size > 2 << 20 for path in partial.glob("*.incomplete")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(how)
    ended_code, out, err = ended(process)
    assert (ended_code, out) == (code, ""), err
    assert Store().manifests() == []
    hub.faults.clear()
    hub.forget()
    assert run("pull", f"{repo}:Q8_0")[0] == 0
    whole = [entry for entry in hub.gets("m-Q8_0.gguf") if entry.range.endswith("-")]
    assert len(whole) == 1 and int(whole[0].range.removeprefix("bytes=").split("-")[0]) >= 1 << 20
    assert Store().manifests()[0].first("model").stat().st_size == size


def test_many_at_once_fetch_once(hub, home, repo):
    hub.fail(path="m-Q8_0.gguf", times=None, chunk_bytes=256 << 10, delay_seconds=0.01)
    results = [ended(process) for process in [start("pull", f"{repo}:Q8_0") for _ in range(4)]]
    assert {result[0] for result in results} == {0} and len({result[1] for result in results}) == 1
    assert len([entry for entry in hub.gets("m-Q8_0.gguf") if not entry.range or entry.range == "bytes=0-"]) == 1
    assert len(Store().manifests()) == 1


def test_python_fetches_at_the_first_use(hub, home, smollm2):
    from localllm import LocalModel

    hub.add("org/smol-GGUF", {"SmolLM2-135M-Instruct-Q4_1.gguf": smollm2})
    model = LocalModel("org/smol-GGUF:Q4_1", n_ctx=512)
    assert not hub.log
    with model:
        assert "Paris" in model.chat(
            [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": QUESTION[0]}],
            temperature=0, max_tokens=24,
        ).message.content  # fmt: skip
    assert model.path.is_relative_to(home)


def test_a_model_that_a_program_has_loaded_is_not_removed(hub, home, smollm2):
    hub.add("org/smol-GGUF", {"SmolLM2-135M-Instruct-Q4_1.gguf": smollm2})
    program = (
        "from localllm import LocalModel\n"
        "model = LocalModel('org/smol-GGUF:Q4_1', n_ctx=256)\n"
        "model.engine\n"
        "print('loaded', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout.readline() == "loaded\n"
        (loaded, *_) = json.loads(run("ps", "--json")[1])
        assert loaded["pid"] == user.pid and loaded["reference"] == "org/smol-GGUF:Q4_1"
        code, _, err = run("rm", "org/smol-GGUF:Q4_1", "--yes")
        assert code != 0 and "use" in err and len(Store().manifests()) == 1
        user.communicate("\n", timeout=30)
    assert run("rm", "org/smol-GGUF:Q4_1", "--yes")[0] == 0 and Store().manifests() == []
    assert json.loads(run("ps", "--json")[1]) == []
