"""The Hub's folders, and names that must not lead out of them."""

from __future__ import annotations

import string
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ReferenceFormatError
from localllm.hub import environment
from localllm.hub.layout import RepoCache
from localllm.hub.listing import RepoFile
from localllm.hub.paths import checked_blob, checked_commit, checked_path, checked_repo, checked_revision

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHA = "ab" * 32


@pytest.fixture
def cache(tmp_path: Path) -> RepoCache:
    return RepoCache.of("org/model", tmp_path)


def with_blob(cache: RepoCache, data: bytes = b"data") -> RepoCache:
    cache.prepare(COMMIT, "a.gguf", SHA)
    cache.blob(SHA).write_bytes(data)
    return cache


def no_links(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_where_things_are(cache, tmp_path):
    folder = tmp_path / "models--org--model"
    assert cache.blob(SHA) == folder / "blobs" / SHA
    assert cache.partial(SHA) == folder / "blobs" / f"{SHA}.incomplete"
    assert cache.pointer(COMMIT, "a/b.gguf") == folder / "snapshots" / COMMIT / "a/b.gguf"
    assert cache.lock(SHA) == tmp_path / ".locks/models--org--model" / f"{SHA}.lock"
    assert RepoCache.of("gpt2", tmp_path).folder == tmp_path / "models--gpt2"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/u/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/h"}, "/old"),
        ({"HF_HUB_CACHE": "/new", "HUGGINGFACE_HUB_CACHE": "/old"}, "/new"),
        ({"HF_HUB_CACHE": "~/mine"}, "/u/mine"),
        ({"HF_HOME": "$PLACE/x", "PLACE": "/p"}, "/p/x/hub"),
        ({"HF_HOME": ""}, "/u/.cache/huggingface/hub"),
    ],
)
def test_the_environment_says_where_the_cache_is(home, monkeypatch, variables, expected):
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", "/u")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.cache_folder() == Path(expected)


def test_a_blob_is_published_by_a_relative_link(cache, home, tmp_path):
    with_blob(cache)
    pointer = cache.publish(SHA, COMMIT, "deep/er/a.gguf")
    assert pointer.readlink() == Path(f"../../../../blobs/{SHA}")
    moved = tmp_path / "moved"
    cache.folder.rename(moved)
    assert (moved / "snapshots" / COMMIT / "deep/er/a.gguf").read_bytes() == b"data"


