"""The command, as a user types it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from localllm import LocalModel

COMMAND = [sys.executable, "-m", "localllm"]


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=120, env=env)


def test_run_prints_an_answer_and_nothing_else(smollm2):
    done = run("run", "smollm2", "What is the capital of France?", "-s", "You are a helpful assistant.", "-t", "0", "-n", "24")
    assert (done.returncode, done.stdout, done.stderr) == (0, "The capital of France is Paris.\n", "")


def test_run_reads_standard_input_and_continues_raw_text():
    done = run("run", "smollm2", "--raw", "-t", "0", "-n", "2", stdin="The capital of France is")
    assert (done.stdout, done.stderr) == (" Paris.\n", "")
    assert run("run", "smollm2", "-", "--raw", "-t", "0", "-n", "2", stdin="The capital of France is").stdout == " Paris.\n"


SCHEMA = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}'


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--choice", "yes", "--choice", "no"], "(yes|no)\n"),
        (["--regex", "[0-9]{3}"], "[0-9]{3}\n"),
        (["--grammar", 'root ::= "a" | "b"'], "[ab]\n"),
        (["--json-schema", SCHEMA], r"\{\s*\"ok\"\s*:\s*(true|false)\s*\}\n"),
        (["--json-schema", "FILE"], r"\{\s*\"ok\"\s*:\s*(true|false)\s*\}\n"),
        (["--raw", "--grammar", 'root ::= "c"'], "c\n"),
    ],
)
def test_answers_can_be_constrained(options, pattern, tmp_path):
    (tmp_path / "schema.json").write_text(SCHEMA)
    given = [str(tmp_path / "schema.json") if option == "FILE" else option for option in options]
    done = run("run", "smollm2", "Is Paris in France?", "-t", "0", "-n", "40", *given)
    assert done.returncode == 0 and re.fullmatch(pattern, done.stdout), done


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--json-schema", "[1]"], "--json-schema: must be an object"),
        (["--json-schema", "nonsense"], "--json-schema: neither a file nor JSON"),
        (["--choice", "a", "--regex", "b"], "not together with"),
        (["--raw", "--choice", "a"], "--raw"),
        (["--reasoning-budget", "5"], "marks no thoughts"),
        (["--chat-template", "rag"], "no template 'rag'"),
    ],
)
def test_what_cannot_be_is_said(options, words):
    done = run("run", "smollm2", "x", "-n", "1", *options)
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr


def test_speculation_says_what_it_brought():
    text = "one two three four five six seven eight nine ten " * 8
    done = run("run", "smollm2", "--raw", "-t", "0", "-n", "48", "-v", "--speculation", "ngram-map-k", stdin=text)
    assert done.stdout.startswith(" one two three four")
    told = re.search(r"(\d+) of (\d+) drafted ones right", done.stderr)
    assert told and 0 < int(told[1]) <= int(told[2])
    assert run("run", "smollm2", "Hello", "--speculation", "magic").returncode == 2


def test_a_seed_repeats_an_answer():
    one, two = (run("run", "smollm2", "Hello", "--seed", "7", "-t", "1.5", "-n", "16").stdout for _ in range(2))
    assert one == two


def test_verbose_shows_speed_and_messages_on_standard_error():
    done = run("run", "smollm2", "Hello", "-n", "4", "-v")
    assert "prompt tokens in" in done.stderr and "llama" in done.stderr
    assert "prompt tokens in" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "nothing", "x"), 3, "neither a file nor a known model"),
        (("run", "missing.gguf", "x"), 3, "missing.gguf: no such file"),
        (("run", "smollm2", "x", "-t", "-1"), 2, "temperature"),
        (
            ("run", "smollm2", "x", "--n-gpu-layers", "most"),
            2,
            "--n-gpu-layers: must be a number of layers, 'all' or 'auto', not 'most'",
        ),
        (("run", "smollm2", "x", "-n", "0"), 2, "--max-tokens: must be at least 1, not 0"),
        (("run", "smollm2", "x", "--regex", "("), 2, "unterminated"),
        (("run", "smollm2", ""), 2, "PROMPT: is empty"),
        (("run", "smollm2"), 2, "PROMPT: is empty"),
        (("optimize", "missing.gguf"), 3, "no such file"),
        (("run", "smollm2", "x", "--threads", "-1"), 2, "--threads: -1 is outside"),
        (("plan", "org/m", "--cache-type", "q9"), 2, "--cache-type: 'q9' is not one of"),
        (("pull", "org/m", "--rate-limit", "0"), 2, "--rate-limit: 0 is not"),
        (("run", "smollm2", "x", "-c", "120000000"), 13, "with --n-ctx 120000000 it needs"),
        (("run", "smollm2", "x", "--nonsense"), 2, "nonsense"),
        (("run", "smollm2", " "), 2, "PROMPT: is empty"),
        (("run",), 2, "MODEL"),
        (("nonsense",), 2, "nonsense"),
        (("info", "missing.gguf"), 3, "no such file"),
        (("run", "smollm2", "x", "-c", "8"), 3, "context"),
        (("run", "smollm2", "x", "-c", "-8"), 2, "--n-ctx: '-8' is neither"),
        (("plan", "smollm2", "-c", "all"), 2, "--n-ctx: 'all' is neither"),
        (("embed", "smollm2"), 2, "TEXT"),
        (("embed", "smollm2", "x", "--pooling", "median"), 2, "--pooling: 'median' is not one of 'mean'"),
        (("embed", "smollm2", "x", "--dimensions", "0"), 2, "dimensions"),
        (("embed", "smollm2", "many words here", "-c", "1"), 3, "texts[0]"),
        (("rerank", "smollm2", "x", "y"), 3, "no classification head"),
        (("rerank", "smollm2", "x"), 2, "DOCUMENT"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(arguments, code, message):
    done = run(*arguments)
    assert done.returncode == code and message in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_broken_pipe_is_no_traceback():
    program = f"{sys.executable} -m localllm run smollm2 'Count to twenty' -n 200 | head -c 5"
    done = subprocess.run(program, shell=True, capture_output=True, timeout=120)
    assert len(done.stdout) == 5 and done.stderr == b""


def test_an_interruption_while_the_command_is_imported_is_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    found = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = run("list", PYTHONPATH=found)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_warning_is_one_line_that_names_options():
    done = run("run", "smollm2", "x", "-n", "1", "-c", "20000")
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and done.stderr.startswith("localllm: ")
    assert "--n-ctx 20000, but the model was trained for 8192" in done.stderr and "rope" not in done.stderr


def test_version_and_help():
    assert re.fullmatch(r"localllm \d+\.\d+\.\d+\n", run("--version").stdout)
    help_text = run("--help").stdout
    assert all(command in help_text for command in ("run", "chat", "embed", "rerank", "info", "doctor"))


def test_embed_prints_a_line_of_json_for_each_text(models):
    done = run("embed", str(models["bert"]), "hello", "-", "--dimensions", "3", stdin="one two\n\nthree\r\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(line["index"], len(line["embedding"])) for line in lines] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    model = LocalModel(models["bert"])
    expected = model.embed(["hello", "one two", "", "three"], dimensions=3)
    assert [line["tokens"] for line in lines] == list(expected.tokens)
    for line, vector in zip(lines, expected.vectors, strict=True):
        assert line["embedding"] == pytest.approx(vector, abs=1e-3)
    (line,) = run("embed", str(models["bert"]), "hello", "--pooling", "none", "--no-normalize").stdout.splitlines()
    tokens = json.loads(line)
    assert len(tokens["embedding"]) == tokens["tokens"] and len(tokens["embedding"][0]) == 64


def test_rerank_prints_documents_best_first(models):
    done = run("rerank", str(models["bert-reranker"]), "a question", "one", "-", "--top-n", "2", stdin="two é\nthree\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 2) and lines[0]["logit"] >= lines[1]["logit"]
    expected = LocalModel(models["bert-reranker"]).rerank("a question", ["one", "two é", "three"], top_n=2)
    assert [line["index"] for line in lines] == [each.index for each in expected]
    assert [line["document"] for line in lines] == [["one", "two é", "three"][each.index] for each in expected]
    assert [line["probability"] for line in lines] == pytest.approx([each.probability for each in expected], abs=1e-3)


def test_info_needs_no_weights(models):
    facts = json.loads(run("info", str(models["gemma3"]), "--json", "--metadata").stdout)
    assert (
        facts["architecture"] == "gemma3" and facts["kind"] == "model" and facts["metadata"]["general.architecture"] == "gemma3"
    )
    shown = run("info", str(models["gemma3-mmproj"])).stdout
    assert "projector" in shown and "".join(shown.split()).count(models["gemma3-mmproj"].name) == 1, "paths are not cut"


@pytest.mark.parametrize(
    ("name", "facts", "absent"),
    [
        ("qwen35", {"kind": "model", "predicted_ahead": 1}, ["modalities", "files"]),
        ("qwen3", {"kind": "model"}, ["predicted_ahead"]),
        ("qwen3-lora", {"kind": "adapter"}, ["memory_bytes"]),
        ("gemma3-mmproj", {"kind": "projector", "modalities": ["image"]}, ["memory_bytes", "special_tokens"]),
    ],
)
def test_info_tells_what_a_file_is_for(models, name, facts, absent):
    found = json.loads(run("info", str(models[name]), "--json").stdout)
    assert {key: found[key] for key in facts} == facts and not set(absent) & set(found)
    assert 0 < sum(found["tensor_types"].values()) <= found["file_bytes"]


def test_doctor_finds_nothing_wrong_and_tells_what_there_is():
    report = json.loads(run("doctor", "--json").stdout)
    assert report["problems"] == [] and report["build"]["llama_commit"] == "0c1e57098"
    assert any(device["type"] == "cpu" for device in report["devices"])
    text = run("doctor").stdout
    assert "no problems found" in text and "0c1e57098" in text and "huggingface" in text


def test_doctor_says_what_is_wrong(tmp_path):
    done = run("doctor", LOCALLLM_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 4 and "liblocalllm" in done.stdout and str(tmp_path) in done.stdout
    failed = run("run", "smollm2", "x", LOCALLLM_LIBRARY_PATH=str(tmp_path))
    assert failed.returncode == 4 and "LOCALLLM_LIBRARY_PATH" in failed.stderr


# ---- chat


def test_chat_over_a_pipe_answers_every_line_and_remembers():
    done = run("chat", "smollm2", "-t", "0", "-n", "8", stdin="Hello\nAnd now?\n/clear\n/help\n/nonsense\n/bye\nnever\n")
    assert done.returncode == 0 and len(done.stdout.strip().splitlines()) >= 2
    assert "/undo" in done.stderr and "unknown command /nonsense" in done.stderr


# A test run in the background ignores Ctrl-C, and its children inherit that. (No preexec_fn: Python between fork and exec can
# hang when the parent has threads.)
HEED_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("localllm", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A program on a terminal of its own; it is ended with the test, whatever happens."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEED_CTRL_C, *arguments], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def expect(self, text: str, seconds: float = 60) -> None:
        """Reads until `text` has appeared; what came before it is forgotten."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.seen!r}"
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:
                break
        assert text in self.seen, self.seen
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def interrupt(self, text: str) -> None:
        """Ctrl-C at a prompt until `text` appears. CPython's readline heeds a signal that comes between showing the prompt and
        waiting for keys only with the next key or signal.
        """
        for _ in range(30):
            self.process.send_signal(signal.SIGINT)
            if select.select([self.master], [], [], 1)[0]:
                return self.expect(text)
        raise AssertionError(f"{text!r} did not appear")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self) -> int:
        """The exit code; what is still printed goes to `seen`."""
        while True:
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:
                return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal():
    opened = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for entry in opened:
        entry.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal):
    terminal = terminal("chat", "smollm2", "-t", "0")
    terminal.expect("> ")
    terminal.type("Tell me a very long story about a dragon, a castle and a king.\n")
    terminal.expect("king.")
    while len(terminal.seen) < 60:
        terminal.seen += os.read(terminal.master, 4096).decode(errors="replace")
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect("(stopped)")
    terminal.expect("> ")
    terminal.interrupt("> ")
    terminal.type("/bye\n")
    assert terminal.wait() == 0


