"""Threads at the end of their process, and in a child of it: the same for answers and for vectors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What makes one, a request, and how it is asked: to the end, or only begun.
ENGINE = """
from localllm import *
worker = Engine({path!r}, context=ContextConfig(n_ctx=512, n_threads=2))
short = Request(prompt=(1, 2, 3), max_tokens=4, sampling=SamplingParams(temperature=0))
endless = Request(prompt=(1, 2, 3), sampling=SamplingParams(temperature=0, ignore_eos=True))
ask = lambda: len(worker.generate(short).tokens)
def begin():
    stream = worker.stream(endless)
    next(stream)
    return stream.close
"""
EMBEDDER = """
from localllm import *
worker = Embedder({path!r}, context=ContextConfig(n_threads=2))
short = EmbedRequest(((5, 6),), "mean")
ask = lambda: len(worker.run(short).values)
begin = lambda: worker.submit(EmbedRequest(((5,) * 250,) * 2000, "mean")).cancel
"""
READ_ON = """
import contextlib, threading
stream = worker.stream(endless)
def read():
    with contextlib.suppress(errors.ClosedError):
        list(stream)
threading.Thread(target=read, daemon=True).start()
"""
FORK = """
import os, sys
stop = begin()
pid = os.fork()
if pid == 0:
    try:
        ask()
    except errors.ClosedError as error:
        print("child:", "fork" in str(error), flush=True)
    stop()
    sys.exit(0)
print("child ended with", os.waitpid(pid, 0)[1], flush=True)
stop()
print("parent:", ask() > 0)
"""
READ_ON_IN_A_CHILD = """
import asyncio, os, sys
sys.stdout.reconfigure(line_buffering=True)
def told(read_on):
    try:
        read_on()
    except errors.ClosedError as error:
        return "fork" in str(error)
def in_child(read_on):
    pid = os.fork()
    if pid == 0:
        os.write(1, f"{told(read_on)}\\n".encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""
CHILD_READS = {
    "engine": """
stream = worker.stream(endless)
next(stream)
in_child(lambda: list(stream))
in_child(lambda: next(worker.stream(endless)))
in_child(worker.stats)
state = worker.save_state(short)
in_child(lambda: worker.load_state(state))
print(len(next(stream).tokens))
stream.close()
async def main():
    stream = worker.astream(endless)
    await anext(stream)
    pid = os.fork()
    if pid == 0:
        try:
            async for event in stream:
                pass
        except errors.ClosedError as error:
            os.write(1, f"{'fork' in str(error)}\\n".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(len((await anext(stream)).tokens))
    await stream.aclose()
asyncio.run(main())
""",
    "embedder": """
future = worker.submit(EmbedRequest(((5,) * 250,) * 2000, "mean"))
in_child(future.result)
in_child(future.exception)
in_child(worker.stats)
in_child(lambda: worker.run(short))
future.cancel()
print(len(worker.run(short).counts))
""",
}
KINDS = {"engine": (ENGINE, "qwen3"), "embedder": (EMBEDDER, "bert")}
ENDINGS = [
    ("engine", ""),
    ("engine", "stop = begin()"),
    ("engine", "stop = begin(); import sys; sys.exit(0)"),
    ("engine", READ_ON),
    ("embedder", ""),
    ("embedder", "stop = begin()"),
    ("embedder", "stop = begin(); import sys; sys.exit(0)"),
]


def output(models, kind: str, program: str) -> tuple[int, str, str]:
    setup, name = KINDS[kind]
    command = [sys.executable, "-c", setup.format(path=str(models[name])) + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("kind", "ending"), ENDINGS)
def test_the_interpreter_exits_cleanly_whatever_is_under_way(models, kind, ending):
    for _ in range(3):  # what goes wrong at exit goes wrong now and then
        assert output(models, kind, ending) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_gets_an_error_and_neither_hangs_nor_harms_its_parent(models, kind):
    for _ in range(3):
        assert output(models, kind, FORK) == (0, "child: True\nchild ended with 0\nparent: True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize(("kind", "told"), [("engine", "True\n" * 4 + "1\nTrue\n1\n"), ("embedder", "True\n" * 4 + "1\n")])
def test_a_forked_child_that_reads_on_is_told_and_its_parent_goes_on(models, kind, told):
    assert output(models, kind, READ_ON_IN_A_CHILD + CHILD_READS[kind]) == (0, told, "")
