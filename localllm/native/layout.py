"""Compares the structures of `bindings` with those that the native libraries were compiled with.

A field at another offset would be read and written wrongly without any error, so this runs before structures are used.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from typing import Any

from localllm.errors import NativeLibraryError
from localllm.native.bindings import ggml, llama, localllm, mtmd

_STRUCTURES = ggml.STRUCTURES + llama.STRUCTURES + mtmd.STRUCTURES + localllm.STRUCTURES


def check_layout(layout_json: str) -> None:
    """Compares a table of compiled structures with `bindings`.

    Args:
        layout_json: str, what `lm_layout_json()` returns; `expected_layout` says what it holds.

    Raises:
        NativeLibraryError: They differ, or the text is no such table. The message names each structure and field that
            differs, with both numbers in bytes.
    """
    try:
        problems = list(_differences(json.loads(layout_json)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NativeLibraryError(f"liblocalllm's table of structures cannot be read: {error!r}") from error
    if problems:
        raise NativeLibraryError(
            "the native libraries were compiled from other headers than localllm's bindings: reinstall localllm, or "
            "rebuild with `make build`. Differences: " + "; ".join(problems)
        )


def expected_layout() -> dict[str, Any]:
    """The table that `check_layout` expects: how ctypes lays out the structures.

    Returns:
        dict, {"struct": {"size": bytes, "align": bytes, "fields": {"name": [offset in bytes, size in bytes]}}}. Fields of
        a nameless union are listed as fields of the structure around it; fields of a nameless structure that is itself a
        field, as "outer.inner".
    """
    return {
        structure.__name__: {
            "size": ctypes.sizeof(structure),
            "align": ctypes.alignment(structure),
            "fields": dict(_fields(structure)),
        }
        for structure in _STRUCTURES
    }


def _fields(structure: Any, prefix: str = "", start: int = 0) -> Iterator[tuple[str, list[int]]]:
    hidden = getattr(structure, "_anonymous_", ())
    for name, kind in structure._fields_:
        descriptor = getattr(structure, name)
        offset = start + descriptor.offset
        if name not in hidden:
            yield prefix + name, [offset, descriptor.size]
        if hasattr(kind, "_fields_") and kind not in _STRUCTURES:
            yield from _fields(kind, prefix if name in hidden else f"{prefix}{name}.", offset)


def _differences(compiled: dict[str, Any]) -> Iterator[str]:
    expected = expected_layout()
    yield from _missing("struct ", expected, compiled)
    for name in sorted(expected.keys() & compiled.keys()):
        own, other = expected[name], compiled[name]
        for what in ("size", "align"):
            if own[what] != other[what]:
                yield f"{name} has {what} {own[what]} in Python, {other[what]} in the library"
        yield from _missing(f"{name}.", own["fields"], other["fields"])
        for field in sorted(own["fields"].keys() & other["fields"].keys()):
            for what, here, there in zip(("offset", "size"), own["fields"][field], other["fields"][field], strict=True):
                if here != there:
                    yield f"{name}.{field} has {what} {here} in Python, {there} in the library"


def _missing(prefix: str, expected: dict[str, Any], compiled: dict[str, Any]) -> Iterator[str]:
    for name in sorted(expected.keys() - compiled.keys()):
        yield f"{prefix}{name} is missing in the library"
    for name in sorted(compiled.keys() - expected.keys()):
        yield f"{prefix}{name} is missing in Python"
