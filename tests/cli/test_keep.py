"""The commands that keep models, as a user and as a script runs them."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from localllm.cli.main import main

COMMAND = [sys.executable, "-m", "localllm"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


def run(*arguments: str, **environment: str) -> Done:
    """What a script gets: the command's own entry point, called here, with files for its streams."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["localllm", *arguments])
        patch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def told(*arguments: str, code: int = 0) -> object:
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (code, ""), done
    return json.loads(done.stdout)


def in_terminal(*arguments: str, typed: str = "") -> tuple[int, str]:
    """The exit code and all that a terminal shows; `typed` is typed as soon as a question is asked."""
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen([*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True)
    os.close(slave)
    shown, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 65536).decode("utf-8", "replace")
            except OSError:  # the terminal's other side is closed
                break
            shown += piece
            if typed and "?" in shown:
                os.write(master, typed.encode())
                typed = ""
        elif process.poll() is not None:
            break
    code = process.wait(10)
    os.close(master)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


@pytest.fixture
def repo(hub, gguf, store) -> dict[str, bytes]:
    files = {
        "model-Q4_0.gguf": gguf("four"),
        "model-Q8_0.gguf": gguf("eight", n_values=8192),
        "mmproj-model-F16.gguf": gguf("eyes", "projector"),
    }
    hub.add("org/model", files)
    return files


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.resolve().write_bytes(data)


def test_list(repo, pulled, hub):
    manifest = pulled("org/model:Q4_0")
    run("alias", "mine", "org/model:Q4_0")
    n_bytes = len(repo["model-Q4_0.gguf"]) + len(repo["mmproj-model-F16.gguf"])
    lines = run("list").stdout.splitlines()
    assert lines[0].split("\t") == [
        "org/model:Q4_0", "complete", str(n_bytes), "Q4_0", "mine", manifest.commit, str(manifest.first("model"))
    ]  # fmt: skip
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    assert [one["state"] for one in told("ls") if one["repo"]] == ["complete"]
    assert [one["state"] for one in told("list", "--all") if one["repo"]] == ["complete", "superseded"]
    code, shown = in_terminal("list", "--all")
    assert code == 0 and "MODEL" in shown and "COMMIT" in shown and f"org/model@{manifest.commit[:12]}:Q4_0" in shown


@pytest.mark.parametrize(
    ("damage", "code", "state"), [("content", 14, "content"), ("size", 14, "size"), ("missing", 17, "missing")]
)
def test_verify_and_repair_by_exit_codes(repo, pulled, damage, code, state):
    manifest = pulled("org/model:Q4_0")
    path = manifest.first("model")
    assert told("verify")[0]["is_sound"]
    if damage == "content":
        flip(path)
        assert run("verify", "--no-deep").returncode == 0
    elif damage == "size":
        os.truncate(path, 1000)
    else:
        path.unlink()
    done = run("verify", "org/model")
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.split("\t")[:3] == ["org/model:Q4_0", damage, "model-Q4_0.gguf"]
    assert told("verify", code=code)[0]["files"][0]["state"] == damage
    done = run("repair", HF_HUB_OFFLINE="1")
    # Where only the link is gone, what it led to is still here.
    assert done.returncode == {"content": 14, "size": 16, "missing": 0}[damage], done
    assert told("repair") == ([] if damage == "missing" else [
        {"reference": "org/model:Q4_0", "files": ["model-Q4_0.gguf"], "problem": ""}
    ])  # fmt: skip
    assert run("verify").returncode == 0
    assert run("verify", "org/other").returncode == 3


def test_a_damaged_record_is_no_success(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    (store.folder / f"{manifest.key}.json").write_text("{")
    assert run("verify").returncode == run("repair").returncode == 14


def test_rm(repo, pulled, store):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    plan = told("rm", "org/model:Q4_0", "--dry-run")
    assert (plan["freed_bytes"], plan["dry_run"], len(store.manifests())) == (len(repo["model-Q4_0.gguf"]), True, 2)
    assert plan["kept"] == ["mmproj-model-F16.gguf stays: another model needs it."]
    done = run("rm", "org/model:Q4_0")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"org/model:Q4_0\t{plan['models'][0]['disk_bytes']}\t\n", "")
    run("pin", "org/model")
    done = run("rm", "org/model:Q8_0")
    assert done.returncode == 1 and "is pinned; localllm unpin org/model:Q8_0" in done.stderr
    assert run("gc", "--yes", "--max-size", "0").stdout == ""
    assert len(store.manifests()) == 1
    assert told("unpin", "org/model")["pinned"] is False
    assert told("pin", "org/model")["pinned"] is True
    assert run("rm", "org/model", "--force").returncode == 0
    assert store.manifests() == []
    assert run("rm", "org/model").returncode == 3
    done = run("rm", "smollm2")
    assert done.returncode == 2 and "pip uninstall" in done.stderr


