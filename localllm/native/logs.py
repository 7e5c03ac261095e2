"""Messages of llama.cpp, handed to Python's logging.

They wait in liblocalllm's queue and are taken by Python code: a callback from a native thread into Python could run while
the interpreter shuts down, and would have to wait for the interpreter's lock in the middle of a computation.
"""

from __future__ import annotations

import logging

from localllm.native.library import Native

logger = logging.getLogger("localllm.native")
# Without a handler of the program's own, nothing is to appear on its standard error.
logging.getLogger("localllm").addHandler(logging.NullHandler())

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


def forward(native: Native) -> None:
    """Logs what llama.cpp has said since the last call, to the logger `localllm.native`.

    llama.cpp reports on loading at the level of information and on every failure at the level of errors; failures are also
    raised as exceptions, so both are logged one level lower than llama.cpp gives them.
    """
    if native.lm_log_pending() == 0:
        return
    line = ""
    level = logging.INFO
    for message in native.json_call("lm_log_take"):
        if line == "":
            level = _LEVELS.get(message["level"], logging.INFO)
        line += message["text"]
        if line.endswith("\n"):
            _log(level, line)
            line = ""
    if line:
        _log(level, line)


def _log(level: int, line: str) -> None:
    text = line.strip()
    if text:
        logger.log(max(logging.DEBUG, level - 10), "%s", text)
