"""A Hub on this machine: repositories over the Hub's routes, large files from a second origin, and faults on request.

    with HubServer() as hub:
        hub.add("org/model", {"model-Q4_0.gguf": b"..." or Path})
        hub.fail(path="*.gguf", cut_after=1000)
        ...  # HF_ENDPOINT=hub.endpoint
        hub.gets("model-Q4_0.gguf")  # the requests that the second origin got

As a program, `python hub_server.py org/name=FOLDER ...`, it prints its endpoint as JSON, and serves until its input ends.

The routes and headers are those that huggingface_hub 2.4 and llama.cpp ask for; test_hub_server.py drives the former against it.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import fnmatch
import hashlib
import json
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK_BYTES = 256 << 10
LFS_FROM_BYTES = 1 << 10  # the Hub goes by .gitattributes: here, what is large or a GGUF


@dataclass(frozen=True)
class Stored:
    """The content of one file, and what the Hub says about it."""

    data: bytes | Path
    n_bytes: int
    oid: str
    sha256: str
    lfs: bool

    def read(self, start: int, stop: int) -> bytes:
        if isinstance(self.data, bytes):
            return self.data[start:stop]
        with self.data.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


def stored(path: str, data: bytes | Path) -> Stored:
    sha256, n_bytes = hashlib.sha256(), 0
    if isinstance(data, bytes):
        sha256.update(data)
        n_bytes = len(data)
    else:
        with data.open("rb") as file:
            while piece := file.read(1 << 20):
                sha256.update(piece)
                n_bytes += len(piece)
    lfs = path.endswith(".gguf") or n_bytes >= LFS_FROM_BYTES
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {n_bytes}\n".encode()
    content = pointer if lfs else (data if isinstance(data, bytes) else data.read_bytes())
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return Stored(data, n_bytes, oid, sha256.hexdigest(), lfs)


@dataclass
class Repo:
    """A repository: `commits` by id, `refs` (branches and tags) to one of them; `readers` are the tokens that may see it."""

    name: str
    commits: dict[str, dict[str, Stored]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    disabled: bool = False
    readers: set[str] = field(default_factory=set)

    def commit(self, revision: str) -> str | None:
        if revision in self.commits:
            return revision
        return self.branches.get(revision) or self.tags.get(revision)


@dataclass
class Fault:
    """What goes wrong with answers that it fits, `times` times (None: always). All that is set happens at once."""

    path: str = "*"  # of the file, or of the address if it is about none
    origin: str = "cdn"  # "cdn", "api" or "*"
    methods: tuple[str, ...] = ("GET",)
    times: int | None = 1
    cut_after: int | None = None  # bytes of this answer, then the connection is shut
    stall_after: int | None = None  # bytes of this answer, then nothing more comes
    flip_at: int | None = None  # position in the file of a byte that arrives with its lowest bit turned
    ignore_range: bool = False
    delay_seconds: float = 0.0  # before each chunk
    chunk_bytes: int = CHUNK_BYTES
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # in place of the server's own; "" leaves one out
    length_error: int = 0  # is added to Content-Length
    redirect_loop: bool = False
    refuse: bool = False  # the connection is shut before any answer
    body: bytes | None = None  # in place of JSON


@dataclass(frozen=True)
class Entry:
    """One request: what was asked for, and what was given."""

    method: str
    origin: str
    path: str
    range: str
    authorization: str
    headers: dict[str, str]
    file: str = ""
    status: int = 0
    connection: int = 0  # the client's port


class HubServer:
    """Two origins on ports of their own, `endpoint` (the Hub) and `cdn` (where large files are)."""

    def __init__(self, page_size: int = 1000) -> None:
        self.page_size = page_size
        self.repos: dict[str, Repo] = {}
        self.renamed: dict[str, str] = {}
        self.users: dict[str, str] = {}  # token -> name
        self.faults: list[Fault] = []
        self.log: list[Entry] = []
        self.links: dict[str, tuple[Stored, str]] = {}
        self.open_links: set[str] = set()
        self.lock = threading.RLock()
        self.noted = threading.Condition(self.lock)
        self.ending = threading.Event()
        self._servers = [_Server(("127.0.0.1", 0), kind) for kind in (_Api, _Cdn)]
        for server in self._servers:
            server.hub = self
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> HubServer:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    # ---- what it holds

    def add(self, name: str, files: dict[str, bytes | Path], branch: str = "main", **facts: object) -> str:
        """A commit with exactly these files at the end of a branch; `facts` are attributes of Repo. Returns its id."""
        with self.lock:
            repo = self.repos.setdefault(name, Repo(name))
            for key, value in facts.items():
                if not hasattr(repo, key):
                    raise TypeError(key)
                setattr(repo, key, value)
            tree = {path: stored(path, data) for path, data in files.items()}
            text = json.dumps([name, len(repo.commits), sorted((path, file.oid) for path, file in tree.items())])
            commit = hashlib.sha1(text.encode()).hexdigest()
            repo.commits[commit] = tree
            repo.branches[branch] = commit
            return commit

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            self.repos[new] = self.repos.pop(old)
            self.repos[new].name = new
            self.renamed[old] = new

    def fail(self, **fault: Any) -> Fault:
        """Adds a fault; see Fault. Those that were added first come first."""
        with self.lock:
            self.faults.append(Fault(**fault))
            return self.faults[-1]

    def expire_links(self) -> None:
        """All signed addresses that were given so far are refused from now on."""
        with self.lock:
            self.open_links.clear()

    # ---- what it was asked

    def gets(self, file: str = "*", origin: str = "cdn", method: str = "GET") -> list[Entry]:
        with self.lock:
            log = list(self.log)
        return [entry for entry in log if entry.origin == origin and entry.method == method and fnmatch.fnmatch(entry.file, file)]

    def wait_for(self, is_so: Callable[[], object], seconds: float = 60) -> None:
        """Waits until a request makes a condition true."""
        with self.noted:
            assert self.noted.wait_for(is_so, seconds), f"no such request in {seconds} seconds"

    def forget(self) -> None:
        with self.lock:
            self.log.clear()

    # ---- inside

    def take_fault(self, origin: str, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                fits = fault.origin in ("*", origin) and method in fault.methods and fnmatch.fnmatch(path, fault.path)
                if fits and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def sign(self, file: Stored, path: str) -> str:
        signature = secrets.token_hex(8)
        with self.lock:
            self.links[signature] = (file, path)
            self.open_links.add(signature)
        return f"{self.cdn}/blobs/{file.sha256}?Expires=60&Signature={signature}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    hub: HubServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed, and connections that are cut, are what this server is for."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler, abc.ABC):
    protocol_version = "HTTP/1.1"
    server: _Server
    origin = ""
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_POST = do_GET

    @property
    def hub(self) -> HubServer:
        return self.server.hub

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ").strip()

    def serve(self) -> None:
        self.fault: Fault | None = None
        self.file = ""
        length = int(self.headers.get("Content-Length") or 0)
        self.sent_body = self.rfile.read(length) if length else b""
        self.address = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(self.address.query, keep_blank_values=True).items()}
        try:
            self.route(unquote(self.address.path))
        except (ConnectionError, BrokenPipeError):
            self.close_connection = True

    @abc.abstractmethod
    def route(self, path: str) -> None:
        """Answers."""

    def begin(self, file: str) -> bool:
        """Looks for a fault of this request; False if that has been the answer."""
        self.file = file
        fault = self.fault = self.hub.take_fault(self.origin, self.command, file or self.address.path)
        if fault is None:
            return True
        if fault.refuse:
            self.note(0)
            self.shut()
        elif fault.redirect_loop:
            self.reply(302, {"Location": self.path})
        elif fault.status:
            self.reply(fault.status, dict(fault.headers), fault.body or b"")
        elif fault.body is not None:
            self.reply(200, {"Content-Type": "application/json", **fault.headers}, fault.body)
        else:
            return True
        return False

    def note(self, status: int) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        entry = Entry(
            self.command,
            self.origin,
            self.path,
            headers.get("range", ""),
            headers.get("authorization", ""),
            headers,
            self.file,
            status,
            self.client_address[1],
        )
        with self.hub.lock:
            self.hub.log.append(entry)
            self.hub.noted.notify_all()

    def start_reply(self, status: int, headers: dict[str, str], n_bytes: int) -> None:
        self.note(status)
        self.send_response(status)
        chosen = {"Content-Length": str(n_bytes + (self.fault.length_error if self.fault else 0)), **headers}
        if self.fault and not self.fault.status:
            chosen.update(self.fault.headers)
        for key, value in chosen.items():
            if value:
                self.send_header(key, value)
        self.end_headers()

    def reply(self, status: int, headers: dict[str, str], data: bytes = b"") -> None:
        self.start_reply(status, headers, len(data))
        if self.command != "HEAD":
            self.wfile.write(data)

    def json(self, answer: object, headers: dict[str, str] | None = None) -> None:
        self.reply(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(answer).encode())

    def refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        data = json.dumps({"error": message}).encode()
        own = {"Content-Type": "application/json", "X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
        self.reply(status, own, data)

    def shut(self) -> None:
        """Ends the connection at once: a plain close would leave it to be kept alive."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def content(self, file: Stored, headers: dict[str, str]) -> None:
        """A file, or the part of it that is asked for, with all that is to go wrong with it."""
        fault = self.fault or Fault()
        asked = "" if fault.ignore_range else self.headers.get("Range", "")
        condition = self.headers.get("If-Range", "")
        if condition and condition != headers.get("ETag"):
            asked = ""
        start, stop, status = 0, file.n_bytes, 200
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        if found:
            start, stop, status = int(found[1]), min(file.n_bytes, int(found[2]) + 1 if found[2] else file.n_bytes), 206
            if start >= file.n_bytes:
                self.reply(416, {"Content-Range": f"bytes */{file.n_bytes}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{file.n_bytes}"}
        if not fault.ignore_range:
            headers = {**headers, "Accept-Ranges": "bytes"}
        self.start_reply(status, headers, stop - start)
        if self.command == "HEAD":
            return
        if self.fault is None and isinstance(file.data, Path):
            self.wfile.flush()
            with file.data.open("rb") as source:
                self.connection.sendfile(source, start, stop - start)
            return
        self.send_slowly(file, start, stop, fault)

    def send_slowly(self, file: Stored, start: int, stop: int, fault: Fault) -> None:
        sent = 0
        limit = min(x for x in (stop - start, fault.cut_after, fault.stall_after) if x is not None)
        while sent < limit:
            if fault.delay_seconds and self.hub.ending.wait(fault.delay_seconds):
                return
            at = start + sent
            piece = file.read(at, min(at + fault.chunk_bytes, start + limit))
            if fault.flip_at is not None and at <= fault.flip_at < at + len(piece):
                changed = bytearray(piece)
                changed[fault.flip_at - at] ^= 1
                piece = bytes(changed)
            self.wfile.write(piece)
            sent += len(piece)
        if fault.stall_after is not None:
            self.hub.ending.wait(30)
        if fault.cut_after is not None or fault.stall_after is not None or fault.length_error > 0:
            self.shut()


class _Cdn(_Handler):
    """Gives whatever a signed address is for; knows no tokens, and must never see one."""

    origin = "cdn"

    def route(self, path: str) -> None:
        signature = self.query.get("Signature", "")
        with self.hub.lock:
            file, name = self.hub.links.get(signature, (None, ""))
            valid = signature in self.hub.open_links
        if not self.begin(name):
            return
        if file is None or not valid:
            self.reply(403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
            return
        self.content(file, {"ETag": f'"cdn-{file.sha256[:32]}"', "Content-Type": "application/octet-stream"})


class _Api(_Handler):
    """The Hub itself."""

    origin = "api"

    def route(self, path: str) -> None:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path)
        if found:
            return self.resolve(*found.groups())
        if not self.begin(""):
            return None
        if path == "/api/whoami-v2":
            return self.whoami()
        if path == "/api/models":
            word = self.query.get("search", "")
            return self.json([{"id": name, "private": False} for name in self.hub.repos if word in name])
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs|paths-info|auth-check)(?:/(.*))?)?", path)
        if not found:
            return self.refuse(404, "", "Not found")
        name, what, rest = found.groups()
        repo = self.find(name)
        if repo is None:
            return None
        if what == "refs":
            return self.refs(repo)
        if what == "auth-check":
            return self.json({}) if self.may_read(repo) else self.refuse_gated(repo)
        if what == "tree":
            revision, _, folder = self.revision(repo, rest or "main")
            return self.tree(repo, revision, folder)
        if what == "paths-info":
            return self.paths_info(repo, rest or "main")
        return self.info(repo, rest or "main")

    def revision(self, repo: Repo, rest: str) -> tuple[str, str, str]:
        """Splits REVISION/FOLDER, where the revision itself may have slashes."""
        for known in sorted([*repo.branches, *repo.tags], key=len, reverse=True):
            if rest == known or rest.startswith(known + "/"):
                return known, "/", rest[len(known) + 1 :]
        return rest.partition("/")

    def find(self, name: str, file: str = "") -> Repo | None:
        """The repository, if the asker may know of it; else None, and the answer has been given."""
        if name in self.hub.renamed:
            old, new = (f"/{quote(x)}" for x in (name, self.hub.renamed[name]))
            self.reply(307, {"Location": self.path.replace(old, new, 1)})
            return None
        repo = self.hub.repos.get(name)
        if self.token and self.token not in self.hub.users:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        if repo is None or (repo.private and self.token not in repo.readers):
            status, message = (404, "Repository not found") if self.token else (401, "Invalid username or password.")
            self.refuse(status, "RepoNotFound", message)
            return None
        if repo.disabled:
            self.refuse(403, "", "Access to this resource is disabled.")
            return None
        return repo

    def may_read(self, repo: Repo) -> bool:
        return not repo.gated or self.token in repo.readers

    def refuse_gated(self, repo: Repo) -> None:
        self.refuse(403 if self.token else 401, "GatedRepo", f"Access to model {repo.name} is restricted.")

    def no_revision(self, revision: str) -> None:
        self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def whoami(self) -> None:
        name = self.hub.users.get(self.token)
        if name is None:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        return self.json({"type": "user", "name": name, "fullname": name, "orgs": [], "auth": {"type": "access_token"}})

    def info(self, repo: Repo, revision: str) -> None:
        commit = repo.commit(revision)
        if commit is None:
            return self.no_revision(revision)
        blobs = "blobs" in self.query
        siblings = []
        for path, file in repo.commits[commit].items():
            lfs = {"lfs": {"sha256": file.sha256, "size": file.n_bytes, "pointerSize": 134}} if file.lfs else {}
            siblings.append({"rfilename": path, **({"size": file.n_bytes, "blobId": file.oid, **lfs} if blobs else {})})
        facts = {"private": repo.private, "gated": "auto" if repo.gated else False, "disabled": repo.disabled}
        dates = {"createdAt": "2026-01-01T00:00:00.000Z", "lastModified": "2026-01-01T00:00:00.000Z"}
        kind = {"tags": ["gguf"], "downloads": 0, "likes": 0, "gguf": {"architecture": "llama"}}
        return self.json({"id": repo.name, "modelId": repo.name, "sha": commit, **facts, **dates, **kind, "siblings": siblings})

    def refs(self, repo: Repo) -> None:
        def listed(refs: dict[str, str], kind: str) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit} for name, commit in refs.items()]

        self.json({"branches": listed(repo.branches, "heads"), "tags": listed(repo.tags, "tags"), "converts": []})

    def entries(self, repo: Repo, commit: str, folder: str) -> Iterator[dict[str, object]]:
        folders = set()
        for path, file in repo.commits[commit].items():
            if folder and not path.startswith(folder + "/"):
                continue
            inner = path[len(folder) + 1 :] if folder else path
            for depth in range(1, inner.count("/") + 1):
                if depth == 1 or "recursive" in self.query:
                    folders.add("/".join([*([folder] if folder else []), *inner.split("/")[:depth]]))
            if "/" not in inner or self.query.get("recursive", "").lower() in ("true", "1"):
                yield self.entry(path, file)
        for path in sorted(folders):
            yield {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}

    @staticmethod
    def entry(path: str, file: Stored) -> dict[str, object]:
        lfs = {"lfs": {"oid": file.sha256, "size": file.n_bytes, "pointerSize": 134}} if file.lfs else {}
        return {"type": "file", "path": path, "size": file.n_bytes, "oid": file.oid, **lfs}

    def tree(self, repo: Repo, revision: str, folder: str) -> None:
        commit = repo.commit(revision)
        if commit is None:
            return self.no_revision(revision)
        entries = list(self.entries(repo, commit, folder))
        if folder and not entries:
            return self.refuse(404, "EntryNotFound", f"{folder} does not exist", {"X-Repo-Commit": commit})
        at = int(self.query.get("cursor") or 0)
        headers = {}
        if at + self.hub.page_size < len(entries):
            kept = "&".join(f"{key}={quote(value)}" for key, value in self.query.items() if key != "cursor")
            link = f"{self.hub.endpoint}{quote(self.address.path)}?{kept}&cursor={at + self.hub.page_size}"
            headers["Link"] = f'<{link}>; rel="next"'
        return self.json(entries[at : at + self.hub.page_size], headers)

    def paths_info(self, repo: Repo, revision: str) -> None:
        commit = repo.commit(revision)
        if commit is None:
            return self.no_revision(revision)
        if self.headers.get("Content-Type", "").startswith("application/json"):
            paths = json.loads(self.sent_body)["paths"]
        else:
            paths = parse_qs(self.sent_body.decode()).get("paths", [])
        tree = repo.commits[commit]
        return self.json([self.entry(path, tree[path]) for path in paths if path in tree])

    def resolve(self, name: str, revision: str, path: str) -> None:
        if not self.begin(path):
            return None
        repo = self.find(name)
        if repo is None:
            return None
        if not self.may_read(repo):
            return self.refuse_gated(repo)
        commit = repo.commit(revision)
        if commit is None:
            return self.no_revision(revision)
        file = repo.commits[commit].get(path)
        if file is None:
            return self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit}
        if not file.lfs:
            return self.content(file, {**headers, "ETag": f'"{file.oid}"'})
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.n_bytes)}
        return self.reply(302, {**headers, **linked, "Location": self.hub.sign(file, path)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repos", nargs="+", metavar="OWNER/NAME=FOLDER")
    parser.add_argument("--page-size", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each chunk of a large file")
    options = parser.parse_args()
    with HubServer(options.page_size) as hub:
        for given in options.repos:
            name, _, folder = given.partition("=")
            files = {path.relative_to(folder).as_posix(): path for path in sorted(Path(folder).rglob("*")) if path.is_file()}
            hub.add(name, files)
        if options.delay:
            hub.fail(times=None, delay_seconds=options.delay)
        print(json.dumps({"endpoint": hub.endpoint, "cdn": hub.cdn, "started": time.time()}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
