"""Models carried by hand: whole archives arrive whole, damaged and hostile ones leave nothing behind."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from localllm.errors import (
    CorruptFileError,
    DiskSpaceError,
    DownloadCancelledError,
    HubError,
    IncompleteSetError,
    InvalidRequestError,
    ModelNotFoundError,
)
from localllm.hub.archive import aexport, aimport, export, import_
from localllm.hub.download import download_all
from localllm.hub.garbage import gc
from localllm.hub.inventory import models_here, pin
from localllm.hub.layout import RepoCache
from localllm.hub.manifest import Manifest
from localllm.hub.progress import CancelToken
from localllm.hub.store import Store

SHARDS = [f"Q4_0/big-Q4_0-{n + 1:05d}-of-00002.gguf" for n in range(2)]


@pytest.fixture
def repo(hub, gguf) -> dict[str, bytes]:
    files = {name: gguf("big", shard=(n, 2)) for n, name in enumerate(SHARDS)}
    files["mmproj-big-F16.gguf"] = gguf("eyes", "projector")
    hub.add("org/big", files)
    return files


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Store:
    """The store of another machine."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "there/hub"))
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "there/own"))
    return Store(tmp_path / "there/own/models", tmp_path / "there/hub")


@pytest.fixture
def archive(repo, pulled, store, tmp_path) -> Path:
    pulled("org/big:Q4_0")
    pin(store, "org/big:Q4_0")
    return export(store, "org/big:Q4_0", tmp_path / "big.tar").path


