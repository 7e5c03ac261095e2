"""The test server is a Hub for huggingface_hub: whatever it gets wrong would be a wrong test of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import *
api = HfApi()
info = api.model_info("org/model", files_metadata=True)
tree = list(api.list_repo_tree("org/model", recursive=True))
refs = api.list_repo_refs("org/model")
paths = api.get_paths_info("org/model", ["model.gguf"])
folder = snapshot_download("org/model")
with HfFileSystem().open("org/model/model.gguf", "rb", block_size=1000) as file:
    file.seek(5000)
    part = file.read(10)
def failure(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
api.auth_check("org/model")
print(json.dumps({
    "sizes": {s.rfilename: s.size for s in info.siblings},
    "sha": info.sha,
    "tree": sorted(entry.path for entry in tree),
    "lfs": paths[0].lfs.sha256,
    "branches": [ref.name for ref in refs.branches], "tags": [ref.name for ref in refs.tags],
    "folder": folder,
    "part": part.hex(),
    "repos": [repo.repo_id for repo in scan_cache_dir().repos], "warnings": len(scan_cache_dir().warnings),
    "cached": try_to_load_from_cache("org/model", "model.gguf"),
    "missing": failure(hf_hub_download, "org/none", "a"),
    "file": failure(hf_hub_download, "org/model", "a"),
    "revision": failure(hf_hub_download, "org/model", "model.gguf", ),
    "gated": failure(hf_hub_download, "org/gated", "a.gguf"),
    "private": failure(hf_hub_download, "org/private", "a.gguf"),
    "disabled": failure(api.model_info, "org/disabled"),
    "renamed": api.model_info("org/old").id,
    "who": failure(api.whoami),
    "no_revision": failure(api.model_info, "org/model"),
}))
"""


def test_huggingface_hub_lists_downloads_and_scans(hub, home, content):
    data = content(40_000)
    commit = hub.add("org/model", {"README.md": b"hello", "model.gguf": data, "sub/folder/x.bin": content(2000)})
    hub.repos["org/model"].tags["v1"] = commit
    hub.page_size = 2
    hub.add("org/gated", {"a.gguf": b"x"}, gated=True)
    hub.add("org/private", {"a.gguf": b"x"}, private=True)
    hub.add("org/disabled", {"a.gguf": b"x"}, disabled=True)
    hub.add("org/old", {"a.gguf": b"x"})
    hub.rename("org/old", "org/new")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sizes"] == {"README.md": 5, "model.gguf": 40_000, "sub/folder/x.bin": 2000}
    assert found["sha"] == commit
    assert found["tree"] == ["README.md", "model.gguf", "sub", "sub/folder", "sub/folder/x.bin"]
    assert found["lfs"] == hub.repos["org/model"].commits[commit]["model.gguf"].sha256
    assert (found["branches"], found["tags"]) == (["main"], ["v1"])
    folder = Path(found["folder"])
    assert folder == home / "hub/models--org--model/snapshots" / commit
    assert (folder / "model.gguf").read_bytes() == data
    assert found["part"] == data[5000:5010].hex()
    assert (found["repos"], found["warnings"]) == (["org/model"], 0)
    assert found["cached"] == str(folder / "model.gguf")
    errors = {name: found[name] for name in ("missing", "file", "gated", "private", "disabled")}
    assert errors == {
        "missing": "RepositoryNotFoundError",
        "file": "RemoteEntryNotFoundError",
        "gated": "GatedRepoError",
        "private": "RepositoryNotFoundError",
        "disabled": "DisabledRepoError",
    }
    assert found["renamed"] == "org/new"
    assert all(not entry.authorization for entry in hub.log if entry.origin == "cdn")


def test_as_a_program_it_serves_folders(tmp_path, hub_server, home):
    (tmp_path / "files/sub").mkdir(parents=True)
    (tmp_path / "files/sub/a.gguf").write_bytes(b"abc")
    command = [sys.executable, hub_server.__file__, f"org/model={tmp_path / 'files'}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            endpoint = json.loads(process.stdout.readline())["endpoint"]
            from localllm.hub.client import HubClient

            with HubClient(endpoint) as client:
                assert [file.path for file in client.listing("org/model").files] == ["sub/a.gguf"]
        finally:
            process.stdin.close()
            process.wait(5)
