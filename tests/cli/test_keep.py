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
        "org/model:Q4_0", "complete", str(n_bytes), "Q4_0", "mine", manifest.commit, str(manifest.first("model")), ""
    ]  # fmt: skip
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    assert [one["state"] for one in told("ls") if one["repo"]] == ["complete"]
    assert [one["state"] for one in told("list", "--all") if one["repo"]] == ["complete", "superseded"]
    code, shown = in_terminal("list", "--all")
    assert code == 0 and "MODEL" in shown and "COMMIT" in shown and f"org/model@{manifest.commit[:12]}:Q4_0" in shown


@pytest.mark.parametrize(
    ("damage", "code", "state"), [("content", 14, "damaged"), ("size", 14, "damaged"), ("missing", 17, "missing")]
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
    assert done.stdout.split("\t")[:3] == ["org/model:Q4_0", state, "model-Q4_0.gguf"]
    assert told("verify", code=code)[0]["files"][0]["state"] == damage
    done = run("repair", HF_HUB_OFFLINE="1")
    # Where only the link is gone, what it led to is still here.
    assert done.returncode == {"content": 14, "size": 16, "missing": 0}[damage], done
    assert told("repair") == ([] if damage == "missing" else [
        {"reference": "org/model:Q4_0", "files": ["model-Q4_0.gguf"], "problem": ""}
    ])  # fmt: skip
    assert run("verify").returncode == 0
    assert run("verify", "org/other").returncode == 3


def test_whoever_meets_damage_is_told_the_command_that_mends_it(repo, pulled):
    manifest = pulled("org/model:Q4_0")
    path = manifest.first("model")
    path.resolve().write_bytes(b"garbage".ljust(path.stat().st_size, b"x"))
    for arguments in (("info", "org/model:Q4_0"), ("run", "org/model:Q4_0", "Hello")):
        done = run(*arguments)
        assert done.returncode == 3 and "localllm repair org/model:Q4_0 fetches it again" in done.stderr, done
    for arguments, code in ((("list",), 0), (("verify",), 14)):
        ended, shown = in_terminal(*arguments)
        assert ended == code and "localllm repair org/model:Q4_0 mends it" in shown
    path.resolve().unlink()
    for arguments in (("run", "org/model:Q4_0", "Hello"), ("pull", "org/model:Q4_0"), ("info", "org/model")):
        done = run(*arguments, HF_HUB_OFFLINE="1")
        assert done.returncode == 16 and "localllm repair org/model:Q4_0 mends it" in done.stderr, done


def test_a_damaged_record_is_no_success_and_is_told_once(repo, pulled, store):
    manifest = pulled("org/model:Q4_0")
    path = store.folder / f"{manifest.key}.json"
    path.write_text("{")
    for command in ("verify", "repair"):
        done = run(command)
        assert done.returncode == 14 and done.stderr == ""
        assert done.stdout.count("no record of a model") == done.stdout.lower().count("remove it, and pull the model again") == 1
    _, shown = in_terminal("list")
    assert shown.count(f"{path}: no record of a model") == shown.count("remove it") == 1
    code, shown = in_terminal("info", "org/model")
    assert code == 0 and shown.count("no record of a model") == 1


def test_a_name_whose_file_is_gone_is_told_where_it_matters(gguf, store, tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf())
    run("alias", "mine", str(tmp_path / "m.gguf"))
    (tmp_path / "m.gguf").unlink()
    for arguments in (("verify",), ("du",), ("gc", "--yes"), ("rm", "mine"), ("list",)):
        done = run(*arguments)
        assert "leads nowhere" not in done.stderr, arguments
    assert f"{tmp_path}/m.gguf\tbroken\t0\t\tmine" in done.stdout
    for command in ("list", "alias"):
        assert "localllm alias mine --remove forgets it" in in_terminal(command)[1]
    assert run("alias", "mine", "--remove").returncode == 0 and "m.gguf" not in run("list").stdout


def test_verify_and_repair_take_all_of_a_repository(repo, pulled):
    for tag in ("Q4_0", "Q8_0"):
        flip(pulled(f"org/model:{tag}").first("model"))
    assert run("verify", "org/model").stdout.count("\tdamaged\t") == 2
    assert [one["problem"] for one in told("repair", "org/model")] == ["", ""]
    assert [one["is_sound"] for one in told("verify", "org/model")] == [True, True]


def test_verify_says_of_what_nothing_tells_the_checksum(store):
    assert run("verify", "smollm2").stdout == (
        "smollm2\tnot hashed\t\tIts size and header are right; nothing tells which checksum it should have.\n"
    )


def test_half_a_download_is_told_where_all_are_looked_at(repo, pulled, store):
    pulled("org/model:Q4_0")
    (store.cache / "models--org--model/blobs" / ("ab" * 32 + ".incomplete")).write_bytes(b"x" * 100)
    for command in ("verify", "repair"):
        assert "org/model:partial is not here as a whole: A file of it came in part" in in_terminal(command)[1]


def test_a_pull_of_what_is_here_says_so_when_it_cannot_be_asked_for(repo, pulled, hub):
    pulled("org/model:Q4_0")
    done = run("pull", "org/model:Q4_0", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 15 and "org/model:Q4_0 is on this machine all the same" in done.stderr
    hub.add("org/model", {"model-Q8_0.gguf": repo["model-Q8_0.gguf"]})
    done = run("pull", "org/model:Q4_0")
    assert done.returncode == 10 and "org/model:Q4_0 is on this machine all the same" in done.stderr
    assert "on this machine" not in run("pull", "org/model:Q5_0").stderr
    assert run("pull", "org/model:Q4_0", "--offline").returncode == 0


def test_a_model_that_is_pulled_elsewhere_is_found_by_every_command(repo, hub, store, tmp_path):
    path = run("pull", "org/model:Q4_0", "--cache-dir", str(tmp_path / "elsewhere")).stdout.strip()
    assert path.startswith(str(tmp_path / "elsewhere"))
    assert [one["path"] for one in told("list") if one["repo"]] == [path]
    assert run("verify", "org/model").returncode == run("info", "org/model:Q4_0").returncode == 0
    assert run("pull", "org/model:Q4_0", "--offline").stdout.strip() == path
    assert told("rm", "org/model")["models"][0]["path"] == path and not os.path.lexists(path)


def test_rm(repo, pulled, store):
    pulled("org/model:Q4_0")
    pulled("org/model:Q8_0")
    plan = told("rm", "org/model:Q4_0", "--dry-run")
    assert (plan["freed_bytes"], plan["dry_run"], len(store.manifests())) == (len(repo["model-Q4_0.gguf"]), True, 2)
    assert plan["kept"] == ["mmproj-model-F16.gguf stays: another model needs it."]
    done = run("rm", "org/model:Q4_0")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"org/model:Q4_0\t{plan['models'][0]['disk_bytes']}\t\ntotal\t{plan['freed_bytes']}\t\n",
        "",
    )
    run("pin", "org/model")
    done = run("rm", "org/model:Q8_0")
    assert done.returncode == 1 and "is pinned; localllm unpin org/model:Q8_0, or remove it all the same (--force)" in done.stderr
    assert run("gc", "--yes", "--max-size", "0").stdout == ""
    assert len(store.manifests()) == 1
    assert told("unpin", "org/model")["pinned"] is False
    assert told("pin", "org/model")["pinned"] is True
    assert run("rm", "org/model", "--force").returncode == 0
    assert store.manifests() == []
    assert run("rm", "org/model").returncode == 3
    done = run("rm", "smollm2")
    assert done.returncode == 2 and "pip uninstall" in done.stderr


def test_an_older_commit_that_goes_along_is_told(repo, pulled, hub):
    first = pulled("org/model:Q4_0")
    hub.add("org/model", {**repo, "README.md": b"new"})
    pulled("org/model:Q4_0")
    plan = told("rm", "org/model:Q4_0", "--dry-run")
    lines = run("rm", "org/model:Q4_0", "--dry-run").stdout.splitlines()
    assert lines[1].split("\t")[::2] == [f"org/model@{first.commit[:12]}:Q4_0", "an older commit of it"]
    assert lines[2] == f"total\t{plan['freed_bytes']}\t"  # what both lead to counts once
    code, shown = in_terminal("rm", "org/model:Q4_0", "--dry-run")
    assert code == 0 and f"would free {plan['freed_bytes']:,} bytes (" in shown


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
    run("pin", "org/model:Q4_0")
    assert [line.split("\t")[7] for line in run("list").stdout.splitlines() if "complete" in line] == ["pinned"]
    run("unpin", "org/model:Q4_0")
    plan = told("gc", "--dry-run")
    assert plan["freed_bytes"] == len(repo["model-Q4_0.gguf"]) + 100
    assert list(plan["reasons"].values()) == ["a newer commit is here"]
    partial = store.cache / "models--org--model/blobs" / ("ab" * 32 + ".incomplete")
    lines = [line.split("\t") for line in run("gc", "--dry-run").stdout.splitlines()]
    assert [line[1:] for line in lines[:1]] == [[str(plan["models"][0]["disk_bytes"]), "a newer commit is here"]]
    assert lines[1:] == [[str(partial), "100", "an interrupted download"], ["total", str(plan["freed_bytes"]), ""]]
    code, shown = in_terminal("gc", typed="n\n")
    assert code == 1 and partial.name in shown and f"free {plan['freed_bytes']:,} bytes (" in shown and partial.exists()
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
        (("good", "./nothing.gguf"), 3),
        (("good", "/"), 3),  # a folder without a model
        (("SmolLM2", "org/model"), 2),  # would never mean anything else
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


def test_a_name_for_a_file_means_it_from_everywhere(gguf, store, tmp_path, monkeypatch):
    (tmp_path / "here/sub").mkdir(parents=True)
    (tmp_path / "here/m.gguf").write_bytes(gguf())
    monkeypatch.chdir(tmp_path / "here/sub")
    assert told("alias", "mine", "../m.gguf") == {"mine": str(tmp_path / "here/m.gguf")}
    assert told("alias", "folder", "..") == {"folder": str(tmp_path / "here")}
    assert told("alias", "other", "mine") == {"other": "mine"}
    monkeypatch.chdir(tmp_path)
    assert [one["aliases"] for one in told("list") if one["state"] == "local"] == [["folder", "mine", "other"]]


def test_a_name_that_hides_or_replaces_something_says_so(store):
    done = run("alias", "qwen3-4b", "org/model:Q4_0")
    assert done.returncode == 0 and "is a name of the catalog, too, for Qwen/Qwen3-4B-GGUF" in done.stderr
    assert run("alias", "qwen3-4b", "org/model:Q4_0").stderr == ""
    assert run("alias", "qwen3-4b", "org/other").stderr == "localllm: qwen3-4b stood for org/model:Q4_0 before.\n"


def test_a_real_process_ends_with_the_same_codes(repo, pulled):
    pulled("org/model:Q4_0")
    for arguments, code in ((("verify",), 0), (("rm", "org/other"), 3), (("gc",), 0)):
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
    done = run("export", "org/model", str(path))
    assert done.returncode == 2 and "or replace it (--force)" in done.stderr
    done = run("export", "org/model", str(tmp_path), "--folder", "--force")
    assert done.returncode == 2 and "a folder is never replaced" in done.stderr
    done = run("export", "org/model", str(tmp_path / "model.tar.gz"))
    assert done.returncode == 2 and "call it model.tar" in done.stderr
    assert told("export", "org/model", str(path), "--force")["n_bytes"] == manifest.n_bytes
    assert told("export", "org/model", str(tmp_path / "folder"), "--folder")["path"] == str(tmp_path / "folder")
    there = {"HF_HUB_CACHE": str(tmp_path / "there"), "LOCALLLM_HOME": str(tmp_path / "own2"), "HF_HUB_OFFLINE": "1"}
    assert run("import", str(path), **there).stdout == "org/model:Q4_0\n"
    assert run("verify", **there).returncode == 0
    assert json.loads(run("import", str(tmp_path / "folder"), "--json", **there).stdout)["reference"] == "org/model:Q4_0"
    path.write_bytes(path.read_bytes()[:5000])
    assert run("import", str(path), **there).returncode == 14
    for name, told_once in (
        ("files/model-Q4_0.gguf", "files/model-Q4_0.gguf is missing"),
        ("localllm-model.json", "No such file"),
    ):
        (tmp_path / "folder" / name).unlink()
        done = run("import", str(tmp_path / "folder"), **there)
        assert done.returncode == 14 and told_once in done.stderr and done.stderr.count("no exported model") == 1
    assert run("import", str(tmp_path / "nothing"), **there).returncode == 2
    code, shown = in_terminal("export", "org/model", str(tmp_path / "again.tar"))
    assert code == 0 and str(tmp_path / "again.tar") in shown.replace("\r\n", "")
