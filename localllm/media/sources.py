"""The bytes of an encoded picture, sound, video or document, from whatever names or holds them."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes, urlsplit

from localllm.errors import InvalidRequestError, MediaError
from localllm.media.limits import DEFAULT_LIMITS, MediaLimits

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LONGEST_PATH = 4096
_SHOWN_CHARACTERS = 40
_READ_BYTES = 1 << 20
_BASE64_OPTION = ";base64"
_KINDS = "a path, bytes, an open binary file, or a data:, file:// or http(s):// address"


def read_bytes(source: Any, limits: MediaLimits = DEFAULT_LIMITS, name: str = "source") -> bytes:
    """The bytes of an encoded medium.

    Args:
        source: path (str or os.PathLike), "file://", "data:" or "http(s)://" address, bytes, bytearray or memoryview, or an open
            binary file, which is read from where it stands.
        limits: MediaLimits: max_bytes, allow_files, and what `fetch` heeds.
        name: str, of the part of the request, with which messages of errors begin.

    Returns:
        bytes, at least one.

    Raises:
        MediaError: They may not or cannot be had, or are none or too many.
        InvalidRequestError: The source is of another type.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        # A memoryview may count its items otherwise, and lie scattered.
        size = source.nbytes if isinstance(source, memoryview) else len(source)
        _check_size(size, limits, name)
        data = bytes(source)
    elif is_path(source):
        with open_file(local_path(source, limits, name), limits, name) as file:
            data = _read(file, limits, name)
    elif isinstance(source, str) and _scheme(source) == "data":
        data = _from_data_uri(source, limits, name)
    elif isinstance(source, str):
        from localllm.media.fetch import fetch  # httpx takes a while to import

        data = fetch(source, limits, name)
    elif callable(getattr(source, "read", None)):
        data = _read(source, limits, name)
    else:
        raise InvalidRequestError(f"{name}: a {type(source).__name__} is none of these: {_KINDS}; give one")
    if not data:
        raise MediaError(f"{name}: holds no byte at all; give one that holds something")
    return data


def from_base64(text: str, name: str = "source", limits: MediaLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes that a text of base64 stands for, where something says that it is one, as frameworks' fields do.

    Args:
        text: str, of RFC 4648's standard alphabet, padded, without line breaks.
        name, limits: see `read_bytes`.

    Returns:
        bytes, at least one.

    Raises:
        MediaError: It is no such text, is empty or stands for too many bytes.
        InvalidRequestError: It is no str.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name}: a {type(text).__name__} is no base64 text; give a str")
    _check_size(len(text) // 4 * 3 - text[-2:].count("="), limits, name)
    if not text:
        raise MediaError(f"{name}: holds no byte at all; give one that holds something")
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise MediaError(f"{name}: is no base64 text (letters, digits, + and /, padded with =, no blanks); encode it as one")
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise MediaError(f"{name}: is no base64 text ({error}); encode it as one") from None


def is_path(source: Any) -> bool:
    """Whether a source names a file of this machine, or tries to, as anything that begins like no other address does."""
    return isinstance(source, os.PathLike) or (isinstance(source, str) and _scheme(source) not in ("data", "http", "https"))


def local_path(source: str | os.PathLike[Any], limits: MediaLimits, name: str) -> Path:
    """The file that a path or a "file://" address names.

    Args:
        source: str or os.PathLike.
        limits, name: see `read_bytes`.

    Returns:
        Path; whether there is one is not checked.

    Raises:
        MediaError: It is neither, or files may not be read.
    """
    text = os.fsdecode(source)
    scheme = _scheme(text) if isinstance(source, str) else ""
    if not limits.allow_files:
        raise MediaError(f"{name}: files are not read here (allow_files); give the content itself, as bytes or a data: address")
    # On Windows a path may begin with the one letter of a drive.
    if scheme not in ("", "file") and len(scheme) > 1 and not _is_file(text):
        raise MediaError(f"{name}: {_shown(text)!r} is of a kind of address that is not read; give {_KINDS}")
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path.startswith("/"):
            raise MediaError(f"{name}: {_shown(text)!r} names no file of this machine; write it as file:///path, with %3F for ?")
        text = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))
    if "\0" in text or not text or len(text) > _LONGEST_PATH:
        raise MediaError(
            f"{name}: {_shown(text)!r} is no path, and no data:, file:// or http(s):// address; base64 wants data:...;base64, "
            "in front of it"
        )
    return Path(text)


@contextmanager
def open_file(path: Path, limits: MediaLimits, name: str) -> Iterator[BinaryIO]:
    """A file of this machine, open for reading and closed again; what is no file, as pipes and devices are, is never waited for.

    Args:
        path: Path.
        limits, name: see `read_bytes`.

    Raises:
        MediaError: There is none, it is no regular one, may not be read, or is larger than allowed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise MediaError(
            f"{name}: there is no file {_shown(str(path))!r}, and it is no data:, file:// or http(s):// address; correct it"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise MediaError(f"{name}: {_shown(str(path))!r} cannot be read ({why}); correct that, or give the bytes") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaError(f"{name}: {_shown(str(path))!r} is no file but a folder, a pipe or a device; give a file")
        _check_size(status.st_size, limits, name)
        file = os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    with file:
        yield file


# ---- inside


def _read(file: Any, limits: MediaLimits, name: str) -> bytes:
    """All that is left of a file; no more than one byte above the limit is read."""
    parts: list[bytes] = []
    total = 0
    while True:
        try:
            part = file.read(min(_READ_BYTES, limits.max_bytes + 1 - total))
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise MediaError(f"{name}: cannot be read ({error}); give the bytes") from None
        if not isinstance(part, bytes):
            what = "texts" if isinstance(part, str) else "no bytes"
            raise InvalidRequestError(f"{name}: a {type(file).__name__} that gives {what}; open it for bytes, and blocking")
        if not part:
            return b"".join(parts)
        total += len(part)
        _check_size(total, limits, name)
        parts.append(part)


def _from_data_uri(uri: str, limits: MediaLimits, name: str) -> bytes:
    """RFC 2397: data:[type][;option=value]*[;base64],content."""
    head, comma, content = uri.partition(",")
    if not comma:
        raise MediaError(f"{name}: {_shown(uri)!r} is a data: address without a comma; write it as data:image/png;base64,...")
    encoded = head.lower().endswith(_BASE64_OPTION)
    if "%" in content or not encoded:
        if _BAD_ESCAPE.search(content):
            raise MediaError(f"{name}: its data: address holds a % that begins no %XX; write % as %25")
        if not content.isascii():
            raise MediaError(f"{name}: its data: address holds characters beyond ASCII; write their bytes as %XX")
        # Three characters of base64 may stand for one here, of which four stand for three bytes.
        plain = len(content) - 2 * content.count("%")
        _check_size(plain // 4 * 3 - 2 if encoded else plain, limits, name)
    if not encoded:
        return unquote_to_bytes(content)
    return from_base64(unquote_to_bytes(content).decode("latin-1") if "%" in content else content, name, limits)


def _check_size(size: int, limits: MediaLimits, name: str) -> None:
    if size > limits.max_bytes:
        raise MediaError(f"{name}: has {size:,} bytes or more, and at most {limits.max_bytes:,} are allowed (max_bytes)")


def _scheme(text: str) -> str:
    match = _SCHEME.match(text)
    return match.group(1).lower() if match else ""


def _is_file(text: str) -> bool:
    """A file may be called like an address: a:b."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
