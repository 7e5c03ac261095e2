"""`localllm info`."""

from __future__ import annotations

import math
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from localllm.cli.printable import printable
from localllm.hub.gguf import Header, LongArray
from localllm.hub.manifest import Manifest
from localllm.hub.memory import estimate


def describe(header: Header, manifest: Manifest | None = None, *, with_metadata: bool = False) -> dict[str, Any]:
    """The facts of a header, and of the record of a model that was pulled, as plain data. What does not apply is left out."""
    kind = header.draft_kind or header.speech
    facts: dict[str, Any] = {
        "path": header.path,
        "kind": f"{header.kind} ({kind})" if kind else header.kind,
        "name": header.name,
        "architecture": header.architecture,
        "parameters": header.n_parameters,
        "quantization": header.quantization,
        "tensor_types": header.tensor_types,
        "bits_per_weight": round(header.bits_per_weight, 2),
        "file_bytes": header.file_bytes,
        "context_length": header.context_length,
        "embedding_length": header.embedding_length,
        "block_count": header.block_count,
        "vocab_size": header.vocab_size,
        "tensors": len(header.tensors),
        "chat_template": bool(header.chat_template),
    }
    more = {
        "chat_templates": list(header.chat_templates)[1:],
        "special_tokens": header.special_tokens,
        "predicted_ahead": header.n_layer_nextn,
        "speculation": _speculation(header),
        "modalities": sorted(header.modalities),
        "projection_length": header.projection_length if header.kind == "projector" else 0,
        "licence": str(header.metadata.get("general.license", "")),
        "files": header.n_files if header.n_files > 1 else 0,
        "memory_bytes": estimate(header).total_bytes if header.kind == "model" else 0,
    }
    facts |= {key: value for key, value in more.items() if value}
    if manifest is not None:
        facts |= _kept(manifest)
    if with_metadata:
        facts["metadata"] = {key: _plain(value) for key, value in header.metadata.items()}
    return facts


def _speculation(header: Header) -> str:
    """What the file is good for when tokens are guessed ahead, and where it is named; "" where that needs no word."""
    if header.architecture == "lilicorr-head":
        return "draft-lilicorr, as the head (--head) of a DFlash draft"
    if header.draft_kind:
        return f"draft-{header.draft_kind}, as the draft (--draft) of another model"
    return "draft-mtp, by heads of its own" if header.has_mtp else ""


def _kept(manifest: Manifest) -> dict[str, Any]:
    companions = {role: str(path) for role in ("projector", "draft") if (path := manifest.first(role)) is not None}
    return {"reference": manifest.reference, "commit": manifest.commit, "pinned": manifest.pinned, **companions}


def print_facts(facts: dict[str, Any]) -> None:
    """Prints facts as a table."""
    rows = []
    for key, value in facts.items():
        if key == "metadata":
            rows += [(printable(name), printable(str(entry), lines=True)) for name, entry in value.items()]
        else:
            rows.append((key.replace("_", " "), printable(_shown(value))))
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in rows)
        for name, text in rows:  # each as it is: no line of it is broken for a width that nobody sees
            print(f"{name:{width}}  {text}")
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, LongArray):
        return f"[{value.length} items]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