def test_without_symlinks_by_a_hard_link(cache, home, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    pointer = with_blob(cache).publish(SHA, COMMIT, "a.gguf")
    assert not pointer.is_symlink()
    assert pointer.samefile(cache.blob(SHA))
    assert cache.publish(SHA, COMMIT, "a.gguf") == pointer
    assert [path.name for path in cache.blobs.iterdir()] == [SHA]


def test_without_any_links_by_moving(cache, home, monkeypatch):
    """What FAT file systems offer."""
    monkeypatch.setattr(Path, "symlink_to", no_links)
    monkeypatch.setattr(Path, "hardlink_to", no_links)
    pointer = with_blob(cache).publish(SHA, COMMIT, "a.gguf")
    assert pointer.read_bytes() == b"data"
    assert not any(cache.blobs.iterdir())
    assert cache.find(COMMIT, RepoFile("a.gguf", 4, "0" * 40, SHA)) == pointer


@pytest.mark.parametrize("has_links", [True, False])
def test_a_blob_that_cannot_be_published_is_kept(cache, home, monkeypatch, has_links):
    if not has_links:
        for name in ("symlink_to", "hardlink_to"):
            monkeypatch.setattr(Path, name, no_links)
    with_blob(cache)
    (cache.pointer(COMMIT, "a.gguf") / "in the way").mkdir(parents=True)
    with pytest.raises(OSError):
        cache.publish(SHA, COMMIT, "a.gguf")
    assert [path.name for path in cache.blobs.iterdir()] == [SHA] and cache.blob(SHA).read_bytes() == b"data"


def test_what_was_there_before_makes_way(cache, home):
    pointer = cache.pointer(COMMIT, "a.gguf")
    pointer.parent.mkdir(parents=True)
    for make in (lambda: pointer.write_bytes(b"old"), lambda: pointer.symlink_to("nowhere")):
        pointer.unlink(missing_ok=True)
        make()
        assert with_blob(cache).publish(SHA, COMMIT, "a.gguf").read_bytes() == b"data"


def test_only_a_file_of_the_right_size_is_found(cache, home):
    with_blob(cache).publish(SHA, COMMIT, "a.gguf")
    assert cache.find(COMMIT, RepoFile("a.gguf", 4, "0" * 40, SHA)) == cache.pointer(COMMIT, "a.gguf")
    assert cache.find(COMMIT, RepoFile("a.gguf", 5, "0" * 40, SHA)) is None
    assert cache.find_blob(RepoFile("x.gguf", 4, "0" * 40, SHA)) == cache.blob(SHA)
    cache.blob(SHA).unlink()
    assert cache.find(COMMIT, RepoFile("a.gguf", 4, "0" * 40, SHA)) is None
    cache.blob(SHA).mkdir()
    assert cache.find_blob(RepoFile("x.gguf", 4, "0" * 40, SHA)) is None


def test_references(cache, home):
    cache.write_ref("main", COMMIT)
    assert cache.read_ref("main") is None  # there is no such snapshot
    with_blob(cache)
    cache.write_ref("main", COMMIT)
    cache.write_ref("refs/pr/1", COMMIT)
    cache.write_ref(COMMIT, COMMIT)
    assert (cache.read_ref("main"), cache.read_ref("refs/pr/1"), cache.read_ref("v1")) == (COMMIT, COMMIT, None)
    assert sorted(path.name for path in (cache.folder / "refs").iterdir()) == ["main", "refs"]
    (cache.folder / "refs/main").write_text("../../evil")
    assert cache.read_ref("main") is None
    with pytest.raises(ReferenceFormatError):
        cache.write_ref("../evil", COMMIT)


def test_the_cache_is_tagged_for_backups(cache, home, tmp_path):
    with_blob(cache)
    assert (tmp_path / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


# ---- names

GOOD = ["a.gguf", "a/b/c.gguf", "Übung.gguf", "a b.gguf", ".gitattributes", "a..b", "com10", "console.txt", "auxiliary/nul1"]
BAD = [
    "",
    "/a",
    "..",
    "../a",
    "a/../b",
    "a/..",
    "./a",
    "a//b",
    "a/",
    "a\\b",
    "C:\\a",
    "c:a",
    "a:b",
    "a\0",
    "a\nb",
    "\x7f",
    "\x85",
    "a\u2028",
]
BAD += ["con", "CON.txt", "a/NUL", "Lpt1.gguf", "com¹", "conin$", "a.", "a ", "a /b", "x" * 256, "\ud800", "ü" * 128]


@pytest.mark.parametrize("path", GOOD)
def test_paths_that_may_be_used(path):
    assert checked_path(path) == path


@pytest.mark.parametrize("path", BAD)
def test_paths_that_may_not(path):
    with pytest.raises(ReferenceFormatError):
        checked_path(path)


PIECES = [*"./\\: ~$%a\0\né\u202e", "..", "CON", "C:"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_whatever_is_let_through_stays_inside(path):
    try:
        checked_path(path)
    except ReferenceFormatError:
        return
    for kind, root in ((PurePosixPath, "/cache/x"), (PureWindowsPath, "C:\\cache\\x")):
        inside = kind(root).joinpath(*path.split("/"))
        assert inside.is_relative_to(kind(root))
        assert ".." not in inside.parts
        assert len(inside.parts) == len(kind(root).parts) + path.count("/") + 1


@given(
    st.text(alphabet=string.printable, max_size=8),
    st.sampled_from([checked_repo, checked_revision, checked_commit, checked_blob]),
)
def test_names_are_accepted_as_they_are_or_refused(text, check):
    try:
        assert check(text) == text
    except ReferenceFormatError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize("repo", ["a/b", "gpt2", "a-b/c.d_e", "A/B", "_a/b_"])
def test_repositories_that_may_be(repo):
    assert checked_repo(repo) == repo


@pytest.mark.parametrize(
    "repo", ["", "/", "a/", "/a", "a/b/c", "a--b/c", "a/b..c", "-a/b", "a/b.", "a/b.git", "a b/c", "a/é", "x" * 97, "a/.."]
)
def test_repositories_that_may_not(repo):
    with pytest.raises(ReferenceFormatError):
        checked_repo(repo)
