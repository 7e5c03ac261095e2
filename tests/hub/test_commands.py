"""The command line as users drive it: real processes, from nothing to an answer, and every way in which that goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.hub.store import Store

QUESTION = ("What is the capital of France?", "--system", "You are a helpful assistant.", "-t", "0", "-n", "24")


def start(*arguments: str, stderr: int = subprocess.PIPE, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "localllm", *arguments],
        stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **environment},
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


# The command itself, but that it measures a few types instead of all, and tells when it does.
FEW_TYPES = """
from localllm import machine
from localllm.cli.entry import main
from localllm.native.library import Native
call = Native.json_call
def few(self, function, *arguments, **options):
    found = call(self, function, *arguments, **options)
    if function == "lm_speed_matrix":
        print("measured", flush=True)
    return [one for one in found if one["type"] in ("F32", "Q8_0", "Q2_K")] if function == "lm_speed_types" else found
Native.json_call = few
machine._ROUNDS = 1
main()
"""


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


def test_a_plan_measures_this_machine_if_asked_to_and_once(hub, home, repo):
    command = [sys.executable, "-c", FEW_TYPES, "plan", repo, "--speed"]
    first, again = (subprocess.run(command, capture_output=True, text=True, timeout=120) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0) and first.stdout.startswith("measured\n"), first.stderr
    assert "tokens/s" in again.stdout and "measured" not in again.stdout


def test_a_plan_in_a_terminal_and_for_programs(hub, home, repo):
    code, out, err = run("plan", repo)
    assert code == 0 and err == ""
    for word in ("Q8_0", "Q2_K", "bits/weight", "fits", "to fetch", "apache-2.0", "no projector"):
        assert word in out
    made = json.loads(run("plan", f"{repo}:Q2_K", "--json")[1])
    assert made["tag"] == "Q2_K" and made["fits"] is True and not (home / "hub").exists()
    assert json.loads(run("pull", f"{repo}:Q2_K", "--dry-run", "--json")[1])["tag"] == "Q2_K" and not (home / "hub").exists()


def test_a_plan_tells_what_is_estimated_what_is_here_and_that_the_disk_is_too_small(hub, home, repo):
    assert run("pull", f"{repo}:Q2_K")[0] == 0
    made = json.loads(run("plan", f"{repo}:Q8_0", "--json")[1])
    told = {one["tag"]: (one["is_estimate"], one["is_here"]) for one in made["alternatives"]}
    assert told == {"Q8_0": (False, False), "Q2_K": (True, True)}
    lines = {line.split()[0]: line for line in run("plan", f"{repo}:Q8_0")[1].splitlines() if "fits" in line}
    assert "~" not in lines["*"] and lines["Q2_K"].count("~") >= 2 and lines["Q2_K"].rstrip().endswith("fits, here")
    tree = hub.repos[repo].commits[hub.repos[repo].branches["main"]]
    tree["m-Q8_0.gguf"] = dataclasses.replace(tree["m-Q8_0.gguf"], n_bytes=1 << 50)
    assert "NO ROOM ON THE DISK" in run("plan", f"{repo}:Q8_0")[1]
    code, _, err = run("pull", f"{repo}:Q8_0", "--force")
    assert code == 12 and "localllm gc" in err and "or take Q2_K" in err


def test_a_context_beyond_what_was_trained_is_warned_of(hub, home, repo):
    assert "Warning: --n-ctx 20000, but the model was trained for" in run("plan", f"{repo}:Q2_K", "-c", "20000")[1]


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
    "no room": (("pull", "org/huge:Q8_0", "--force"), 12, "free"),
    "no memory": (("pull", "org/m:Q8_0", "--n-ctx", "100000000"), 13, "--force"),
    "offline": (("pull", "org/m:Q8_0", "--offline"), 16, "offline"),
    "not a reference": (("pull", "org/m:what?"), 2, "what?"),
    "on this machine": (("pull", "smollm2"), 2, "on this machine already"),
    "contradiction": (("plan", "org/m", "--mmproj", "x.gguf", "--no-mmproj"), 2, "exclude"),
    "no rate": (("pull", "org/m", "--rate-limit", "fast"), 2, "fast"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_every_refusal_has_its_exit_code_and_says_what_to_do(hub, home, repo, files, what):
    arguments, expected, says = REFUSED[what]
    hub.add("org/gated", {"m-Q8_0.gguf": files["Q8_0"]}, gated=True)
    huge = hub.add("org/huge", {"m-Q8_0.gguf": files["Q8_0"]})
    tree = hub.repos["org/huge"].commits[huge]
    tree["m-Q8_0.gguf"] = dataclasses.replace(tree["m-Q8_0.gguf"], n_bytes=1 << 50)
    hub.add("org/private", {"m-Q8_0.gguf": files["Q8_0"]}, private=True)
    hub.add("org/lacks", {name: path for name, path in files.items() if name.startswith("s-") and "00002" not in name})
    code, out, err = run(*arguments)
    assert (code, out) == (expected, ""), err
    assert says in err and err.startswith("localllm: ") and "Traceback" not in err
    assert Store().manifests() == []


def test_a_damaged_download_and_a_dead_server_have_theirs(hub, home, repo):
    hub.fail(path="m-Q2_K.gguf", flip_at=3_000_000, times=None)
    assert run("pull", f"{repo}:Q2_K")[0] == 14
    assert run("pull", f"{repo}:Q2_K", HF_ENDPOINT="http://127.0.0.1:9")[0] == 15


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)])
def test_what_was_interrupted_goes_on_where_it_ended(hub, home, repo, files, how, code, shown):
    size = files["Q8_0"].stat().st_size
    hub.fail(path="m-Q8_0.gguf", times=None, chunk_bytes=128 << 10, delay_seconds=0.02)
    mine, theirs = pty.openpty()
    process = start("pull", f"{repo}:Q8_0", stderr=theirs, COLUMNS="160")
    os.close(theirs)
    shown(mine, r"\b[2-9]\.\d/\d+\.\d MiB")
    process.send_signal(how)
    told = shown(mine)
    ended_code, out, _ = ended(process)
    os.close(mine)
    assert (ended_code, out) == (code, ""), told
    assert ("what came is kept, and the same command goes on" in told) == (how == signal.SIGINT)
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
