"""What the package offers, and what importing it does not do."""

from __future__ import annotations

import subprocess
import sys

import langchain_localllm

NAMES = ["ChatLocalLLM", "LocalLLM", "LocalLLMCrossEncoder", "LocalLLMEmbeddings", "LocalLLMReranker", "__version__"]


def test_the_names_are_there():
    assert langchain_localllm.__all__ == sorted(NAMES) == NAMES
    assert all(getattr(langchain_localllm, name) for name in NAMES)


def test_classes_say_how_they_are_used():
    for name in NAMES[:-1]:
        text = getattr(langchain_localllm, name).__doc__
        assert all(
            part in text for part in ("Setup:", "Key init args", "Instantiate:", f"from langchain_localllm import {name}")
        ), name


def test_importing_and_making_loads_neither_numbers_nor_networks_nor_libraries():
    program = (
        "import sys, langchain_core.language_models; before = set(sys.modules)\n"
        "from langchain_localllm import *\n"
        "LocalLLM(model='x'), LocalLLMEmbeddings(model='x'), LocalLLMReranker(model='x'), LocalLLMCrossEncoder(model='x')\n"
        "print(sorted(m for m in set(sys.modules) - before if m.partition('.')[0] in ('numpy', 'httpx', 'rich', 'torch')))\n"
        "print([line for line in open('/proc/self/maps') if 'liblocalllm' in line])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stdout + done.stderr
