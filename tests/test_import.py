"""What `import localllm` costs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "huggingface_hub", "rich", "typer", "langchain_core", "ctypes", "asyncio", "localllm.native", "localllm.engine")


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_nothing_heavy():
    loaded = python("import sys; before = set(sys.modules); import localllm; print(*set(sys.modules) - before)").split()
    assert "localllm" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_every_public_name_can_be_imported_and_listed():
    program = "import localllm; print(all(hasattr(localllm, n) and n in dir(localllm) for n in localllm.__all__))"
    assert python(program) == "True\n"


def test_star_import_gives_what_is_listed():
    assert python("from localllm import *; print(LocalModel.__name__, errors.ModelError.__name__)") == "LocalModel ModelError\n"


def test_a_wrong_name_is_an_attribute_error():
    assert (
        python("import localllm\ntry:\n    localllm.LocalModle\nexcept AttributeError as e:\n    print('LocalModle' in str(e))")
        == "True\n"
    )


def test_the_header_of_a_file_is_read_without_the_native_library(tmp_path):
    program = (
        "import sys\n"
        "from localllm import LocalModel\n"
        "from localllm.hub.resolve import resolve\n"
        "print(LocalModel('smollm2').header.architecture, 'numpy' in sys.modules)\n"
        "from localllm.native import library; print(library._loaded)"
    )
    assert python(program).split() == ["llama", "False", "None"]
