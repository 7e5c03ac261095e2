"""Packages that are not always installed."""

from __future__ import annotations

import sys

import pytest

from localllm.errors import MissingPackageError
from localllm.packages import require_packages


def test_what_is_there_is_imported():
    modules = require_packages("tests need", "xml", "xml.dom.pulldom")
    assert modules == (sys.modules["xml"], sys.modules["xml.dom.pulldom"])


@pytest.mark.parametrize("modules", [("there_is_no_such",), ("json", "there_is_no_such")])
def test_what_is_missing_is_named_with_what_to_install(modules):
    with pytest.raises(MissingPackageError, match=rf"^tests need there_is_no_such; pip install {' '.join(modules)} \(No module"):
        require_packages("tests need", *modules)


def test_an_extra_is_what_to_install():
    with pytest.raises(MissingPackageError, match=r"^images need there_is_no_such; pip install 'localllm\[media\]' \(No module"):
        require_packages("images need", "there_is_no_such", extra="media")


def test_a_package_without_its_shared_library_is_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("raise OSError('libhalf.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match=r"^sound needs half_installed; .*libhalf.so"):
        require_packages("sound needs", "half_installed")