def test_a_terminal_is_asked(repo, pulled, store):
    pulled("org/model:Q4_0")
    code, shown = in_terminal("rm", "org/model", typed="n\n")
    assert code == 1 and "Remove this and free" in shown and len(store.manifests()) == 1
    code, shown = in_terminal("gc", "--max-size", "1kB", typed="n\n")
    assert code == 1 and "the limit is exceeded" in shown and len(store.manifests()) == 1
    code, shown = in_terminal("verify")
    assert code == 0 and "sound" in shown
    code, shown = in_terminal("rm", "org/model", typed="y\n")
    assert code == 0 and "freed" in shown and store.manifests() == []


def test_gc(repo, pulled, store, hub, gguf):
    pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "model-Q4_0.gguf": gguf("newer")})
    pulled("org/model:Q4_0")
    (store.cache / "models--org--model/blobs" / ("ab" * 32 + ".incomplete")).write_bytes(b"x" * 100)
    done = run("gc")
    assert done.returncode == 2 and "--yes" in done.stderr
    plan = told("gc", "--dry-run")
    assert plan["freed_bytes"] == len(repo["model-Q4_0.gguf"]) + 100
    assert list(plan["reasons"].values()) == ["a newer commit is here"]
    assert told("gc", "--yes", "--no-partials")["freed_bytes"] == len(repo["model-Q4_0.gguf"])
    assert told("gc", "--yes")["freed_bytes"] == 100
    assert told("gc", "--yes", "--older-than", "1d")["models"] == []
    for option, value in (("--max-size", "much"), ("--max-size", "-1"), ("--older-than", "5"), ("--older-than", "1y")):
        done = run("gc", "--yes", f"{option}={value}")
        assert done.returncode == 2 and option in done.stderr
    assert [one["repo"] for one in told("gc", "--yes", "--max-size", "10 KB")["models"]] == ["org/model"]


def test_alias(repo, pulled):
    assert told("alias") == {}
    assert told("alias", "Mine", "org/model:Q4_0") == {"mine": "org/model:Q4_0"}
    assert run("alias", "other", "mine").stdout == "other\tmine\n"
    assert run("alias").stdout == "mine\torg/model:Q4_0\nother\tmine\n"
    for arguments, code in (
        (("mine", "other"), 2),  # in a circle
        (("bad name", "org/model"), 2),
        (("good", "no such name"), 2),
        (("good", "nobody"), 3),
        (("nobody",), 3),
        (("nobody", "--remove"), 3),
        (("--remove",), 2),
        (("mine", "org/model", "--remove"), 2),
    ):
        assert run("alias", *arguments).returncode == code, arguments
    assert told("alias") == {"mine": "org/model:Q4_0", "other": "mine"}
    pulled("org/model:Q4_0")
    assert told("list")[0]["aliases"] == ["mine", "other"]
    assert run("alias", "other", "--remove").returncode == 0
    assert told("alias", "mine") == {"mine": "org/model:Q4_0"}


def test_a_real_process_ends_with_the_same_codes(repo, pulled):
    pulled("org/model:Q4_0")
    for arguments, code in ((("verify",), 0), (("rm", "org/other"), 3), (("gc",), 2)):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (code, *dataclasses.astuple(run(*arguments))[1:])


def test_du(repo, pulled):
    pulled("org/model:Q4_0")
    n_bytes = len(repo["model-Q4_0.gguf"]) + len(repo["mmproj-model-F16.gguf"])
    assert run("du").stdout == f"org/model\t{n_bytes}\t0\t0\t0\t0\ntotal\t{n_bytes}\t0\t0\t0\t0\n"
    found = told("du")
    assert (found["disk_bytes"], found["repositories"][0]["repo"]) == (n_bytes, "org/model")
    code, shown = in_terminal("du")
    assert code == 0 and re.search(r"total +\d+\.\d KiB", shown)


def test_export_and_import(repo, pulled, tmp_path, home):
    manifest = pulled("org/model:Q4_0")
    path = tmp_path / "model.tar"
    assert run("export", "org/model", str(path)).stdout == f"{path}\n"
    assert run("export", "org/model", str(path)).returncode == 2
    assert told("export", "org/model", str(path), "--force")["n_bytes"] == manifest.n_bytes
    assert told("export", "org/model", str(tmp_path / "folder"), "--folder")["path"] == str(tmp_path / "folder")
    there = {"HF_HUB_CACHE": str(tmp_path / "there"), "LOCALLLM_HOME": str(tmp_path / "own2"), "HF_HUB_OFFLINE": "1"}
    assert run("import", str(path), **there).stdout == "org/model:Q4_0\n"
    assert run("verify", **there).returncode == 0
    assert json.loads(run("import", str(tmp_path / "folder"), "--json", **there).stdout)["reference"] == "org/model:Q4_0"
    path.write_bytes(path.read_bytes()[:5000])
    assert run("import", str(path), **there).returncode == 14
    assert run("import", str(tmp_path / "nothing"), **there).returncode == 2
    code, shown = in_terminal("export", "org/model", str(tmp_path / "again.tar"))
    assert code == 0 and str(tmp_path / "again.tar") in shown.replace("\r\n", "")
