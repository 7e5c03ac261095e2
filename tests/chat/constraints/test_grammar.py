"""Grammars: what they take, and where they are wrong."""

from __future__ import annotations

import pytest

from localllm.chat.constraints.grammar import takes
from localllm.errors import GrammarError


@pytest.mark.parametrize(
    ("text", "whole", "taken"), [("", False, 0), ("ab", False, 2), ("abc", True, 3), ("abd", False, 2), ("ü", False, 0)]
)
def test_a_text_is_taken_as_far_as_it_goes(text, whole, taken):
    assert takes('root ::= "abc"', text) == (whole, taken)


@pytest.mark.parametrize("count", ["{2}", "{2,}", "{2,2}", "{ 2 , 3 }", "{1,2000}"])
def test_repetitions_that_can_be(count):
    assert takes(f"root ::= [a]{count}", "aa") == (True, 2)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a" |\nb ::= ]', "line 2, column 3: expecting newline or end"),
        ("# words\n\nroot ::= word\nwor ::= [a-z]", "line 3, column 10: the rule 'word' is not defined"),
        ('root = "a"', "line 1, column 6: expecting ::="),
        ('root ::= ("a"', "line 1, column 14: expecting ')'"),
        ("word ::= [a-z]", "line 1, column 1: there is no rule 'root'"),
        ("", "line 1, column 1: there is no rule 'root'"),
        ('root ::= root "a"', "left recursion"),
        ('root ::= "a"{2,1}', "line 1, column 13: at least 2 and at most 1"),
        ('root ::= "{2,1}" ["{]\nb ::= [x]{3, 2}', "line 2, column 10: at least 3 and at most 2"),
        ('root ::= "a"{0,2500}', "line 1, column 13: more than 2000 repetitions"),
        ('root ::= "a"{99999999999999999999}', "more than 2000 repetitions"),
        ("root ::= " + "(" * 600 + '"a"' + ")" * 600, "line 1, column 522: nested too deeply"),
    ],
)
def test_an_error_says_where(grammar, message, capfd):
    with pytest.raises(GrammarError) as caught:
        takes(grammar, "")
    assert message in str(caught.value)
    assert capfd.readouterr() == ("", ""), "nothing is printed past the caller"


def test_a_sampler_says_it_before_the_first_token(engine_for, capfd):
    from localllm import Request, SamplingParams

    engine = engine_for("qwen3")
    with pytest.raises(GrammarError, match="line 2, column 3"):
        engine.generate(Request(prompt=(5, 6), sampling=SamplingParams(grammar='root ::= "a" |\nb ::= ]')))
    assert engine.stats().computed_tokens == 0 and capfd.readouterr().err == ""
