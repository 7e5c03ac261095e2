"""Other programs' output, as it comes: bounded in time, and never left running."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Generator, Sequence

from localllm.media.deadline import Deadline, OutOfTimeError

_CHUNK_BYTES = 1 << 18
_COMPLAINT_BYTES = 2_000


class ProgramError(Exception):
    """A program failed; the text is the end of what it wrote to stderr."""


def output(arguments: Sequence[str], deadline: Deadline, handed: Sequence[int] = ()) -> Generator[bytes, None, None]:
    """Runs a program without a shell or input, and gives what it writes to stdout.

    Close the generator to end the program early.

    Args:
        arguments: str, the program's path and what it is told.
        deadline: Deadline, by which it must have ended.
        handed: file descriptors that it may use by their numbers.

    Yields:
        bytes, at most 256 KiB each.

    Raises:
        ProgramError: It cannot be started, or does not end with status 0.
        OutOfTimeError: The deadline is over; it has been killed.
    """
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(handed),
            env=_environment(),
            bufsize=0,
        )
    except OSError as error:
        raise ProgramError(f"{arguments[0]} cannot be started: {error}") from None
    complaint = b""
    try:
        with selectors.DefaultSelector() as selector:
            assert process.stdout and process.stderr
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(deadline.left()):
                    data = os.read(key.fd, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        complaint = (complaint + data)[-_COMPLAINT_BYTES:]
                    else:
                        yield data
        status = process.wait(deadline.left())
    except subprocess.TimeoutExpired:
        raise OutOfTimeError from None
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if status:
        raise ProgramError(complaint.decode("utf-8", "replace").strip() or f"status {status}")


def _environment() -> dict[str, str]:
    """Ours, without what makes ffmpeg write files (FFREPORT) or colours."""
    return {key: value for key, value in os.environ.items() if key not in ("FFREPORT", "AV_LOG_FORCE_COLOR")}
