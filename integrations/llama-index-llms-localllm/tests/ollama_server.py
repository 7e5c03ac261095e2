"""As much of Ollama's API as LlamaIndex's class for it asks for, over a LocalModel: a peer for the conformance suite.

Like Ollama it knows no choice among tools: given some, the model decides.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from localllm import ChatDelta, ChatMessage, LocalModel


class OllamaServer:
    """Answers POST /api/chat on a port of this machine, until it is closed.

    Args:
        model: LocalModel.
        max_tokens: int, of every answer.
    """

    def __init__(self, model: LocalModel, max_tokens: int) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> OllamaServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                deltas = server.deltas(body)
                lines = list(deltas) if not body["stream"] else deltas
                self.send_response(200)
                self.send_header("Content-Type", "application/x-ndjson")
                self.end_headers()
                if not body["stream"]:
                    self.wfile.write(_joined(lines))
                    return
                try:
                    for line in lines:
                        self.wfile.write(line)
                        self.wfile.flush()
                except OSError:  # the client has gone
                    deltas.close()

            def log_message(self, *arguments: Any) -> None:
                pass

        return Handler

    def deltas(self, body: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"temperature": body["options"].get("temperature") or 0, "max_tokens": self.max_tokens}
        if body.get("tools"):
            options["tools"] = body["tools"]
        if isinstance(body.get("format"), dict):
            options["json_schema"] = body["format"]
        return self._lines(self.model.stream_chat(body["messages"], **options))

    def _lines(self, deltas: Iterator[ChatDelta]) -> Iterator[bytes]:
        seen = []
        for delta in deltas:
            seen.append(delta)
            message: dict[str, Any] = {"role": "assistant", "content": delta.content}
            line: dict[str, Any] = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}
            if delta.usage is not None:
                calls = ChatMessage.of(seen).tool_calls
                message["tool_calls"] = [_call(call.name, call.arguments) for call in calls]
                line.update(done=True, done_reason=delta.finish_reason)
                line.update(prompt_eval_count=delta.usage.prompt_tokens, eval_count=delta.usage.completion_tokens)
            yield json.dumps(line).encode() + b"\n"


def _call(name: str, arguments: str) -> dict[str, Any]:
    try:
        return {"function": {"name": name, "arguments": json.loads(arguments)}}
    except json.JSONDecodeError:
        return {"function": {"name": name, "arguments": {}}}


def _joined(lines: list[bytes]) -> bytes:
    """The lines of a stream as one answer."""
    read = [json.loads(line) for line in lines]
    read[-1]["message"]["content"] = "".join(line["message"]["content"] for line in read)
    return json.dumps(read[-1]).encode()
