"""Programs that were written for ChatLlamaCpp, ChatOllama or LlamaCpp: only the name of the class changes.

python cookbook/langchain/migration.py [MODEL]
"""

import sys

from langchain_localllm import ChatLocalLLM, LocalLLM, LocalLLMEmbeddings


def main(model: str = "smollm2") -> dict:
    seen = {}
    # ChatLlamaCpp(...)
    llm = ChatLocalLLM(
        model_path=model, temperature=0.5, n_ctx=1024, n_gpu_layers=-1, n_batch=256, max_tokens=8, repeat_penalty=1.5, top_p=0.5
    )
    seen["ChatLlamaCpp"] = llm.invoke("Hello!").text
    # ChatOllama(...)
    llm = ChatLocalLLM(model=model, temperature=0, num_ctx=1024, num_predict=8, reasoning=False, keep_alive="5m")
    seen["ChatOllama"] = llm.invoke("Hello!").text
    # LlamaCpp(...)
    completion = LocalLLM(model_path=model, temperature=0.75, max_tokens=8, top_p=1, n_gpu_layers=-1, n_batch=256)
    seen["LlamaCpp"] = completion.invoke("The capital of France is")
    # OllamaEmbeddings(...) and LlamaCppEmbeddings(model_path=...)
    seen["OllamaEmbeddings"] = LocalLLMEmbeddings(model=model, num_ctx=1024).embed_query("Hello!")[:4]
    for name, value in seen.items():
        print(f"{name}: {value}")
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
