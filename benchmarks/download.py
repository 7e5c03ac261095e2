"""Downloads over loopback: localllm against huggingface_hub's hf_hub_download, from the same server.

    python benchmarks/download.py [--mebibytes 512] [--small 200] [--rounds 7] [--only small] [--json FILE]

- file:   one large file, by a process of its own that has imported everything before the clock starts;
- resume: the second half of it. huggingface_hub 2 cannot continue what another process began, and fetches all of it;
- small:  many files of 4 KiB, by `download_all` and by `snapshot_download`, both with 4 at a time.

The server is the Hub-compatible one of the tests, in a process of its own; a body goes from the page cache to the socket by
sendfile. What localllm does beside receiving: it hashes every byte, and waits until each file is on the disk; huggingface_hub
does neither. Each round has an empty cache. The Xet protocol is switched off: the server does not speak it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import Figures

SERVER = Path(__file__).parent.parent / "tests" / "hub" / "hub_server.py"
REPO = "bench/model"
LARGE = "model.gguf"


def localllm(order: dict[str, Any]) -> float:
    importlib.import_module("filelock")  # which localllm imports when it first needs it
    from localllm.hub.client import HubClient
    from localllm.hub.download import DownloadOptions, download, download_all

    with HubClient() as client:
        listing = client.listing(REPO)
        if order["case"] == "small":
            files = [file for file in listing.files if file.path != LARGE]
            begin = time.perf_counter()
            download_all(client, listing, files, options=DownloadOptions(parallel=4))
        else:
            file = next(file for file in listing.files if file.path == LARGE)
            begin = time.perf_counter()
            download(client, listing.repo, listing.commit, file)
    return time.perf_counter() - begin


def huggingface_hub(order: dict[str, Any]) -> float:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    commit = HfApi().model_info(REPO).sha
    begin = time.perf_counter()
    if order["case"] == "small":
        snapshot_download(REPO, revision=commit, ignore_patterns=[LARGE], max_workers=4)
    else:
        hf_hub_download(REPO, LARGE, revision=commit)
    return time.perf_counter() - begin


def prepare(folder: Path, options: argparse.Namespace) -> str:
    """Writes what is served; returns the large file's SHA-256."""
    source, digest = random.Random(1), hashlib.sha256()
    with (folder / LARGE).open("wb") as file:
        for _ in range(options.mebibytes):
            piece = source.randbytes(1 << 20)
            digest.update(piece)
            file.write(piece)
    for number in range(options.small):
        (folder / f"{number:04}.bin").write_bytes(source.randbytes(4096))
    return digest.hexdigest()


def measure(program: str, case: str, endpoint: str, served: Path, sha256: str) -> float:
    with tempfile.TemporaryDirectory() as home:
        if case == "resume":
            blobs = Path(home) / "hub" / "models--bench--model" / "blobs"
            blobs.mkdir(parents=True)
            with (served / LARGE).open("rb") as source:
                half = source.read((served / LARGE).stat().st_size // 2)
            (blobs / f"{sha256}.incomplete").write_bytes(half)
        variables = {
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": home,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, __file__, "--child", program]
        order = json.dumps({"case": case})
        os.sync()  # what other cases have left to be written would be waited for by whoever syncs next
        done = subprocess.run(command, input=order, capture_output=True, text=True, env=variables, check=False)
        if done.returncode:
            raise SystemExit(f"{program} failed:\n{done.stderr}")
        check(Path(home), case, served)
        return float(done.stdout)


def check(home: Path, case: str, served: Path) -> None:
    """Everything has to have arrived as it was sent."""
    (snapshot,) = (home / "hub" / "models--bench--model" / "snapshots").iterdir()
    wanted = [path for path in served.iterdir() if (path.name == LARGE) != (case == "small")]
    for path in wanted:
        if (snapshot / path.name).stat().st_size != path.stat().st_size:
            raise SystemExit(f"{path.name} did not arrive whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the large file")
    parser.add_argument("--small", type=int, default=200, help="number of small files")
    parser.add_argument("--only", default="file,resume,small", help="cases, by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="a file for every figure of every round")
    parser.add_argument("--child", choices=("localllm", "huggingface_hub"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        programs = {"localllm": localllm, "huggingface_hub": huggingface_hub}
        print(programs[options.child](json.load(sys.stdin)))
        return
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder)
        sha256 = prepare(served, options)
        command = [sys.executable, str(SERVER), f"{REPO}={folder}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            endpoint = json.loads(server.stdout.readline())["endpoint"]
            for at in range(options.rounds):
                for case in options.only.split(","):
                    names = ["localllm", "huggingface_hub"]
                    for program in names[at % 2 :] + names[: at % 2]:
                        seconds = measure(program, case, endpoint, served, sha256)
                        amount = options.small if case == "small" else options.mebibytes
                        figures.add(case, program, seconds=seconds, speed=amount / seconds)
            server.stdin.close()
    figures.print({"seconds": "seconds", "speed": "MiB (or small files) per second"}, base="localllm")
    if options.json:
        facts = {key: str(value) for key, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": facts, "values": figures.values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
