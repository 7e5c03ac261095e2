"""lm_text: whole characters and stop strings, whatever the tokens' borders."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.native.bindings import localllm as localllm_h
from localllm.native.handles import Text

STOPPED = localllm_h.LM_FINISH_STOP


@pytest.fixture(scope="module")
def byte_tokens(qwen3):
    """The token of each single byte: with them any text can be cut anywhere."""
    found = {}
    for token in range(qwen3.model.native.llama_vocab_n_tokens(qwen3.model.vocab)):
        piece = qwen3.model.detokenize([token], special=False)
        if len(piece) == 1:
            found.setdefault(piece[0], token)
    assert len(found) == 256
    return found


def spell(qwen3, byte_tokens, data: bytes, **options):
    """Feeds bytes one by one; returns the pieces shown, the flushed rest, and whether a stop rule ended it."""
    text = Text(qwen3.model, options)
    pieces = []
    for byte in data:
        piece, finish = text.push(byte_tokens[byte])
        pieces.append(piece)
        if finish == STOPPED:
            return pieces, text.flush(), True
    return pieces, text.flush(), False


def test_characters_are_shown_whole(qwen3, byte_tokens):
    pieces, rest, _ = spell(qwen3, byte_tokens, "aé€😀".encode())
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "😀"] and rest == ""


def test_half_a_character_at_the_end_is_not_lost(qwen3, byte_tokens):
    pieces, rest, _ = spell(qwen3, byte_tokens, "😀".encode()[:3])
    assert ("".join(pieces), rest) == ("", "\ufffd")


@given(data=st.binary(max_size=40))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_what_python_makes_of_them(qwen3, byte_tokens, data):
    pieces, rest, _ = spell(qwen3, byte_tokens, data)
    assert "".join(pieces) + rest == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("stops", "data", "shown"),
    [
        (["END"], "one END two", "one "),
        (["END", "one"], "one END", ""),
        (["b", "a"], "xxabc", "xx"),
        (["aab"], "aaab", "a"),
        (["abab"], "abaabab!", "aba"),
        (["€"], "5€", "5"),
        (["\n\n"], "a\nb\n\nc", "a\nb"),
        (["<|end|>"], "a<|en", "a<|en"),
        (["xyz"], "xyxyxyz", "xyxy"),
    ],
)
def test_stop_strings_end_at_the_earliest_place_in_the_text(qwen3, byte_tokens, stops, data, shown):
    pieces, rest, stopped = spell(qwen3, byte_tokens, data.encode(), stop=stops)
    assert "".join(pieces) + rest == shown
    assert stopped == (shown != data)


def test_no_beginning_of_a_stop_string_is_ever_shown_early(qwen3, byte_tokens):
    pieces, rest, _ = spell(qwen3, byte_tokens, b"a<|ex|>b<|en", stop=["<|end|>"])
    assert pieces == ["a", "", "", "", "<|ex", "|", ">", "b", "", "", "", ""] and rest == "<|en"


@given(data=st.text(alphabet="ab€", max_size=30), stops=st.lists(st.text(alphabet="ab€", min_size=1, max_size=4), max_size=3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stop_strings_agree_with_a_plain_search(qwen3, byte_tokens, data, stops):
    pieces, rest, stopped = spell(qwen3, byte_tokens, data.encode(), stop=stops)
    # What is shown must not depend on how much had come: the first stop string to be complete wins.
    ends = [at + len(stop) for stop in stops if (at := data.find(stop)) >= 0]
    if not ends:
        assert not stopped and "".join(pieces) + rest == data
    else:
        complete = data[: min(ends)]
        assert stopped and "".join(pieces) + rest == complete[: min(complete.find(stop) for stop in stops if stop in complete)]


def test_special_tokens_are_hidden_unless_asked_for(qwen3):
    (end,) = qwen3.model.tokenize("<|im_end|>", False, True)
    (visible,) = qwen3.model.tokenize("<tool_call>", False, True)
    assert Text(qwen3.model, {}).push(end) == ("", 0)
    assert Text(qwen3.model, {"special": True}).push(end) == ("<|im_end|>", 0)
    assert Text(qwen3.model, {"visible_tokens": ["<|im_end|>"]}).push(end) == ("<|im_end|>", 0)
    assert Text(qwen3.model, {"visible_tokens": [end]}).push(end) == ("<|im_end|>", 0)
    assert Text(qwen3.model, {}).push(visible) == ("<tool_call>", 0)


def test_stop_tokens_end_without_text(qwen3, byte_tokens):
    text = Text(qwen3.model, {"stop_tokens": [byte_tokens[ord("x")]]})
    assert text.push(byte_tokens[ord("a")]) == ("a", 0)
    assert text.push(byte_tokens[ord("x")]) == ("", STOPPED)
