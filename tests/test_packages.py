"""Packages that are not always installed."""

from __future__ import annotations

import sys

import pytest

from localllm.errors import MissingPackageError
from localllm.packages import require_packages


def test_what_is_there_is_imported():
    require_packages("tests need", "xml", "xml.dom.pulldom")
    assert "xml.dom.pulldom" in sys.modules


@pytest.mark.parametrize("modules", [("there_is_no_such",), ("json", "there_is_no_such")])
def test_what_is_missing_is_named_with_what_to_install(modules):
    with pytest.raises(MissingPackageError, match=rf"^tests need there_is_no_such; pip install {' '.join(modules)} \(No module"):
        require_packages("tests need", *modules)
