"""What it costs to plan a model, and what memory a large download takes: localllm against huggingface_hub, over loopback.

    python benchmarks/planning.py [--gibibytes 4] [--rounds 5] [--json FILE]

- plan:   a repository of 30 quantizations of 0.5 G parameters, sparse files with whole headers (128,000 tokens, 4.8 MB). localllm
          plans what to fetch, from names, sizes and headers; huggingface_hub asks for names and sizes alone
          (`model_info(files_metadata=True)`). Requests that the server got, and seconds;
- memory: a sparse file of 4 GiB is fetched; the most memory that the process had.

Requests are counted by the server, which is that of the tests; each measurement is made by a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from programs import Figures

SERVER = Path(__file__).parent.parent / "tests" / "hub" / "hub_server.py"
OFFERED_BYTES = 1_200_000_000  # Q6_K fits
PLANNED, LARGE = "bench/thirty-GGUF", "bench/large"
# The type that the matrices of each are made of.
TAGS = {
    "IQ1_S": "IQ1_S", "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_S", "IQ2_M": "IQ2_S", "Q2_K": "Q2_K",
    "Q2_K_L": "Q2_K", "IQ3_XXS": "IQ3_XXS", "IQ3_XS": "IQ3_S", "IQ3_S": "IQ3_S", "IQ3_M": "IQ3_S", "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K", "Q3_K_XL": "Q3_K", "IQ4_XS": "IQ4_XS", "IQ4_NL": "IQ4_NL", "Q4_0": "Q4_0", "Q4_1":
    "Q4_1", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q4_K_L": "Q4_K", "Q5_0": "Q5_0", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K",
    "Q5_K_L": "Q5_K", "Q6_K": "Q6_K", "Q6_K_L": "Q6_K", "Q8_0": "Q8_0", "F16": "F16",
}  # fmt: skip


def planned_by_localllm() -> None:
    from localllm.hub.choose import Machine
    from localllm.hub.plan import PlanOptions
    from localllm.hub.planner import plan

    made = plan(PLANNED, options=PlanOptions(machine=Machine(free_bytes=OFFERED_BYTES)))
    assert len(made.alternatives) == len(TAGS)


def planned_by_huggingface_hub() -> None:
    from huggingface_hub import HfApi

    assert len(HfApi().model_info(PLANNED, files_metadata=True).siblings or ()) > len(TAGS) - 1


def memory_by_localllm() -> None:
    from localllm.hub.client import HubClient
    from localllm.hub.download import download_all

    with HubClient() as client:
        listing = client.listing(LARGE)
        download_all(client, listing, listing.files)


def memory_by_huggingface_hub() -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(LARGE)


MEASURED = {
    "plan-localllm": planned_by_localllm,
    "plan-huggingface_hub": planned_by_huggingface_hub,
    "memory-localllm": memory_by_localllm,
    "memory-huggingface_hub": memory_by_huggingface_hub,
}


def child(name: str) -> dict[str, float]:
    begin = time.perf_counter()
    MEASURED[name]()
    seconds = time.perf_counter() - begin
    # Not getrusage: its maximum is that of the process before exec, too.
    status = Path("/proc/self/status").read_text()
    return {"seconds": seconds, "peak": int(status.partition("VmHWM:")[2].split()[0]) / 1024}


def measure(name: str, endpoint: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        variables = {
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": home,
            "LOCALLLM_HOME": home,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, __file__, "--child", name], capture_output=True, text=True, env=variables, check=False
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        return dict(json.loads(done.stdout))


def write_header(path: Path, kind: str) -> None:
    """A sparse file of a dense model of 0.5 G parameters whose matrices are all of one type, with 128,000 tokens."""
    import gguf
    import numpy as np

    width, ffn, n_layers, n_vocab = 1024, 3584, 32, 128_000
    shapes = {"token_embd.weight": (n_vocab, width)}
    for at in range(n_layers):
        shapes |= {f"blk.{at}.{name}.weight": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{at}.{name}.weight": (ffn, width) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{at}.ffn_down.weight"] = (width, ffn)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(16)
    writer.add_head_count_kv(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token-{number}" for number in range(n_vocab)])
    writer.add_token_merges([f"to ken{number}" for number in range(n_vocab)])
    quant = gguf.GGMLQuantizationType[kind]
    values, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    n_bytes = 0
    for name, shape in shapes.items():
        size = shape[0] * shape[1] // values * block_bytes
        writer.add_tensor_info(name, shape, np.dtype(np.float16), size, raw_dtype=quant)
        n_bytes += size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + 4096 + n_bytes)


def prepare(folder: Path, gibibytes: float) -> tuple[Path, Path]:
    """Two folders to be served: the quantizations, and the large file."""
    planned, large = folder / "planned", folder / "large"
    for made in (planned, large):
        made.mkdir()
    for tag, kind in TAGS.items():
        write_header(planned / f"Model-{tag}.gguf", kind)
    (large / "large.gguf").touch()
    os.truncate(large / "large.gguf", int(gibibytes * 2**30))
    return planned, large


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gibibytes", type=float, default=4, help="size of the large file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file for every figure of every round")
    parser.add_argument("--child", choices=MEASURED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    figures = Figures()
    sys.path.insert(0, str(SERVER.parent))
    import hub_server

    with tempfile.TemporaryDirectory() as folder, hub_server.HubServer() as hub:
        planned, large = prepare(Path(folder), options.gibibytes)
        for name, served in ((PLANNED, planned), (LARGE, large)):
            hub.add(name, {path.name: path for path in served.iterdir()})
        for _ in range(options.rounds):
            for name in MEASURED:
                hub.forget()
                found = measure(name, hub.endpoint)
                case, _, program = name.partition("-")
                figures.add(case, program, requests=float(len(hub.log)), **found)
    figures.print({"requests": "requests", "seconds": "seconds", "peak": "most memory, MiB"}, base="localllm")
    if options.json:
        facts = {key: str(value) for key, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": facts, "values": figures.values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
