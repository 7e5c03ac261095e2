"""The file of a handle while it is fetched: who asks for it waits, who closes the handle does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from localllm import LocalModel
from localllm.errors import DownloadCancelledError

SECONDS = 30  # until a test that hangs is given up
MESSAGES = [{"role": "user", "content": "one"}]
USES = {
    "path": lambda model: model.path,
    "header": lambda model: model.header,
    "tokenize": lambda model: model.tokenize("one"),
    "render": lambda model: model.render(MESSAGES),
    "complete": lambda model: model.complete("one", max_tokens=1),
    "embed": lambda model: model.embed("one"),
}


class Asked:
    """What came of a use, on a thread of its own."""

    def __init__(self, use, model):
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(use, model), daemon=True)
        self.thread.start()

    def _run(self, use, model):
        try:
            use(model)
        except Exception as error:
            self.error = error

    def ended(self):
        self.thread.join(SECONDS)
        return not self.thread.is_alive()


@pytest.fixture
def stalled(hub, models):
    """A handle of a model whose contents stop coming after a while, until the fault is over."""
    hub.add("org/model", {"m-Q4_0.gguf": models["qwen3"]})
    fault = hub.fail(path="*.gguf", origin="cdn", stall_after=100_000)
    return LocalModel("org/model", n_ctx=256, n_threads=1), fault


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_closing_ends_a_download_and_does_not_wait_for_it(hub, stalled, use):
    model, fault = stalled
    asked = Asked(use, model)
    hub.wait_for(lambda: hub.gets("*.gguf"))
    assert Asked(LocalModel.close, model).ended()
    assert asked.ended() and isinstance(asked.error, DownloadCancelledError)
    fault.times = 0
    use(model)  # it is as good as new
    model.close()


def test_all_who_ask_wait_for_one_download(hub, stalled):
    model, fault = stalled
    fault.stall_after = None
    asked = [Asked(use, model) for use in USES.values() for _ in range(2)]
    assert all(one.ended() for one in asked) and [one.error for one in asked] == [None] * len(asked)
    fetched = [entry.range for entry in hub.gets("*.gguf")]
    assert fetched and len(fetched) == len(set(fetched)), "no part was fetched twice"
    model.close()


def test_a_handle_that_fetches_nothing_is_closed_as_ever(models):
    model = LocalModel(models["qwen3"], n_ctx=256, n_threads=1)
    for _ in range(2):
        model.close()
        assert model.complete("one", max_tokens=1).tokens
    model.close()


FORK = """
import os, signal, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.getsockname()[1]}"
from localllm import LocalModel, errors
model = LocalModel("org/model")
for use in (lambda: model.path, lambda: model.complete("x"), lambda: model.tokenize("x")):
    threading.Thread(target=use, daemon=True).start()
server.accept()
pid = os.fork()
if pid == 0:
    signal.alarm(SECONDS)
    model.close()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for use in (lambda: model.path, lambda: model.complete("x"), lambda: model.tokenize("x")):
        try:
            use()
        except errors.OfflineError:
            print("asked anew", flush=True)
    with LocalModel(sys.argv[1], n_ctx=256, n_threads=1) as own:
        print(len(own.complete("one", max_tokens=2).tokens), flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_child_of_the_process_waits_for_nobody_who_is_not_there(models, tmp_path):
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_TOKEN": "", "LOCALLLM_HOME": str(tmp_path / "own")}
    done = subprocess.run(
        [sys.executable, "-c", FORK.replace("SECONDS", str(SECONDS)), str(models["qwen3"])],
        capture_output=True, text=True, timeout=100, env=environment,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["asked anew"] * 3 + ["2", "0"], done.stderr
