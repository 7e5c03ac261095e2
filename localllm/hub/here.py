"""What this machine offers to a model, as far as the operating system tells; GPUs are seen through the native library only."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

from localllm.hub.choose import Machine
from localllm.hub.free_memory import free_memory
from localllm.hub.memory import repacked_types

logger = logging.getLogger("localllm.hub")

MARGIN_BYTES = 512 << 20  # for what else the program does


def this_machine(root: Path = Path("/"), margin_bytes: int = MARGIN_BYTES) -> Machine:
    """The machine as a model finds it now, without its GPUs.

    Args:
        root: Path, the folder that holds proc and sys.
        margin_bytes: int, memory that stays free.

    Returns:
        Machine; its free memory is None where the system does not tell it.
    """
    try:
        free: int | None = max(0, free_memory(root).free_bytes - margin_bytes)
    except OSError as error:
        logger.warning("the free memory is not known: %s", error)
        free = None
    return Machine(free, on_cpu=True, repacked=repacked_types(cpu_flags(root)))


def cpu_flags(root: Path = Path("/")) -> tuple[str, ...]:
    """Names of the CPU's instruction sets, as Linux writes them; () where nothing tells."""
    if sys.platform == "darwin":
        import platform

        # Every Mac with Apple's own chips has both.
        return ("asimd", "asimddp") if platform.machine() == "arm64" else ()
    try:
        text = (root / "proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return ()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return tuple(found[1].split()) if found else ()
