"""What is imported for media, and when."""

from __future__ import annotations

import subprocess
import sys

MODULES = "arrays content headers images lengths limits orientation pages probing programs sound sources video"
HEAVY = "PIL soundfile soxr pypdfium2 httpx httpcore"


def test_what_decodes_and_fetches_is_imported_only_where_it_is_used():
    program = (
        "import importlib, sys\n"
        f"for name in {MODULES.split()!r}: importlib.import_module('localllm.media.' + name)\n"
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules])\n"
        "from localllm.media.images import load_image\n"
        "import numpy\n"
        "load_image(numpy.zeros((2, 2)))\n"
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n[]\n", done.stderr
