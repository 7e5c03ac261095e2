"""The fixtures of tests/hub, for commands that need a Hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("hub_conftest", Path(__file__).parents[1] / "hub/conftest.py")
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

client, gguf, store, pulled = _module.client, _module.gguf_fixture, _module.store, _module.pulled
