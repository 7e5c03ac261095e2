"""The entry point. Almost nothing is imported before it, so that an interruption ends every command in the same way."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command."""
    try:
        from localllm.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()
