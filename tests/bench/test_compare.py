"""Models with and without speculation, asked in turn; what is counted is looked at, and no clock."""

from __future__ import annotations

import json

import pytest

from localllm import LocalModel, SpeculationConfig, errors, loaded_models
from localllm.bench import PROMPTS, compare, read_prompts
from localllm.residency.registry import Registry

QUICK = {"n_threads": 1, "n_ctx": 2048}


@pytest.fixture(scope="module")
def folder(trained):
    return trained.parent


@pytest.fixture(scope="module")
def texts(folder):
    return json.loads((folder / "prompts.json").read_text())


def config(folder, kind: str, **options) -> SpeculationConfig:
    file = folder / f"tiny-trained-qwen35-{kind.removeprefix('draft-')}.gguf"
    return SpeculationConfig(kind=kind, draft=file if file.exists() else "", throttle=False, **options)


def test_every_kind_says_what_plain_decoding_says_and_the_heads_are_as_good_as_they_are(trained, folder, texts):
    kinds = ("draft-mtp", "draft-eagle3", "draft-dspark", "draft-dflash", "ngram-map-k", "ngram-mod")
    given = {kind: config(folder, kind, n_max=3) for kind in kinds}
    found = compare(trained, given, prompts=texts, raw=True, n_tokens=64, n_rounds=1, **QUICK)
    assert [(one.name, one.kind, one.error) for one in found.results] == [(kind, kind, None) for kind in ("none", *kinds)]
    assert {one.n_same for one in found.results} == {16} and found.path == str(trained)
    plain, mtp, *_ = found.results
    assert plain.speculation is None and plain.ratio == 1.0 and plain.tokens_per_pass == 1.0
    # tests/models/trained/README.md: upstream's server counts 567 of 905, with those behind the end of an answer.
    assert mtp.speculation.acceptance == pytest.approx(567 / 905, rel=0.03) and 2.6 < mtp.tokens_per_pass < 3
    for one in found.results[1:5]:
        stats = one.speculation
        assert len(one.acceptance) == 3 and list(one.acceptance) == sorted(one.acceptance, reverse=True)
        assert one.tokens_per_pass > 1.5 and stats.n_tokens == sum(each.completion_tokens - 1 for each in one.prompts)
        assert 0 < one.draft_share + one.verify_share + one.rollback_share < 1 and one.ratio > 0


def test_auto_says_what_it_came_to(trained, folder, texts):
    given = {"auto": "auto", "with a draft": SpeculationConfig(kind="auto", draft=folder / "tiny-trained-qwen35-eagle3.gguf")}
    found = compare(trained, given, prompts=texts[:1], n_tokens=8, n_rounds=1, **QUICK)
    assert [one.kind for one in found.results] == ["none", "draft-mtp", "draft-eagle3"]


def test_what_cannot_be_had_is_told_and_the_others_are_measured(models, trained, folder, texts):
    given = {
        "heads": "draft-mtp",
        "ngram-simple": "ngram-simple",
        "wrong": SpeculationConfig(kind="draft-dflash", draft=folder / "tiny-trained-qwen35-eagle3.gguf"),
        "missing": SpeculationConfig(kind="auto", draft=folder / "missing.gguf"),
    }
    found = compare(models["qwen3"], given, prompts=texts[:2], n_tokens=8, n_rounds=2, raw=True, n_threads=1, n_ctx=512)
    failed = {one.name: one.error for one in found.results if one.error}
    assert {name: type(error) for name, error in failed.items()} == {
        "heads": errors.UnsupportedModelError,
        "wrong": errors.InvalidRequestError,
        "missing": errors.ModelNotFoundError,
    }
    assert "no heads" in str(failed["heads"]) and "missing.gguf" in str(failed["missing"])
    assert [one.name for one in found.results if one.tokens_per_second] == ["none", "ngram-simple"]
    assert loaded_models() == [], "errors that are kept hold no engine"


def test_every_model_is_loaded_once_and_gone_afterwards(trained, folder, texts, monkeypatch):
    loaded = []
    original = Registry._load_weights

    def load_weights(registry, resident, plan):
        loaded.append(resident.spec.model.mtp)
        return original(registry, resident, plan)

    monkeypatch.setattr(Registry, "_load_weights", load_weights)
    given = {kind: config(folder, kind) for kind in ("draft-eagle3", "ngram-mod", "draft-mtp")}
    compare(trained, given, prompts=texts[:2], n_tokens=8, n_rounds=3, **QUICK)
    assert loaded == [False, True], "plain, the draft and the n-grams share weights; the heads have more"
    assert loaded_models() == []


