"""BERT in numpy, from a GGUF file: what llama.cpp's result is held against. Formulas: arXiv:1810.04805, post-norm."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np


class Bert:
    """The encoder of one file; `__call__` gives one vector per token."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.weights = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors}

        def number(key: str) -> float:
            return reader.fields[f"bert.{key}"].parts[-1][0]

        self.n_layer, self.n_head = int(number("block_count")), int(number("attention.head_count"))
        self.epsilon = float(number("attention.layer_norm_epsilon"))

    def __call__(self, tokens: list[int]) -> np.ndarray:
        w = self.weights
        x = w["token_embd.weight"][tokens] + w["position_embd.weight"][: len(tokens)] + w["token_types.weight"][0]
        x = self._norm(x, "token_embd_norm")
        for layer in range(self.n_layer):
            block = f"blk.{layer}."
            x = self._norm(x + self._attention(x, block), f"{block}attn_output_norm")
            inner = _gelu(self._linear(x, f"{block}ffn_up"))
            x = self._norm(x + self._linear(inner, f"{block}ffn_down"), f"{block}layer_output_norm")
        return x

    def outputs(self, tokens: list[int]) -> np.ndarray:
        """What the classification head gives of the first token."""
        return self._linear(self(tokens)[0], "cls.output")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.epsilon)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _attention(self, x: np.ndarray, block: str) -> np.ndarray:
        n, width = x.shape
        q, k, v = (
            self._linear(x, f"{block}attn_{part}").reshape(n, self.n_head, -1).transpose(1, 0, 2) for part in ("q", "k", "v")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(width / self.n_head)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (chances / chances.sum(-1, keepdims=True)) @ v
        return self._linear(mixed.transpose(1, 0, 2).reshape(n, width), f"{block}attn_output")


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
