"""Patterns as grammars: what a grammar writes, Python's own engine accepts, and the other way round."""

from __future__ import annotations

import json
import re

import pytest

from localllm.chat.constraints.grammar import takes
from localllm.chat.constraints.regex import from_regex
from localllm.errors import GrammarError

PATTERNS = {
    r"[A-Z]{2}-\d{4}": (["AB-1234"], ["AB-123", "ab-1234", "AB-12345"]),
    r"a|bc*|": (["a", "b", "bccc", ""], ["ac", "c"]),
    r"(\w+\.)*\w+@[^@\s]+": (["x.y@z", "a@b"], ["@b", "a@b c"]),
    r"(?:yes|no)!?": (["yes", "no!"], ["maybe", "yes!!"]),
    r"\S{2,}?": (["ab", "été"], ["a", "a b"]),
    r'"\\?[^"\\]"': (['"x"', '"\\x"'], ['""', '"x']),
    r"[^\W\d]+": (["ab_"], ["a1"]),
    r"ü[\u4e00-\u9fff]{1,3}": (["ü你好"], ["ü", "u你"]),
    r"^anchored$": (["anchored"], ["anchored "]),
    r"a|[^\s\S]": (["a"], ["", "b"]),
    r"[]^\-[]": (["]", "^", "-", "["], ["a"]),
}


def grammar_takes(grammar: str, text: str) -> bool:
    return takes(grammar, text)[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_grammar_takes_what_the_pattern_takes(pattern):
    good, bad = PATTERNS[pattern]
    for text in [*good, *bad]:
        expected = re.compile(pattern, re.ASCII).fullmatch(text) is not None
        assert expected == (text in good), "the table itself"
        assert grammar_takes(f"root ::= {from_regex(pattern)}", text) == expected, text
        body = pattern if pattern.startswith("^") else f"^(?:{pattern})$"
        assert grammar_takes(f"root ::= {from_regex(body, json_string=True)}", json.dumps(text, ensure_ascii=False)) == expected


@pytest.mark.parametrize(
    ("pattern", "good", "bad"), [("(?s)a.b", "a\nb", "ab"), ("(?x) a  b # words", "ab", "a  b"), (r"(?a)\w", "a", "é")]
)
def test_flags_that_a_grammar_can_express(pattern, good, bad):
    grammar = f"root ::= {from_regex(pattern)}"
    assert grammar_takes(grammar, good) and not grammar_takes(grammar, bad)
    assert re.fullmatch(pattern, good, re.ASCII) and not re.fullmatch(pattern, bad, re.ASCII)
    assert grammar_takes(f"root ::= {from_regex(pattern, json_string=True)}", json.dumps(f"x{good}x"))


@pytest.mark.parametrize("text", ["x7y", "7", "a\nb7", 'quote " 7', "back\\7"])
def test_in_a_schema_a_pattern_may_match_anywhere(text):
    grammar = f"root ::= {from_regex('7', json_string=True)}"
    assert grammar_takes(grammar, json.dumps(text)) and not grammar_takes(grammar, json.dumps(text.replace("7", "8")))


def test_a_dot_never_ends_a_json_string():
    grammar = f"root ::= {from_regex('^.*$', json_string=True)}"
    assert grammar_takes(grammar, r'"a \" b \\ c"')
    assert not grammar_takes(grammar, '"a " b"') and not grammar_takes(grammar, '"a\nb"')


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("(", "missing"),
        ("(?=a)b", "assert"),
        (r"(a)\1", "groupref"),
        (r"\bword", "at"),
        ("a^b", "at"),
        ("a{5000}", "repetitions"),
        ("(?i:a)", "flags"),
        ("(?i)[^a]", "flags"),
        ("(?m)^a$", "flags"),
        ("(?u)a", "incompatible"),
        ("(?L)a", "flag"),
        ("\ud800", "surrogates"),
        (r"\p{L}", "bad escape"),
    ],
)
def test_what_a_grammar_cannot_express_is_named(pattern, word):
    with pytest.raises(GrammarError, match=re.escape(repr(pattern))) as caught:
        from_regex(pattern)
    assert word in str(caught.value)
