"""`localllm convert`: a draft from a checkpoint of the Hub as GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from localllm.cli.printable import print_json
from localllm.errors import InvalidRequestError


def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="FOLDER", help="A LiLiCorr draft: config.json and model.safetensors.")],
    target: Annotated[str, typer.Option("--target", help="The model that it drafts for: a GGUF file, or one that is here.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, which must not exist.")],
    head: Annotated[
        Path | None, typer.Option("--head", help="A second file, for the head alone; OUTPUT is a DFlash draft then.")
    ] = None,
    to_type: Annotated[str | None, typer.Option("--type", help="F32, F16 or BF16; as the checkpoint is if missing.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Write a LiLiCorr draft from the Hub as GGUF."""
    from localllm.cli.progress import step_bar
    from localllm.convert import MatrixType, convert_lilicorr
    from localllm.hub.locate import locate

    kind = next((known for known in get_args(MatrixType) if to_type is not None and known == to_type.upper()), None)
    if to_type is not None and kind is None:
        raise InvalidRequestError(f"--type: {to_type!r} is none of {', '.join(get_args(MatrixType))}")
    source = locate(target, download=False)
    with step_bar("writing", is_bytes=True) as advance:
        convert_lilicorr(checkpoint, source, output, head=head, type=kind, progress=advance)
    written = [str(path) for path in (output, head) if path is not None]
    if as_json:
        print_json({"written": written})
    else:
        print("\n".join(written))
