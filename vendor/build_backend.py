"""The build backend: scikit-build-core, after making sure that llama.cpp's source is there.

A checkout of the repository has no llama.cpp; the first build of it fetches the source with pip, which is asked for
only then. An sdist carries the source, so building from one needs neither pip nor a network for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fetch
from scikit_build_core import build as _core

Settings = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent

# The metadata does not depend on the source, so asking for it fetches nothing. scikit-build-core leaves these hooks out
# when a build may change the metadata.
if hasattr(_core, "prepare_metadata_for_build_wheel"):
    prepare_metadata_for_build_wheel = _core.prepare_metadata_for_build_wheel
if hasattr(_core, "prepare_metadata_for_build_editable"):
    prepare_metadata_for_build_editable = _core.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    """scikit-build-core's requirements (cmake and ninja if the system's are missing or too old), and pip to fetch."""
    return [*_core.get_requires_for_build_wheel(config_settings), *_requires_for_fetching()]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return [*_core.get_requires_for_build_editable(config_settings), *_requires_for_fetching()]


def get_requires_for_build_sdist(config_settings: Settings | None = None) -> list[str]:
    return [*_core.get_requires_for_build_sdist(config_settings), *_requires_for_fetching()]


def build_wheel(wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None) -> str:
    _ensure_source()
    return _core.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None) -> str:
    _ensure_source()
    return _core.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings | None = None) -> str:
    _ensure_source()
    return _core.build_sdist(sdist_directory, config_settings)


def _requires_for_fetching() -> list[str]:
    return ["pip"] if fetch.is_missing(ROOT) else []


def _ensure_source() -> None:
    """Fetch llama.cpp if it is missing. A failure ends the hook with its message instead of a traceback."""
    try:
        fetch.ensure(ROOT)
    except fetch.FetchError as error:
        raise SystemExit(f"localllm: {error}") from None