def files_below(folder: Path) -> list[str]:
    """Everything in a folder but locks and what marks a cache."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if ".locks" not in path.parts]
    return sorted(name for name in found if name != "CACHEDIR.TAG")


@pytest.mark.parametrize("links", ["symlinks", "no symlinks"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_exported_arrives(hub, repo, pulled, store, tmp_path, elsewhere, monkeypatch, kind, links):
    if links == "no symlinks":
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    manifest = pulled("org/big:Q4_0")
    target = f"{tmp_path}/big{'/' if kind == 'folder' else '.tar'}"
    done = export(store, "org/big", target)
    assert (str(done.path), done.n_bytes) == (target.rstrip("/"), sum(map(len, repo.values())))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".writing")] == []
    hub.forget()
    found = import_(elsewhere, target)
    expected = dataclasses.replace(manifest, cache=elsewhere.cache, pulled_at=found.pulled_at)
    assert found == expected and not found.missing()
    assert hub.log == []
    assert [(one.reference, one.state) for one in models_here(elsewhere) if one.repo] == [("org/big:Q4_0", "complete")]
    assert found.place.read_ref("main") == manifest.commit
    program = (
        "from huggingface_hub import hf_hub_download, scan_cache_dir; import sys\n"
        "print(hf_hub_download('org/big', sys.argv[1])); print(scan_cache_dir().warnings)"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(elsewhere.cache)}
    shown = subprocess.run([sys.executable, "-c", program, SHARDS[1]], env=env, capture_output=True, text=True, check=True)
    path, warnings = shown.stdout.splitlines()
    assert (Path(path).read_bytes(), warnings) == (repo[SHARDS[1]], "[]")


def test_the_archive_is_one_that_tar_reads_and_the_same_every_time(archive, store, repo, tmp_path, elsewhere):
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["localllm-model.json", *(f"files/{name}" for name in repo)]
        for name, data in repo.items():
            assert tar.extractfile(f"files/{name}").read() == data
        record = json.load(tar.extractfile("localllm-model.json"))
    assert (record["cache"], record["pinned"]) == (".", False)
    assert str(tmp_path) not in json.dumps(record)
    again = export(store, "org/big", tmp_path / "again.tar").path
    assert again.read_bytes() == archive.read_bytes()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "files" / SHARDS[0]).read_bytes() == repo[SHARDS[0]]


def test_long_names_pass(hub, gguf, pulled, store, tmp_path, elsewhere):
    name = f"{'ordner-ü/' * 20}{'x' * 150}-Q4_0.gguf"
    hub.add("org/long", {name: gguf()})
    pulled("org/long")
    found = import_(elsewhere, export(store, "org/long", tmp_path / "long.tar").path)
    assert found.first("model").read_bytes() == gguf()


def test_what_another_program_brought_can_be_exported(repo, hub, client, store, tmp_path, elsewhere):
    listing = client.listing("org/big")
    download_all(client, listing, listing.files, cache=store.cache)
    found = import_(elsewhere, export(store, "org/big:Q4_0", tmp_path / "big.tar").path)
    assert [kept.file for kept in found.files] == [file for file in listing.files if file.path in SHARDS]
    assert (found.commit, found.revision) == (listing.commit, "main")


def test_an_import_over_what_is_here(archive, repo, store, elsewhere, hub):
    first = import_(elsewhere, archive)
    inode = first.first("model").stat().st_ino
    pin(elsewhere, "org/big")
    first.place.pointer(first.commit, SHARDS[1]).resolve().write_bytes(b"damaged")
    (first.place.folder / "refs/main").write_text("1" * 40)
    again = import_(elsewhere, archive)
    assert again.first("model").stat().st_ino == inode
    assert again.place.pointer(again.commit, SHARDS[1]).read_bytes() == repo[SHARDS[1]]
    assert elsewhere.manifests()[0].pinned
    assert again.place.read_ref("main") == "1" * 40  # what it means here, others say
    assert [path for path in first.place.blobs.iterdir() if "." in path.name] == []


# ---- what cannot be written


def test_targets_that_are_there_are_not_replaced_unasked(archive, store, tmp_path):
    before = archive.read_bytes()
    with pytest.raises(InvalidRequestError, match="is there already"):
        export(store, "org/big", archive)
    assert export(store, "org/big", archive, overwrite=True).path.read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("x")
    for folder, overwrite in ((True, False), (True, True), (False, True)):
        with pytest.raises(InvalidRequestError, match="is there already"):
            export(store, "org/big", tmp_path / "full", folder=folder, overwrite=overwrite)
    with pytest.raises(InvalidRequestError, match="is there already"):
        export(store, "org/big", archive, folder=True, overwrite=True, progress=lambda event: pytest.fail("it was begun"))
    (tmp_path / "empty").mkdir()
    export(store, "org/big", f"{tmp_path}/empty/")
    with pytest.raises(HubError, match="cannot be written"):
        export(store, "org/big", tmp_path / "no/such/folder.tar")


def test_models_that_are_not_whole_or_from_no_repository_are_not_exported(repo, pulled, store, tmp_path, smollm2):
    manifest = pulled("org/big:Q4_0")
    path = manifest.first("model").resolve()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="is damaged"):
        export(store, "org/big", tmp_path / "x.tar")
    with pytest.raises(CorruptFileError, match="is damaged"):
        export(store, "org/big", f"{tmp_path}/x/")
    path.unlink()
    with pytest.raises(IncompleteSetError, match="localllm repair"):
        export(store, "org/big", tmp_path / "x.tar")
    with pytest.raises(InvalidRequestError, match="copy its file"):
        export(store, "smollm2", tmp_path / "x.tar")
    with pytest.raises(ModelNotFoundError):
        export(store, "org/other", tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists() and not list(tmp_path.glob(".exporting*"))


def test_no_room_is_told_before_anything_is_written(archive, store, tmp_path, elsewhere, monkeypatch):
    import localllm.hub.layout as layout

    class Full:
        free = 10

    monkeypatch.setattr(layout.shutil, "disk_usage", lambda path: Full)
    for call in (lambda: export(store, "org/big", tmp_path / "x.tar"), lambda: import_(elsewhere, archive)):
        with pytest.raises(DiskSpaceError, match="10 are free"):
            call()
    assert not elsewhere.cache.exists() and not (tmp_path / "x.tar").exists()


def test_what_is_here_already_needs_no_room(archive, elsewhere, repo, monkeypatch):
    import localllm.hub.layout as layout

    class Full:
        free = 10

    first = import_(elsewhere, archive)
    monkeypatch.setattr(layout.shutil, "disk_usage", lambda path: Full)
    assert import_(elsewhere, archive).files == first.files
    first.place.pointer(first.commit, SHARDS[1]).resolve().unlink()
    with pytest.raises(DiskSpaceError) as caught:
        import_(elsewhere, archive)
    assert caught.value.needed_bytes == len(repo[SHARDS[1]])


def test_where_no_record_can_be_written_nothing_is_imported(archive, elsewhere, tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file/models", tmp_path / "file"):
        with pytest.raises(HubError, match="LOCALLLM_HOME"):
            import_(Store(folder, elsewhere.cache), archive, progress=lambda event: pytest.fail("it was begun"))
    assert not elsewhere.cache.exists()


# ---- archives that are damaged or worse


def rebuilt(archive: Path, change) -> Path:
    """The archive with its record (a table) and its files (name -> content) changed."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    record = json.loads(files.pop("localllm-model.json"))
    files = change(record, files) or files
    path = archive.with_name("rebuilt.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in {"localllm-model.json": json.dumps(record).encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def with_name(at: int, name: str):
    def change(record, files):
        old = record["files"][at]["file"]["path"]
        record["files"][at]["file"]["path"] = name
        return {(f"files/{name}" if key == f"files/{old}" else key): data for key, data in files.items()}

    return change


def with_field(**fields: object):
    return lambda record, files: record.update(fields)


def with_file(at: int, **fields: object):
    return lambda record, files: record["files"][at]["file"].update(fields)


def swapped(record, files):
    names = list(files)
    files[names[0]], files[names[1]] = files[names[1]], files[names[0]]


def as_role(record, files):
    record["files"][-1]["role"] = "draft"


def two_of_one(record, files):
    record["files"].append(record["files"][-1])


def one_shard(record, files):
    record["files"].pop(1)
    files.pop(f"files/{SHARDS[1]}")


def a_shard_twice(record, files):
    """Both say that they are the first."""
    files[f"files/{SHARDS[1]}"] = files[f"files/{SHARDS[0]}"]
    record["files"][1]["file"].update({key: record["files"][0]["file"][key] for key in ("sha256", "n_bytes")})


def no_gguf(record, files):
    data = b"no model at all"
    record["files"] = [record["files"][0]]
    record["files"][0]["file"].update(sha256=hashlib.sha256(data).hexdigest(), n_bytes=len(data))
    return {f"files/{SHARDS[0]}": data}


HOSTILE = {
    "traversal": with_name(-1, "../../../evil.gguf"),
    "absolute": with_name(-1, "/evil.gguf"),
    "backslash": with_name(-1, "..\\evil.gguf"),
    "device of Windows": with_name(-1, "con.gguf"),
    "a program": with_name(-1, "modeling_big.py"),
    "two that are one on some systems": with_name(-1, "q4_0/BIG-Q4_0-00001-OF-00002.GGUF"),
    "repository": with_field(repo="../../evil"),
    "revision": with_field(revision="../../evil"),
    "commit": with_field(commit="main"),
    "no files": with_field(files=[]),
    "files of another kind": with_field(files={"a": 1}),
    "unknown field": with_field(evil=1),
    "another version": with_field(version=99),
    "blob's name": with_file(0, sha256="../../evil"),
    "wrong checksum": with_file(0, sha256="0" * 64),
    "wrong size": with_file(0, n_bytes=5),
    "huge size": with_file(0, n_bytes=1 << 62),
    "negative size": with_file(0, n_bytes=-1),
    "contents swapped": swapped,
    "a projector as draft": as_role,
    "a file twice": two_of_one,
    "a shard left out": one_shard,
    "a shard twice": a_shard_twice,
    "a shard under another name": with_name(1, "other-Q4_0-00002-of-00002.gguf"),
    "a shard with another number": with_name(1, "Q4_0/big-Q4_0-00003-of-00003.gguf"),
    "no GGUF": no_gguf,
    "a file too many": lambda record, files: {**files, "files/more.gguf": b"x"},
    "a file too few": lambda record, files: dict(list(files.items())[:-1]),
    "another order": lambda record, files: dict(reversed(files.items())),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_nothing_is_left_of_an_archive_that_no_export_would_write(archive, elsewhere, tmp_path, change):
    before = files_below(tmp_path)
    path = rebuilt(archive, change)
    with pytest.raises(CorruptFileError, match="rebuilt.tar"):
        import_(elsewhere, path)
    path.unlink()
    if elsewhere.folder.is_dir():
        assert [found.name for found in elsewhere.folder.iterdir()] in ([], [".lock"])
        shutil.rmtree(elsewhere.folder.parent)
    left = [name for name in files_below(tmp_path) if name not in before]
    assert left in ([], ["there", "there/hub"])
    assert elsewhere.manifests() == []


def test_a_file_in_a_tar_archive_must_be_one(archive, elsewhere, tmp_path):
    with tarfile.open(archive) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        path = tmp_path / "kind.tar"
        with path.open("wb") as file:
            for at, (member, data) in enumerate(members):
                info = tarfile.TarInfo(member.name)
                info.size = len(data) if at != 1 else 0
                info.type = kind if at == 1 else tarfile.REGTYPE
                info.linkname = "/etc/passwd"
                file.write(info.tobuf(tarfile.PAX_FORMAT))
                if at != 1:
                    file.write(data + bytes(-len(data) % 512))
            file.write(bytes(100 << 10))
        with pytest.raises(CorruptFileError, match=r"no regular file|is damaged"):
            import_(elsewhere, path)
        assert elsewhere.manifests() == []


def header(name: str = "localllm-model.json", size: int = 0, kind: bytes = b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


RAW = {
    "empty": b"",
    "zeros": bytes(10240),
    "noise": bytes(range(256)) * 40,
    "short": header()[:300],
    "record too large": header(size=5 << 20) + bytes(6 << 20),
    "endless record": header(size=1 << 60),
    "negative size": header(size=-5),
    "endless extended header": header("x", 1 << 40, b"x"),
    "large extended header": header("x", 1 << 20, b"x") + bytes(2 << 20),
    "extended header of nonsense": header("x", 512, b"x") + b"99999 path=x\n".ljust(512, b"\0"),
    "extended header that ends in itself": header("x", 512, b"x") + b"3 a=b\n".ljust(512, b"\0"),
    "extended size of nonsense": header("x", 13, b"x") + b"13 size=-100\n".ljust(512, b"\0") + header(),
    "extended headers without end": header("x", 0, b"x") * 100,
    "global extended header": header("g", 512, b"g") + bytes(512),
    "long name of GNU": header("l", 512, b"L") + bytes(512),
    "another file first": header("files/x.gguf", 4) + b"GGUF".ljust(512, b"\0"),
    "no JSON": header(size=4) + b"{{{{".ljust(512, b"\0"),
    "deep JSON": header(size=100_000) + b"[" * 100_000 + bytes(1024),
    "checksum": header()[:148] + b"0000000\0" + header()[156:],
}


@pytest.mark.parametrize("data", RAW.values(), ids=RAW)
def test_what_is_no_archive_is_refused_in_little_memory(store, tmp_path, data):
    path = tmp_path / "raw.tar"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(CorruptFileError, match="raw.tar"):
        import_(store, path)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert not store.cache.exists()


def test_every_cut_and_every_turned_byte_is_noticed(archive, elsewhere, tmp_path, repo):
    data = archive.read_bytes()
    path = tmp_path / "damaged.tar"
    for stop in range(0, len(data) - 1024, len(data) // 25):
        path.write_bytes(data[:stop])
        with pytest.raises(CorruptFileError):
            import_(elsewhere, path)
    with tarfile.open(archive) as tar:
        used = [(member.offset_data, member.size) for member in tar]
    for start, size in used[1:]:
        for at in (start, start + size // 2, start + size - 1):
            changed = bytearray(data)
            changed[at] ^= 1
            path.write_bytes(changed)
            with pytest.raises(CorruptFileError):
                import_(elsewhere, path)
    assert files_below(elsewhere.cache) == [] and elsewhere.manifests() == []


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"GGUF" + bytes(100), "is a model itself"), (gzip.compress(b"x"), "compressed by gzip"), (None, "no such file")],
    ids=["model", "compressed", "missing"],
)
def test_other_files_are_told_by_what_they_are(store, tmp_path, data, words):
    path = tmp_path / "given"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidRequestError, match=words):
        import_(store, path)


def test_links_in_a_folder_are_not_followed(archive, store, elsewhere, tmp_path, repo):
    folder = export(store, "org/big", f"{tmp_path}/folder/").path
    (tmp_path / "secret.gguf").write_bytes(repo[SHARDS[0]])
    (folder / "notes.txt").write_bytes(bytes(100 << 10))
    for make in (
        lambda: (folder / "files" / SHARDS[0]).symlink_to(tmp_path / "secret.gguf"),
        lambda: ((folder / "files/Q4_0").rename(tmp_path / "q"), (folder / "files/Q4_0").symlink_to(tmp_path / "q")),
    ):
        (folder / "files" / SHARDS[0]).unlink()
        make()
        with pytest.raises(CorruptFileError, match="no regular file"):
            import_(elsewhere, folder)
        if (folder / "files/Q4_0").is_symlink():
            break
        (folder / "files" / SHARDS[0]).unlink()
        (folder / "files" / SHARDS[0]).write_bytes(repo[SHARDS[0]])
    assert files_below(elsewhere.cache) == []


# ---- endings


def test_a_cancelled_export_or_import_leaves_nothing(archive, store, elsewhere, tmp_path):
    for call in (
        lambda **options: export(store, "org/big", tmp_path / "x.tar", **options),
        lambda **options: export(store, "org/big", f"{tmp_path}/x/", **options),
        lambda **options: import_(elsewhere, archive, **options),
    ):
        cancel = CancelToken()
        events = []

        def told(event, cancel=cancel, events=events):
            events.append(event)
            if event.phase == "finished":
                cancel.cancel()

        with pytest.raises(DownloadCancelledError, match="nothing of it is left"):
            call(progress=told, cancel=cancel)
        assert events[-1].phase == "finished" and len({event.file for event in events}) == 1
    assert not (tmp_path / "x.tar").exists() and not (tmp_path / "x").exists() and not list(tmp_path.glob(".exporting*"))
    assert files_below(elsewhere.cache) == []


KILLED = """
import os, signal, sys
from localllm.hub.archive import import_
from localllm.hub.store import Store
n = int(sys.argv[2])
def told(event):
    global n
    n -= event.phase == "finished"
    if n == 0:
        os.kill(os.getpid(), signal.SIGKILL)
import_(Store(), sys.argv[1], progress=told)
"""


def test_an_import_that_is_killed_leaves_what_gc_removes(archive, elsewhere):
    from huggingface_hub import scan_cache_dir

    for n in (1, 3):
        done = subprocess.run([sys.executable, "-c", KILLED, str(archive), str(n)])
        assert done.returncode == -9
        assert elsewhere.manifests() == [] and [one.state for one in models_here(elsewhere) if one.repo] == ["partial"]
        assert scan_cache_dir(elsewhere.cache).warnings == []
        assert gc(elsewhere).removal.freed_bytes > 0
        assert files_below(elsewhere.cache) == []
    assert not import_(elsewhere, archive).missing()


def test_two_imports_at_once(archive, elsewhere):
    program = "\n".join(
        ("import sys", "from localllm.hub.archive import import_", "from localllm.hub.store import Store",
         "import_(Store(), sys.argv[1])")
    )  # fmt: skip
    running = [subprocess.Popen([sys.executable, "-c", program, str(archive)]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    (manifest,) = elsewhere.manifests()
    assert not manifest.missing() and all("." not in path.name for path in manifest.place.blobs.iterdir())


async def test_beside_an_event_loop(archive, store, elsewhere, tmp_path):
    done = await aexport(store, "org/big", tmp_path / "again.tar")
    assert (await aimport(elsewhere, done.path)).repo == "org/big"
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(
        aexport(store, "org/big", tmp_path / "third.tar", progress=lambda event: loop.call_soon_threadsafe(gate.set))
    )
    await gate.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(done.manifest, Manifest) and not list(tmp_path.glob(".exporting*"))


@pytest.mark.parametrize("ends", ["cancelled", "finished"])
def test_what_another_program_brought_is_hashed_under_the_callers_eyes(repo, store, tmp_path, gguf, ends):
    """Where the cache has no links, nothing tells the checksum of a file."""
    path = RepoCache.of("org/other", store.cache).pointer("a" * 40, "m-Q4_0.gguf")
    path.parent.mkdir(parents=True)
    path.write_bytes(gguf(n_values=1 << 20))
    cancel, events = CancelToken(), []

    def told(event) -> None:
        events.append((event.phase, event.done_bytes, len(list(tmp_path.glob(".exporting-*")))))
        if ends == "cancelled":
            cancel.cancel()

    if ends == "finished":
        assert export(store, "org/other", tmp_path / "x.tar", progress=told).n_bytes == path.stat().st_size
        assert events[0] == ("checking", 1 << 20, 0) and ("checking", 1 << 20, 2) in events
        return
    with pytest.raises(DownloadCancelledError, match="nothing of it is left"):
        export(store, "org/other", tmp_path / "x.tar", progress=told, cancel=cancel)
    assert events == [("checking", 1 << 20, 0)] and not (tmp_path / "x.tar").exists()


def test_what_is_no_archive_is_said_once(store, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("no archive\n" * 100)
    for name in ("empty", "text.tar"):
        with pytest.raises(CorruptFileError) as caught:
            import_(store, tmp_path / name)
        assert str(caught.value).count("export the model once more") == 1 and str(caught.value).count(name) == 1


FULL = """
import resource, signal, sys
from localllm.errors import DiskSpaceError
from localllm.hub.archive import export, import_
from localllm.hub.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
try:
    export(Store(), *sys.argv[2:]) if sys.argv[1] == "export" else import_(Store(), sys.argv[2])
except DiskSpaceError as error:
    print(error)
"""


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_disk_that_fills_up_meanwhile_is_told_and_leaves_nothing(archive, store, tmp_path, ending):
    target = tmp_path / "out/new"
    target.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FULL, "export", "org/big", f"{target}{ending}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "") and "name a file on another disk" in done.stdout
    assert list(target.parent.iterdir()) == []
    environment = {**os.environ, "HF_HOME": str(tmp_path / "elsewhere"), "LOCALLLM_HOME": str(tmp_path / "other")}
    done = subprocess.run(
        [sys.executable, "-c", FULL, "import", str(archive)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "") and "set HF_HUB_CACHE to a folder on another disk" in done.stdout
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
