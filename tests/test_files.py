"""Files that are replaced as a whole."""

from __future__ import annotations

import stat

import pytest

from localllm.files import write_atomically


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_as_readable_as_any_other(tmp_path, sync):
    write_atomically(tmp_path / "ours", b"one ", memoryview(b"two"), sync=sync)
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "ours").read_bytes() == b"one two"
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "other")}
    assert len(modes) == 1


def test_what_cannot_be_written_changes_nothing(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, b"new", "no bytes")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"")
