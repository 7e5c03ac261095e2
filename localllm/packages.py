"""Packages that only some uses need, and that are not always installed."""

from __future__ import annotations

import importlib

from localllm.errors import MissingPackageError


def require_packages(purpose: str, *modules: str) -> None:
    """Imports what is needed for something, or says how to get it.

    Args:
        purpose: how the error begins, e.g. "plot: pictures need"; the name of the module follows.
        modules: names of their modules, which are those of the packages.

    Raises:
        MissingPackageError: One of them is not installed, or cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingPackageError(f"{purpose} {module}; pip install {' '.join(modules)} ({error})") from error
