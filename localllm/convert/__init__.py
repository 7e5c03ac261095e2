"""Checkpoints as GGUF files."""

from __future__ import annotations

from localllm.convert.lilicorr import MatrixType as MatrixType
from localllm.convert.lilicorr import convert_lilicorr as convert_lilicorr
