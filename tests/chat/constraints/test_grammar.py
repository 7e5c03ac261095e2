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


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a" |\nb ::= ]', "line 2, column 3: expecting newline or end"),
        ("# words\n\nroot ::= word\nwor ::= [a-z]", "line 3, column 10: the rule 'word' is not defined"),
        ('root = "a"', "line 1, column 6: expecting ::="),
        ('root ::= ("a"', "line 1, column 14: expecting ')'"),
        ("word ::= [a-z]", "line 1, column 1: there is no rule 'root'"),
        ("", "line 1, column 1: there is no rule 'root'"),
        ('root ::= "a" |\n  [b', "line 2, column 5: unexpected end of input"),
        ('root ::= ("a"?){101}', "line 1, column 1: the rule 'root' has more than 100 parts in a row that may all be empty"),
        ('root ::= "x" part\npart ::= (("a"?){20}){20}', "line 1, column 1: the rule 'root' has more than 100 parts in a row"),
        ('root ::= root "a"', "line 1, column 1: the rule 'root' begins with itself (left recursion)"),
        ('root ::= b\nb ::= "a"? b', "line 1, column 10: the rule 'b' begins with itself"),
        ('root ::= "a"{2,1}', "line 1, column 13: a repetition of at least 2 and at most 1"),
        ('root ::= "a" |\n  [\\]"] { 3 , # words }\n2 }', "line 2, column 9: a repetition of at least 3 and at most 2"),
        ('root ::= "a"{0,2001}', "line 1, column 13: more than 2000 repetitions"),
        ('root ::= "a"{2001,}', "line 1, column 13: more than 2000 repetitions"),
        ('root ::= "a"{99999999999999999999999}', "line 1, column 13: more than 2000 repetitions"),
        ('root ::= "' + "a" * 100_000 + '"{0,2000}', "line 1, column 100012: the grammar would be too large"),
        ("root ::= r0\n" + "".join(f"r{at} ::= r{at + 1} | r{at + 1}\n" for at in range(60)) + 'r60 ::= "a"', "too many ways"),
        ("root ::= r0\n" + "".join(f"r{at} ::= r{at + 1}\n" for at in range(200_000)) + 'r200000 ::= "a"', "too many rules"),
        ("root ::= " + "(" * 600 + '"a"' + ")" * 600, "line 1, column 522: nested too deeply"),
    ],
)
def test_an_error_says_where(grammar, message, capfd):
    with pytest.raises(GrammarError) as caught:
        takes(grammar, "")
    assert message in str(caught.value)
    assert capfd.readouterr() == ("", ""), "nothing is printed past the caller"


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "{2,1}" [{2,1}] # {2,1}\n', "{2,1}{"),
        ('root ::= "\\"{2,1}"', '"{2,1}'),
        ('root ::= [a\\]{2,1}] "b"{2}', "]bb"),
        ('root ::= "a"{0,2000} "b"{0}', "a" * 2000),
        ('block ::= "a"{1000}\nroot ::= block{0,2} "a"{0,999}', "a" * 2999),
        ('root ::= ("a" ("b"? "c"){1,2} ){2,}', "abccacbc"),
    ],
)
def test_what_only_looks_like_a_wrong_repetition_is_taken(grammar, text):
    assert takes(grammar, text) == (True, len(text))


@pytest.mark.parametrize(
    ("grammar", "where"), [('root ::= "a" |\nb ::= ]', "line 2, column 3"), ('root ::= "a"{2,1}', "line 1, column 13")]
)
def test_a_sampler_says_it_before_the_first_token(engine_for, capfd, grammar, where):
    from localllm import Request, SamplingParams

    engine = engine_for("qwen3")
    with pytest.raises(GrammarError, match=where):
        engine.generate(Request(prompt=(5, 6), sampling=SamplingParams(grammar=grammar)))
    assert engine.stats().computed_tokens == 0 and capfd.readouterr().err == ""
