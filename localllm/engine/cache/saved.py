"""States that the caller keeps: bytes that say what they belong to.

Layout, little-endian: magic, version, BLAKE2b-256 of all that follows; lengths of the facts, ids and body; the facts as JSON,
the ids as int32, the body. The facts name everything that a state depends on, so that a refusal can say what differs.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.errors import InvalidRequestError, StateError

_MAGIC = b"LMSAVED\x00"
_VERSION = 1
_HEADER = struct.Struct("<8sI32s")
_LENGTHS = struct.Struct("<IQQ")


@dataclass(frozen=True)
class Saved:
    """The state after `ids`; `exact`: of use only at its full length."""

    ids: tuple[int, ...]
    body: bytearray
    exact: bool


def pack(facts: Mapping[str, Any], ids: Sequence[int], body: Any, exact: bool) -> bytes:
    """A state as bytes."""
    told = json.dumps({**facts, "exact": exact}, sort_keys=True).encode()
    content = b"".join(
        (_LENGTHS.pack(len(told), len(ids), len(body)), told, struct.pack(f"<{len(ids)}i", *ids), memoryview(body).cast("B"))
    )
    return _HEADER.pack(_MAGIC, _VERSION, _digest(content)) + content


def unpack(facts: Mapping[str, Any], data: bytes | bytearray | memoryview) -> Saved:
    """The state in bytes of `pack`.

    Raises:
        InvalidRequestError: `data` is something else than bytes.
        StateError: They are damaged, of another version, or belong to something else; the message says to what.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidRequestError(f"state: must be bytes, not {type(data).__name__}")
    data = bytes(data)
    if len(data) < _HEADER.size + _LENGTHS.size or not data.startswith(_MAGIC):
        raise StateError("these bytes are no saved state, or only a part of one")
    _, version, digest = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise StateError(f"this state was saved in version {version} of the format, this build reads {_VERSION}; save it again")
    content = memoryview(data)[_HEADER.size :]
    if _digest(content) != digest:
        raise StateError("this state is damaged: its checksum is wrong")
    n_facts, n_ids, n_body = _LENGTHS.unpack_from(content)
    at = _LENGTHS.size
    if len(content) != at + n_facts + 4 * n_ids + n_body:
        raise StateError("this state is damaged: its parts do not have the lengths that it names")
    told = _told(bytes(content[at : at + n_facts]))
    for name in (*facts, *(told.keys() - facts.keys() - {"exact"})):
        own, value = told.get(name), facts.get(name)
        if own != value:
            raise StateError(f"this state does not belong here: its {name} is {own!r}, here it is {value!r}")
    at += n_facts
    ids = struct.unpack_from(f"<{n_ids}i", content, at)
    at += 4 * n_ids
    return Saved(ids, bytearray(content[at : at + n_body]), told["exact"])


def _told(data: bytes) -> dict[str, Any]:
    """The facts of a state. A checksum can be forged: they may be anything."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError("this state is damaged: what it says of itself cannot be read") from error
    if not isinstance(told, dict) or not isinstance(told.get("exact"), bool):
        raise StateError("this state is damaged: it does not say what it belongs to")
    return told


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=32).digest()