def test_an_interruption_frees_everything(trained, texts):
    def interrupt(n_done: int, n_all: int) -> None:
        assert (n_done, n_all) == (1, 2 * 2 * 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(trained, {"ngram-mod": "ngram-mod"}, prompts=texts[:3], n_tokens=8, n_rounds=2, progress=interrupt, **QUICK)
    assert loaded_models() == []


def test_no_round_knows_the_answers_of_another(trained, texts):
    given = {"ngram-mod": SpeculationConfig(kind="ngram-mod", throttle=False)}
    options = {"prompts": texts[:4], "n_tokens": 64, "raw": True, **QUICK}
    one, two = (compare(trained, given, n_rounds=n, **options).results[1].speculation for n in (1, 2))
    assert one.drafted_tokens > 0 and [2 * n for n in one.accepted] == list(two.accepted) and 2 * one.n_passes == two.n_passes


@pytest.mark.parametrize(("parallel", "n_groups"), [(1, 3), (2, 2), (4, 1)])
def test_so_many_are_asked_at_once(trained, texts, parallel, n_groups):
    steps = []
    options = {"prompts": texts[0:6:2], "n_tokens": 16, "n_rounds": 1, "raw": True, **QUICK}
    found = compare(trained, parallel=parallel, progress=lambda *step: steps.append(step), **options)
    assert steps == [(at + 1, n_groups) for at in range(n_groups)]
    assert [one.completion_tokens for one in found.results[0].prompts] == [16, 16, 16]


def test_prompts_are_questions_where_there_is_a_template(trained):
    with LocalModel(trained, **QUICK) as model:
        asked = [model.count_tokens(model.render([{"role": "user", "content": text}])) for text in PROMPTS.values()]
        bare = [model.count_tokens(text) for text in PROMPTS.values()]
    for raw, expected in ((False, asked), (True, bare)):
        found = compare(trained, n_tokens=2, n_rounds=1, raw=raw, **QUICK)
        assert [one.prompt_tokens for one in found.results[0].prompts] == expected
    assert found.prompts == ("prose", "edit", "table")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_tokens": 0}, "n_tokens: "),
        ({"n_rounds": True}, "n_rounds: "),
        ({"parallel": 0}, "parallel: "),
        ({"parallel": 300}, "parallel: "),
        ({"raw": "yes"}, "raw: "),
        ({"prompts": []}, "prompts: there is none"),
        ({"prompts": "one"}, "prompts: "),
        ({"prompts": ["a", " "]}, "prompts: 2 is no text"),
        ({"speculations": {"none": "none"}}, "speculations: the name 'none'"),
        ({"speculations": ["auto"]}, "speculations: "),
        ({"speculations": {"a": "magic"}}, "speculation: 'magic' is not one of"),
        ({"prefix_cache": True}, "prefix_cache: "),
        ({"nonsense": 1}, "nonsense: unknown option"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_loaded(trained, options, words):
    with pytest.raises(errors.InvalidRequestError, match=words):
        compare(trained, **options)
    assert loaded_models() == []


def test_plain_decoding_must_not_fail(trained, texts):
    with pytest.raises(errors.ContextOverflowError, match="n_ctx: ") as told:
        compare(trained, prompts=texts[:2], n_tokens=200, parallel=2, n_ctx=256)
    assert told.value.needed_tokens > told.value.available_tokens == 256
    del told  # its traceback holds the engine
    with pytest.raises(errors.UnsupportedModelError, match="is a draft"):
        compare(trained.parent / "tiny-trained-qwen35-eagle3.gguf")
    assert loaded_models() == []


@pytest.mark.parametrize(
    ("name", "text", "prompts"),
    [
        ("a.json", '["one\\ntwo", "three"]', ["one\ntwo", "three"]),
        ("a.txt", "[one]\n\n  \ntwo: \u00e4\n", ["[one]", "two: \u00e4"]),
        ("a.json", '{"one": "two"}', "no JSON list"),
        ("a.json", '["one", ""]', "no JSON list"),
        ("a.json", "[]", "holds none"),
        ("a.txt", "\n \n", "holds none"),
        ("a.json", "[", "cannot be read"),
    ],
)
def test_prompts_come_from_files(tmp_path, name, text, prompts):
    (tmp_path / name).write_text(text, encoding="utf-8")
    if isinstance(prompts, list):
        assert read_prompts(tmp_path / name) == prompts
    else:
        with pytest.raises(errors.InvalidRequestError, match=prompts):
            read_prompts(tmp_path / name)


def test_prompts_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    for name in ("bytes.txt", "missing.txt", ""):
        with pytest.raises(errors.InvalidRequestError, match="prompts: .* cannot be read"):
            read_prompts(tmp_path / name)
