"""Texts continued as they are, without a chat template: several at once, several answers each, and a gap filled in.

    python cookbook/langchain/completion.py [MODEL] [CODE_MODEL]

To fill in the middle a model must have been made for it, for example "bartowski/Qwen2.5-Coder-1.5B-GGUF:Q4_K_M".
"""

import sys

from langchain_localllm import LocalLLM


def main(model: str = "smollm2", code_model: str = "") -> dict:
    llm = LocalLLM(model=model, temperature=0, max_tokens=16, stop=["."])
    prompts = ["The capital of France is", "The capital of Italy is"]
    seen = {"batch": llm.batch(prompts), "stream": list(llm.stream(prompts[0]))}
    result = llm.generate(prompts, n=2, temperature=1, seed=1)
    seen["several"] = [[generation.text for generation in group] for group in result.generations]
    seen["usage"] = result.llm_output["token_usage"]
    if code_model:
        coder = LocalLLM(model=code_model, temperature=0, max_tokens=32)
        seen["filled"] = coder.invoke("def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n")
    for name, value in seen.items():
        print(f"{name}: {value}")
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
