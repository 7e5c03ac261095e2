"""Packages that only some uses need, and that are not always installed."""

from __future__ import annotations

import importlib
from types import ModuleType

from localllm.errors import MissingPackageError


def require_packages(purpose: str, *modules: str, extra: str | None = None) -> tuple[ModuleType, ...]:
    """Imports what is needed for something, or says how to get it.

    Args:
        purpose: how the error begins, e.g. "plot: pictures need"; the name of the module follows.
        modules: names of their modules, which are those of the packages unless `extra` is given.
        extra: of localllm, which installs them all.

    Returns:
        tuple of modules, in that order.

    Raises:
        MissingPackageError: One of them is not installed, or cannot be imported.
    """
    imported = []
    for module in modules:
        try:
            imported.append(importlib.import_module(module))
        except (ImportError, OSError) as error:  # OSError: a shared library that the package loads is missing
            wanted = " ".join(modules) if extra is None else f"'localllm[{extra}]'"
            raise MissingPackageError(f"{purpose} {module}; pip install {wanted} ({error})") from error
    return tuple(imported)
