"""LangChain's standard tests, with every flag on that a model of text can have.

SmolLM2's own template knows no tools, and 135 million parameters do not call one by themselves. The template `calling.jinja`
shows it two calls, and then it does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_localllm import ChatLocalLLM
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

TEMPLATE = (Path(__file__).parent / "calling.jinja").read_text(encoding="utf-8")
# A small model falls into loops; "DRY" leads it out of them.
PARAMS = {"model": "smollm2", "temperature": 0, "max_tokens": 100, "chat_template": TEMPLATE, "dry_multiplier": 0.8}
QUESTION = "Why is the sky blue?"
THINKING = Path(__file__).parents[3] / "vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja"


@pytest.fixture(scope="module", autouse=True)
def weights():
    """Each test makes a model of its own; the weights stay loaded between them."""
    llm = ChatLocalLLM(**PARAMS)
    return llm, llm.local_model.engine


class TestChatLocalLLMUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self):
        return ChatLocalLLM

    @property
    def chat_model_params(self):
        return {"model": "smollm2"}


class TestChatLocalLLMIntegration(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatLocalLLM

    @property
    def chat_model_params(self):
        return PARAMS

    @property
    def supports_json_mode(self):
        return True

    @property
    def supports_anthropic_inputs(self):
        return True

    @property
    def model_override_value(self):
        from localllm.hub.resolve import resolve

        return str(resolve("smollm2"))

    @property
    def enable_vcr_tests(self):
        return True

    @property
    def supported_usage_metadata_details(self):
        kinds = ["reasoning_output", "cache_read_input"]
        return {"invoke": kinds, "stream": kinds}

    def invoke_with_reasoning_output(self, *, stream=False):
        thinker = ChatLocalLLM(
            model="smollm2", chat_template=THINKING.read_text(), temperature=0, max_tokens=30, reasoning_budget=8
        )
        message = _asked(thinker, stream)
        assert message.usage_metadata["output_token_details"]["reasoning"] > 0
        return message

    def invoke_with_cache_read_input(self, *, stream=False):
        llm = ChatLocalLLM(**PARAMS)
        _asked(llm, stream)
        message = _asked(llm, stream)
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message


def _asked(llm, stream):
    if not stream:
        return llm.invoke(QUESTION)
    whole = None
    for chunk in llm.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    return whole


@pytest.mark.parametrize("method", ["function_calling", "json_mode"])
class TestOtherMethods:
    """The standard tests of structured answers once more, by the other two methods."""

    @pytest.fixture
    def suite(self, method, faster_smollm2):
        """The tests, and a model for them: calls come from any, JSON without a grammar of the schema only from the better one."""

        class Suite(TestChatLocalLLMIntegration):
            structured_output_kwargs = property(lambda self: {"method": method})

        file = {"function_calling": str(faster_smollm2), "json_mode": "smollm2"}[method]
        return Suite(), ChatLocalLLM(
            **{**PARAMS, "model": file, "dry_multiplier": 0.0, "repeat_penalty": 1.15, "max_tokens": 128}
        )

    @pytest.mark.parametrize("kind", ["pydantic", "typeddict", "json_schema"])
    async def test_structured_output(self, suite, kind):
        suite, model = suite
        suite.test_structured_output(model, kind)
        await suite.test_structured_output_async(model, kind)

    def test_structured_output_of_other_classes(self, suite):
        suite, model = suite
        suite.test_structured_output_pydantic_2_v1(model)
        suite.test_structured_output_optional_param(model)
