"""What a failure to load says."""

from __future__ import annotations

import pytest

from localllm.errors import ModelFileError, ModelLoadError, NativeError
from localllm.native.bindings import localllm as localllm_h
from localllm.residency.failures import is_out_of_memory


@pytest.fixture
def path(tmp_path):
    """A file whose name says what failures of memory say."""
    return tmp_path / "failed to allocate" / "cannot allocate.gguf"


# The texts are llama.cpp's (llama-kv-cache.cpp, llama-model.cpp, llama-context.cpp, ggml-alloc.c, ggml.c, ggml-cuda.cu).
@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("failed to allocate buffer for kv cache", True),
        ("unable to allocate CUDA0 buffer", True),
        ("failed to allocate compute pp buffers", True),
        ("not enough space in the buffer to allocate x (needed 2, available 1)", True),
        ("insufficient memory (attempted to allocate 6.00 MB)", True),
        ("allocating 10.00 MiB on device 0: cudaMalloc failed: out of memory", True),
        ("mmap failed: Cannot allocate memory", True),
        ("std::bad_alloc", True),
        ("unknown model architecture: 'allocations'", False),
        ("failed to open GGUF file '{path}' (No such file or directory)", False),
        ("failed to open GGUF file '{folder}/shard-00002-of-00002.gguf'", False),
        ("key not found in model: allocator.block_count", False),
    ],
)
def test_only_what_is_said_about_memory_counts(text, is_so, path):
    told = text.format(path=path, folder=path.parent)
    for kind in (ModelLoadError, NativeError, ModelFileError):
        assert is_out_of_memory(kind(f"{path}: {told}"), path) == is_so


def test_errors_that_need_no_words(path):
    assert is_out_of_memory(MemoryError(), path)
    assert is_out_of_memory(NativeError("x", localllm_h.LM_OUT_OF_MEMORY), path)
    assert not is_out_of_memory(NativeError("x", localllm_h.LM_INTERNAL), path)
