"""One chain, several models and settings, chosen at each call. Weights are loaded once, whatever is chosen.

python cookbook/langchain/configurable.py [MODEL] [OTHER_MODEL]
"""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField
from langchain_localllm import ChatLocalLLM

from localllm import loaded_models


def main(model: str = "smollm2", other: str = "smollm2") -> dict:
    llm = ChatLocalLLM(model=model, temperature=0, max_tokens=8).configurable_fields(
        temperature=ConfigurableField(id="temperature"),
        max_tokens=ConfigurableField(id="max_tokens"),
        model=ConfigurableField(id="model"),
    )
    prompt = ChatPromptTemplate([("system", "You are a helpful assistant."), ("user", "What is the capital of {country}?")])
    chain = prompt | llm | StrOutputParser()
    answers = {
        "as made": chain.invoke({"country": "France"}),
        "short": chain.with_config(configurable={"max_tokens": 4}).invoke({"country": "France"}),
        "warm": chain.with_config(configurable={"temperature": 1.0}).invoke({"country": "France"}),
        "other": chain.with_config(configurable={"model": other}).invoke({"country": "France"}),
        "other again": chain.with_config(configurable={"model": other}).invoke({"country": "France"}),
    }
    alternatives = ChatLocalLLM(model=model, temperature=0, max_tokens=8).configurable_alternatives(
        ConfigurableField(id="llm"), default_key="long", short=ChatLocalLLM(model=model, temperature=0, max_tokens=4)
    )
    answers["alternative"] = alternatives.with_config(configurable={"llm": "short"}).invoke("Hello!").text
    for name, answer in answers.items():
        print(f"{name}: {answer}")
    loaded = [entry.path for entry in loaded_models() if entry.purpose == "weights"]
    print(f"{len(loaded)} models loaded")
    return {"answers": answers, "loaded": loaded, "default": llm.default}


if __name__ == "__main__":
    main(*sys.argv[1:])
