"""The version of this distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("langchain-localllm")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0"
