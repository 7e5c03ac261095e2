"""An answer that is guessed ahead and only checked, and what that brought.

python cookbook/speculation.py [MODEL [DRAFT]]

"auto" takes the draft that is named, or one that was pulled with the model, or heads of the model itself, and else what the text
repeats. The model decides on every token, so the answer is that of plain decoding; `localllm bench` says if it comes sooner.
"""

import sys

from localllm import LocalModel, SpeculationConfig

SETTINGS = """[server]
host = "127.0.0.1"
port = 8080
workers = 4
log_file = "/var/log/app/server.log"

[database]
url = "postgresql://app@db.example.org:5432/app"
pool_size = 10
"""
QUESTION = f"Write this file again, with port 9090 for the server:\n\n```toml\n{SETTINGS}```"


def main(model: str = "smollm2", draft: str = "", question: str = QUESTION) -> dict:
    speculation = SpeculationConfig(kind="auto", draft=draft) if draft else "auto"
    with LocalModel(model, speculation=speculation) as local:
        answer = local.chat([{"role": "user", "content": question}], temperature=0, max_tokens=128)
        stats, kind = local.engine.stats().speculation, local.engine.config.speculation.kind
    print(answer.message.content)
    print(f"\n{kind}: {stats.tokens_per_pass:.2f} tokens per pass, {stats.acceptance:.0%} of what was drafted was right")
    return {"text": answer.message.content, "kind": kind, "stats": stats}


if __name__ == "__main__":
    main(*sys.argv[1:])