def test_ctrl_d_ends_the_chat(terminal):
    terminal = terminal("chat", "smollm2", "-n", "4")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.wait() == 0


def test_ctrl_c_ends_run_at_once(terminal):
    terminal = terminal("run", "smollm2", "Tell me a very long story.", "-t", "0")
    while len(terminal.seen) < 20:
        terminal.seen += os.read(terminal.master, 4096).decode(errors="replace")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(("given", "n_ctx"), [("auto", 8192), ("512", 512)])
def test_the_context_may_be_what_fits(given, n_ctx):
    done = run("run", "smollm2", "The", "--raw", "-n", "1", "-t", "0", "-c", given, "-v")
    assert done.returncode == 0 and re.search(rf"n_ctx += {n_ctx}\n", done.stderr)


def test_a_quantization_is_planned_for_the_usual_context_where_it_takes_what_fits(hub, gguf_files, tmp_path, home):
    hub.add("org/model", {"model-Q8_0.gguf": gguf_files.model(tmp_path / "model-Q8_0.gguf", n_layers=1)[0]})
    plans = [json.loads(run("plan", "org/model", "--json", *more).stdout) for more in ((), ("-c", "auto"))]
    assert plans[0]["memory"] == plans[1]["memory"]


def test_info_for_programs_breaks_no_line(smollm2):
    lines = run("info", "smollm2", COLUMNS="40").stdout.splitlines()
    assert dict(line.split(maxsplit=1) for line in lines)["path"] == str(smollm2)


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [(">&-", 0, ""), (">/dev/full", 1, "localllm: standard output: No space left on device\n"), ("2>&-", 0, "")],
)
def test_output_that_is_closed_or_full(redirection, code, says):
    command = [sys.executable, "-m", "localllm", "list", "--json"]
    done = subprocess.run(["bash", "-c", f'"$@" {redirection}', "bash", *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, says)
