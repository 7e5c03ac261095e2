"""What the Hub's environment variables say, read whenever it is asked for. The names and rules are huggingface_hub's."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from localllm.errors import AccessDeniedError, InvalidRequestError
from localllm.hub.options import check_kind

DEFAULT_ENDPOINT = "https://huggingface.co"
_MAX_TOKEN_CHARACTERS = 4096
_TRUE = {"1", "ON", "YES", "TRUE"}


def flag(name: str) -> bool:
    """Whether a variable is switched on."""
    return os.environ.get(name, "").strip().upper() in _TRUE


def endpoint(value: str | None = None) -> str:
    """The Hub to talk to, without a slash at its end: `value`, else HF_ENDPOINT, else huggingface.co.

    Raises:
        InvalidRequestError: Not an http or https address of a host.
    """
    chosen = value if value is not None else os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    source = "endpoint" if value is not None else "HF_ENDPOINT"
    try:
        parts = urlsplit(chosen)
        sound = (
            isinstance(chosen, str)
            and chosen.isprintable()
            and " " not in chosen
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        sound = False
    if not sound:
        raise InvalidRequestError(f"{source} must be an address such as {DEFAULT_ENDPOINT}, not {chosen!r}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRequestError(f"{source} must be an address without user, query or fragment; give a token as HF_TOKEN")
    return chosen.rstrip("/")


def offline(value: bool | None = None) -> bool:
    """Whether the network is forbidden: `value`, else HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE.

    Raises:
        InvalidRequestError: It is neither True, False nor None.
    """
    check_kind("offline", value, bool, type(None))
    return value if value is not None else flag("HF_HUB_OFFLINE") or flag("TRANSFORMERS_OFFLINE")


def home() -> Path:
    """HF_HOME, else `huggingface` in XDG_CACHE_HOME, else ~/.cache/huggingface."""
    given = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return expanded(os.path.expandvars(given), "HF_HOME")


def cache_folder() -> Path:
    """Where downloaded repositories are kept: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else `hub` in `home()`."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return expanded(os.path.expandvars(given), "HF_HUB_CACHE") if given else home() / "hub"


def implicit_token() -> str | None:
    """The token that no argument gave: HF_TOKEN, else the file at HF_TOKEN_PATH or `token` in `home()`, else None.

    Raises:
        AccessDeniedError: The file is there but cannot be read, or what is found is no token.
    """
    if flag("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    if os.environ.get("HF_TOKEN", "").strip():
        return checked_token(os.environ["HF_TOKEN"], "HF_TOKEN")
    given = os.environ.get("HF_TOKEN_PATH")
    path = expanded(os.path.expandvars(given), "HF_TOKEN_PATH") if given else home() / "token"
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_TOKEN_CHARACTERS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise AccessDeniedError(f"the token file {path} cannot be read: {reason}; mend it, or set HF_TOKEN") from None
    return checked_token(text, f"the token file {path}") if text.strip() else None


def checked_token(token: str, source: str) -> str:
    """The token without white space around it; never part of a message.

    Raises:
        AccessDeniedError: It is empty, or holds characters that no token has.
    """
    stripped = token.strip()
    if not stripped or not all("!" <= character <= "~" for character in stripped):
        raise AccessDeniedError(
            f"{source} holds no token: one word of printable ASCII is expected; make one in the Hub's settings"
        )
    return stripped


def expanded(path: str, source: str) -> Path:
    """A path of the environment or of the user, with the home folder in place of "~".

    Args:
        path: str.
        source: str, where it is from.

    Raises:
        InvalidRequestError: There is no such home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidRequestError(f"{source}: nobody knows which folder the '~' in {path!r} is; write the whole path") from None
