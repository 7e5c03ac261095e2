"""The fixtures of tests/hub, for commands that need a Hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("hub_conftest", Path(__file__).parents[1] / "hub/conftest.py")
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

hub_server, home, hub, client = _module.hub_server, _module.home, _module.hub, _module.client
content, gguf, store, pulled = _module.content, _module.gguf_fixture, _module.store, _module.pulled
