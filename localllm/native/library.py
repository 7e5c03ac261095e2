"""Finds, checks and loads the shared libraries, and binds their functions."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import localllm
from localllm.errors import (
    GrammarError,
    InvalidRequestError,
    ModelLoadError,
    NativeError,
    NativeLibraryError,
    TemplateError,
    UnsupportedModelError,
)

_LOCK = threading.Lock()
_ENVIRONMENT = "LOCALLLM_LIBRARY_PATH"

# Every library that liblocalllm needs, by its name in the tables of `bindings`. ggml-cpu is missing where the kernels are
# chosen at run time.
_REQUIRED = {
    "ggml-base": "localllm-ggml-base",
    "ggml": "localllm-ggml",
    "llama": "localllm-llama",
    "llama-common": "localllm-llama-common",
    "mtmd": "localllm-mtmd",
    "localllm": "localllm",
}
# Missing where the kernels are chosen at run time (GGML_BACKEND_DL).
_OPTIONAL = {"ggml-cpu": "localllm-ggml-cpu"}


def file_name(stem: str) -> str:
    """The file name of a shared library on this platform, e.g. `liblocalllm.so` for `localllm`."""
    if sys.platform == "win32":
        return f"{stem}.dll"
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def library_dirs() -> list[Path]:
    """Folders that may hold the libraries, in the order in which they are tried.

    `LOCALLLM_LIBRARY_PATH` alone if it is set, else `lib/` inside the package. An editable install has two package
    folders: the source tree and the one that the build installs into.
    """
    override = os.environ.get(_ENVIRONMENT)
    if override:
        return [Path(override)]
    return [Path(entry) / "lib" for entry in localllm.__path__]


def find_library_dir() -> Path:
    """The folder that holds all required libraries.

    Raises:
        NativeLibraryError: There is none; the message lists what is missing where.
    """
    problems = []
    for folder in library_dirs():
        missing = [name for name in map(file_name, _REQUIRED.values()) if not (folder / name).is_file()]
        if not missing:
            return folder
        problems.append(f"{folder}: {'folder does not exist' if not folder.is_dir() else 'no ' + ', '.join(missing)}")
    hint = (
        f"{_ENVIRONMENT} points to it; unset it or correct it"
        if os.environ.get(_ENVIRONMENT)
        else "reinstall localllm, or in a checkout run `make build`"
    )
    raise NativeLibraryError(f"the native libraries were not found ({hint}). Looked in: " + "; ".join(problems))


class Native:
    """The loaded libraries: every C function of the tables in `bindings` as an attribute, bound on first use.

    Attributes:
        directory: Path, where the libraries lie.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        _wait_briefly()
        self._libraries = {name: self._open(stem) for name, stem in _REQUIRED.items()}
        for name, stem in _OPTIONAL.items():
            if (directory / file_name(stem)).is_file():
                self._libraries[name] = self._open(stem)
        self._check_version()
        self._check_symbols()
        self._check_layout()
        self.check(self.lm_init(os.fsencode(directory)))

    def _open(self, stem: str) -> ctypes.CDLL:
        path = self.directory / file_name(stem)
        try:
            _require_complete(path)
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeLibraryError(f"cannot load {path}: {error}") from error

    def _check_version(self) -> None:
        from localllm.native.bindings import localllm as table

        try:
            found = self._libraries["localllm"].lm_abi_version()
        except AttributeError as error:
            raise NativeLibraryError(f"{self._path('localllm')} is not liblocalllm: no lm_abi_version") from error
        if found != table.LM_ABI_VERSION:
            raise NativeLibraryError(
                f"{self._path('localllm')} has interface version {found}, localllm {localllm.__version__} needs "
                f"{table.LM_ABI_VERSION}: they come from different releases. Reinstall, or rebuild with `make build`"
            )

    def _check_symbols(self) -> None:
        for module in _tables():
            for name in module.FUNCTIONS:
                if name not in module.OPTIONAL and self._find(name, module.LIBRARIES) is None:
                    raise NativeLibraryError(
                        f"{self._path(module.LIBRARIES[0])} lacks the function {name}, which localllm "
                        f"{localllm.__version__} needs: the library is of another version"
                    )

    def _check_layout(self) -> None:
        from localllm.native.layout import check_layout

        exported = self.lm_layout_json()
        check_layout(exported.decode())

    def _path(self, name: str) -> Path:
        return self.directory / file_name({**_REQUIRED, **_OPTIONAL}[name])

    def _find(self, function: str, libraries: tuple[str, ...]) -> Any:
        for library in libraries:
            found = getattr(self._libraries.get(library), function, None)
            if found is not None:
                return found
        return None

    def __getattr__(self, name: str) -> Any:
        for module in _tables():
            if name in module.FUNCTIONS:
                function = self._find(name, module.LIBRARIES)
                if function is None:
                    raise NativeLibraryError(f"this build of the native libraries has no {name}")
                function.restype, function.argtypes = module.FUNCTIONS[name]
                setattr(self, name, function)
                return function
        raise AttributeError(name)

    def check(self, status: int, prefix: str = "") -> None:
        """Raises the error that belongs to a status code of liblocalllm.

        Args:
            status: int, an `lm_status`.
            prefix: str, what the message should begin with, e.g. a file's name.

        Raises:
            LocalLLMError: The class fits the status; nothing is raised for LM_OK.
        """
        if status != 0:
            raise self.error(status, self.lm_last_error().decode(errors="replace"), prefix)

    def error(self, status: int, message: str, prefix: str = "") -> Exception:
        """The exception for a status code and message; see `check`."""
        from localllm.native.bindings import localllm as table

        text = f"{prefix}: {message}" if prefix else message
        kinds: dict[int, type[Exception]] = {
            table.LM_INVALID_ARGUMENT: InvalidRequestError,
            table.LM_LOAD_FAILED: ModelLoadError,
            table.LM_UNSUPPORTED: UnsupportedModelError,
            table.LM_GRAMMAR: GrammarError,
            table.LM_TEMPLATE: TemplateError,
        }
        kind = kinds.get(status)
        return kind(text) if kind else NativeError(text, status)

    def take_string(self, pointer: Any) -> str:
        """Copies a `char *` that liblocalllm handed out, and frees it."""
        try:
            return ctypes.string_at(pointer).decode(errors="replace")
        finally:
            self.lm_string_free(pointer)

    def json_call(self, function: str, *arguments: Any, prefix: str = "") -> Any:
        """Calls a liblocalllm function whose last argument is `char ** out`, and parses the JSON it returns."""
        import json

        return json.loads(self.string_call(function, *arguments, prefix=prefix))

    def string_call(self, function: str, *arguments: Any, prefix: str = "") -> str:
        """Calls a liblocalllm function whose last argument is `char ** out`, and returns that text."""
        out = ctypes.POINTER(ctypes.c_char)()
        self.check(getattr(self, function)(*arguments, ctypes.byref(out)), prefix)
        return self.take_string(out)


