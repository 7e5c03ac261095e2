"""`localllm info`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from localllm.hub.gguf import Header, LongArray


def describe(header: Header, with_metadata: bool) -> dict[str, Any]:
    """The facts of a header as plain data."""
    facts: dict[str, Any] = {
        "path": header.path,
        "kind": header.kind,
        "name": header.name,
        "architecture": header.architecture,
        "parameters": header.n_parameters,
        "quantization": header.quantization,
        "bits_per_weight": round(header.bits_per_weight, 2),
        "file_bytes": header.file_bytes,
        "context_length": header.context_length,
        "embedding_length": header.embedding_length,
        "block_count": header.block_count,
        "vocab_size": header.vocab_size,
        "tensors": len(header.tensors),
        "chat_template": bool(header.chat_template),
    }
    if with_metadata:
        facts["metadata"] = {key: _plain(value) for key, value in header.metadata.items()}
    return facts


def print_facts(facts: dict[str, Any]) -> None:
    """Prints facts as a table."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in facts.items():
        if key == "metadata":
            for name, entry in value.items():
                table.add_row(name, str(entry))
        else:
            table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) and value is not True else str(value))
    Console().print(table, markup=False)


def _plain(value: Any) -> Any:
    if isinstance(value, LongArray):
        return f"[{value.length} items]"
    return list(value) if isinstance(value, tuple) else value
