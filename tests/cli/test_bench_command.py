"""`localllm bench`, and speculation by drafts on the command line, as a user types them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.cli.drafts import configurations
from localllm.cli.main import main

TRAINED = Path(__file__).parents[1] / "models" / "trained"
TARGET, DENSE = str(TRAINED / "tiny-trained-qwen35.gguf"), str(TRAINED / "lilicorr" / "target-00001-of-00002.gguf")
EAGLE3, DSPARK, DFLASH = (str(TRAINED / f"tiny-trained-qwen35-{kind}.gguf") for kind in ("eagle3", "dspark", "dflash"))
LILICORR_DRAFT, HEAD = (str(TRAINED / "lilicorr" / name) for name in ("dflash.gguf", "lilicorr-head.gguf"))
SHORT = ("-n", "12", "--rounds", "1", "--threads", "1", "--n-ctx", "1024")
RAW = ("--raw", "--prompts", str(TRAINED / "prompts.json"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "localllm", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


@pytest.fixture
def typed(monkeypatch, capsys):
    """`typed("bench", ...)`: the same within this process, which is quicker; the exit code and what was printed."""

    def typed(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["localllm", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return typed


def names(result: dict) -> list[str]:
    return [one["name"] for one in result["results"]]


def test_a_model_alone_is_measured_plainly():
    done = run("bench", TARGET, *SHORT)
    head, columns, row = done.stdout.strip().splitlines()
    assert done.returncode == 0 and done.stderr == "" and "3 prompts, up to 12 tokens each, 1 at once; medians of 1 round" in head
    assert columns.split()[0] == "SPECULATION" and row.split()[0] == "none" and row.split()[3] == "1.00"
    assert float(row.split()[1]) > 0 and float(row.split()[2]) > 0


def test_kinds_get_the_drafts_that_are_theirs():
    kinds = [word for kind in ("none", "auto", "draft-mtp", "draft-eagle3", "ngram-map-k") for word in ("--speculation", kind)]
    options = ("--draft", EAGLE3, "--draft", DFLASH, "--draft-tokens", "3", "--no-throttle", "--parallel", "4", "--json")
    done = run("bench", TARGET, *kinds, *options, *RAW, *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["tokens"], found["rounds"], found["parallel"], found["throttle"]) == (12, 1, 4, False)
    autos = [f"auto ({Path(path).stem})" for path in (EAGLE3, DFLASH)]
    assert names(found) == ["none", *autos, "draft-mtp", "draft-eagle3", "ngram-map-k"]
    assert [one["kind"] for one in found["results"]] == ["none", "draft-eagle3", "draft-dflash", *names(found)[3:]]
    for one in found["results"]:
        assert one["n_same"] == len(one["prompts"]) == 16 and one["tokens_per_second"] > 0 and one["ratio"] > 0
        stats = one["speculation"]
        if one["name"].startswith(("auto", "draft")):
            assert stats["accepted_tokens"] == sum(stats["accepted"]) and len(one["acceptance_by_position"]) == 3
            assert one["tokens_per_pass"] == stats["n_tokens"] / stats["n_passes"] > 1.5
    assert found["results"][1]["speculation"]["drafted"] == found["results"][4]["speculation"]["drafted"]


def test_drafts_of_the_same_name_are_told_apart(tmp_path):
    other = shutil.copy(EAGLE3, tmp_path)
    found = configurations(["auto"], [EAGLE3, other], "", None, True)
    assert list(found) == ["auto (tiny-trained-qwen35-eagle3)", f"auto ({other})"]
    assert [one.draft for one in found.values()] == [EAGLE3, other]


def test_the_table_says_where_speculation_loses_and_what_failed():
    kinds = ("--speculation", "draft-mtp", "--speculation", "draft-lilicorr", "--speculation", "draft-dflash")
    done = run("bench", DENSE, *kinds, "--draft", LILICORR_DRAFT, "--head", HEAD, *SHORT)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["none", "draft-lilicorr", "draft-dflash"]
    assert any(line.startswith("draft-mtp: no figures: ") and "no heads" in line for line in lines)
    for kind, row in (("draft-lilicorr", lines[3]), ("draft-dflash", lines[4])):
        ratio = float(row.split()[3])
        word = "slower than plain decoding here" if ratio < 1 else "times as fast as plain decoding"
        told = next(line for line in lines if line.startswith(f"{kind}: "))
        assert ratio == 1 or word in told, told
        assert row.split()[-3:] == ["3", "of", "3"]
    assert "Accepted, by place in the draft:" in lines and "Ratio to plain decoding, by prompt:" in lines
    assert any(line.split() == ["prose", "edit", "table"] for line in lines)


def test_a_picture_is_written_beside_the_table(tmp_path):
    target = tmp_path / "picture.svg"
    done = run("bench", TARGET, "--speculation", "auto", "--plot", str(target), *SHORT)
    assert done.returncode == 0 and "auto: draft-mtp" in done.stdout and "auto: draft-mtp" in target.read_text()


def test_without_matplotlib_nothing_is_measured(tmp_path):
    program = ["import runpy, sys", "sys.modules['matplotlib'] = None", "runpy.run_module('localllm', run_name='__main__')"]
    command = [sys.executable, "-c", "; ".join(program), "bench", TARGET, "--plot", str(tmp_path / "a.png"), *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "") and "pip install matplotlib" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--draft", EAGLE3), 2, "--draft: of no use without a kind of --speculation"),
        (("--draft", EAGLE3, "--speculation", "none"), 2, "--draft: of no use without a kind of --speculation"),
        (("--head", "", "--speculation", "auto"), 2, "empty"),
        (("--head", "missing.gguf"), 2, "--head: of no use without"),
        (("--draft-tokens", "3"), 2, "--draft-tokens: of no use without"),
        (("--no-throttle",), 2, "--no-throttle: of no use without"),
        (("--speculation", "magic"), 2, "--speculation: 'magic' is not one of"),
        (("--speculation", "auto", "--speculation", "auto"), 2, "--speculation: names a kind twice"),
        (("--speculation", "draft-eagle3"), 2, "--draft: missing; 'draft-eagle3' needs"),
        (("--speculation", "draft-eagle3", "--draft", DFLASH), 2, "--draft: missing; 'draft-eagle3' needs"),
        (("--speculation", "ngram-mod", "--draft", EAGLE3), 2, "it is for draft-eagle3"),
        (("--speculation", "auto", "--speculation", "draft-mtp", "--draft", HEAD), 1, "goes beside that"),
        (("--speculation", "draft-mtp", "--head", HEAD), 2, "--head: "),
        (("--speculation", "auto", "--draft-tokens", "0"), 2, "--draft-tokens: 0 is outside"),
        (("--speculation", "auto", "--draft", "missing.gguf"), 3, "missing.gguf: no such file"),
        (("-n", "0"), 2, "--tokens: must be 1 or more"),
        (("--rounds", "0"), 2, "--rounds: must be 1 or more"),
        (("--parallel", "0"), 2, "--parallel: "),
        (("--n-ctx", "64"), 3, "--n-ctx: what is asked at once needs"),
        (("--plot", "picture.pdf"), 2, "--plot: picture.pdf must end with .png or .svg"),
        (("--prompts", "missing.txt"), 2, "--prompts: missing.txt cannot be read"),
    ],
)
def test_wrong_combinations_name_the_option(typed, arguments, code, words):
    found, out, err = typed("bench", TARGET, *SHORT, *arguments)
    assert found == code and words in (out if code == 1 else err)
    assert out == "" or code == 1


# ---- drafts for run, chat and info


@pytest.mark.parametrize(("kind", "draft"), [("auto", EAGLE3), ("draft-dspark", DSPARK)])
def test_run_takes_a_draft_and_says_the_same(kind, draft):
    arguments = ("run", TARGET, "Tell a story.", "-t", "0", "-n", "40")
    plain, drafted = run(*arguments), run(*arguments, "-v", "--speculation", kind, "--draft", draft)
    assert drafted.returncode == 0 and drafted.stdout == plain.stdout
    assert " drafted ones right" in drafted.stderr.splitlines()[-1]


def test_run_takes_a_head_beside_its_draft():
    done = run(
        "run", DENSE, "Tell", "--raw", "-t", "0", "-n", "8", "-c", "512", "--speculation", "auto", "--draft", LILICORR_DRAFT
    )
    both = run(*done.args[3:], "--head", HEAD)
    assert both.returncode == done.returncode == 0 and both.stdout == done.stdout


@pytest.mark.parametrize("command", [("run", TARGET, "x"), ("chat", TARGET)])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--draft", EAGLE3), "--draft: "),
        (("--head", HEAD), "--head: "),
        (("--speculation", "ngram-mod", "--draft", EAGLE3), "--draft: "),
        (("--speculation", "draft-eagle3"), "--draft: missing"),
        (("--speculation", "draft-dflash", "--draft", EAGLE3), "--speculation: "),
        (("--speculation", "draft-eagle3", "--draft", EAGLE3, "--head", HEAD), "--head: "),
        (("--speculation", "magic"), "--speculation: 'magic' is not one of"),
    ],
)
def test_drafts_that_do_not_go_with_the_kind_are_wrong_arguments(typed, command, options, words):
    code, out, err = typed(*command, *options)
    assert (code, out) == (2, "") and err.startswith(f"localllm: {words}")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (TARGET, "draft-mtp, by heads of its own"),
        (EAGLE3, "draft-eagle3, as the draft (--draft) of another model"),
        (DSPARK, "draft-dspark, as the draft (--draft) of another model"),
        (HEAD, "draft-lilicorr, as the head (--head) of a DFlash draft"),
        (DENSE, None),
    ],
)
def test_info_says_what_a_file_is_for_when_tokens_are_guessed_ahead(typed, path, words):
    code, out, _ = typed("info", path, "--json")
    assert code == 0 and json.loads(out).get("speculation") == words