def _wait_briefly() -> None:
    """Lets GNU's OpenMP threads wait for one another by sleeping rather than by spinning for milliseconds.

    llama.cpp's threads meet hundreds of times for each token. When a core is taken by somebody else, every meeting costs the
    whole spin: beside another process of two threads, two threads on two cores computed less than one token per second, and
    28 with this (benchmarks/README.md). libgomp reads the variable once, when it is loaded; what the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _require_complete(path: Path) -> None:
    """Refuses a truncated ELF file: the dynamic linker would map it and die of SIGBUS.

    Its table of sections stands at the end: offset, entry size and count are in the header (elf.h, Elf64_Ehdr).
    """
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) == 64 and head[:5] == b"\x7fELF\x02":
        order = "<" if head[5] == 1 else ">"
        (offset,), (size, count) = struct.unpack(order + "Q", head[40:48]), struct.unpack(order + "HH", head[58:62])
        if path.stat().st_size < offset + size * count:
            raise OSError(f"the file is truncated ({path.stat().st_size} bytes)")


@functools.cache
def _tables() -> tuple[Any, ...]:
    from localllm.native.bindings import ggml, llama, mtmd
    from localllm.native.bindings import localllm as own

    return own, llama, mtmd, ggml


_loaded: Native | None = None


def _forked() -> None:
    """In a child of the process: a thread that was loading them is not here."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def load() -> Native:
    """The native libraries, loaded and checked once per process.

    Raises:
        NativeLibraryError: They are missing, damaged or of another version; the message names file, symbol and version.
    """
    global _loaded
    with _LOCK:
        if _loaded is None:
            _loaded = Native(find_library_dir())
        return _loaded
