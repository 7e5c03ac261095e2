"""The builder keeps its promises: the same bytes each time, what the recipe says, and files as broken as they claim to be."""

import importlib.util
import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

HERE = Path(__file__).parent


def load(name):
    spec = importlib.util.spec_from_file_location(f"localllm_test_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build, extract, hostile = load("build"), load("extract"), load("hostile")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build.build_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return build.hostile(tmp_path_factory.mktemp("hostile"), ("refused", "fatal", "odd"))


def metadata(path):
    """The file's metadata in a recipe's form."""
    fields = gguf.GGUFReader(path).fields.items()
    return {key: extract.entry(field) for key, field in fields if not key.startswith("GGUF.")}


@pytest.mark.parametrize("name", build.names())
def test_file_is_what_the_recipe_says(models, name):
    recipe = build.load(name)
    assert metadata(models[name]) == recipe["metadata"]
    assert list(metadata(models[name])) == list(recipe["metadata"])
    tensors = {t.name: (t.tensor_type.name.lower(), t.shape.tolist()) for t in gguf.GGUFReader(models[name]).tensors}
    assert tensors == {name: (kind, shape) for name, (kind, shape, _) in recipe["tensors"].items()}


@pytest.mark.parametrize("name", build.names())
def test_weights_follow_the_rules(models, name):
    for tensor in gguf.GGUFReader(models[name]).tensors:
        rule = build.load(name)["tensors"][tensor.name][2]
        data = tensor.data.astype(np.float64).ravel()
        if "normal" not in rule:
            np.testing.assert_allclose(data, rule.get("values", rule.get("constant")), rtol=1e-3)
            continue
        mean, std = rule["normal"]
        low, high = rule.get("clip", (-np.inf, np.inf))
        assert np.isfinite(data).all() and data.min() >= low * 0.999 and data.max() <= high * 1.001
        if data.size >= 16:
            error = std / data.size**0.5
            assert abs(data.mean() - mean) < 5 * error, tensor.name
            # Clipping to the few extremes of a small tensor takes a little of the deviation.
            assert data.std() == pytest.approx(std, rel=5 / (2 * data.size) ** 0.5 + (0.1 if "clip" in rule else 0.01))


def test_two_builds_are_alike_and_small(models, tmp_path):
    for name, path in build.build_all(tmp_path).items():
        assert path.name == models[name].name
        assert path.read_bytes() == models[name].read_bytes()
        assert path.stat().st_size < 3_000_000
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_recipes_are_small():
    assert all(path.stat().st_size < 200_000 for path in build.RECIPES.iterdir())


def test_a_file_that_exists_is_kept(tmp_path):
    path = build.build("bert", tmp_path)
    before = path.stat()
    assert build.build("bert", tmp_path) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino


def test_changes_have_files_of_their_own(tmp_path):
    plain = build.build("qwen3", tmp_path)
    changed = build.build("qwen3", tmp_path, overrides={"general.name": "other"}, drop=["*.ffn_up.weight"])
    assert changed != plain
    assert metadata(changed)["general.name"] == ["string", "other"]
    kept = {t.name: t.data for t in gguf.GGUFReader(changed).tensors}
    whole = {t.name: t.data for t in gguf.GGUFReader(plain).tensors}
    assert set(whole) - set(kept) == {f"blk.{n}.ffn_up.weight" for n in range(4)}
    assert all(np.array_equal(kept[name], whole[name]) for name in kept)  # dropping some leaves the others' weights


def test_types_of_overrides(tmp_path):
    values = {
        "qwen3.block_count": 3,
        "test.whole": 3,
        "test.below": -3,
        "test.real": 0.5,
        "test.flag": True,
        "test.ids": [1, 2],
        "test.words": ["a", "b"],
        "test.flags": [True],
        "test.byte": ("uint8", 7),
        "test.bytes": ("[uint8]", [7]),
    }
    kinds = ["uint32", "uint32", "int32", "float32", "bool", "[int32]", "[string]", "[bool]", "uint8", "[uint8]"]
    found = metadata(build.build("qwen3-vocab-only", tmp_path, overrides=values))
    wanted = [value[1] if isinstance(value, tuple) else value for value in values.values()]
    assert [found[key] for key in values] == [list(pair) for pair in zip(kinds, wanted, strict=True)]


def test_a_new_architecture_renames_its_keys(models):
    keys = metadata(models["foobar"])
    assert keys["general.architecture"] == ["string", "foobar"]
    assert "foobar.block_count" in keys and not [key for key in keys if key.startswith("qwen3.")]


def test_the_head_alone_shares_weights_with_its_model(models):
    whole = {t.name: t.data for t in gguf.GGUFReader(models["qwen35"]).tensors}
    head = {t.name: t.data for t in gguf.GGUFReader(models["qwen35-mtp-head"]).tensors}
    rest = {t.name for t in gguf.GGUFReader(models["qwen35-no-mtp"]).tensors}
    assert all(np.array_equal(data, whole[name]) for name, data in head.items())
    assert set(head) | rest == set(whole)
    assert "blk.4.nextn.eh_proj.weight" in set(head) - rest


def test_what_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no recipe 'nothing'"):
        build.build("nothing", tmp_path)
    with pytest.raises(ValueError, match="nothing to drop for 'no.such'"):
        build.build("qwen3", tmp_path, drop=["no.such"])


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "mamba2", "bert", "qwen35-mmproj"])
def test_a_recipe_can_be_extracted_again(models, name, tmp_path):
    """A recipe made from a built model differs in measured statistics alone."""
    again = json.loads(extract.extract(models[name], name, name, 1, tmp_path).read_text("utf-8"))
    recipe = build.load(name)
    own = {p.stem[len("vocab-") :]: json.loads(p.read_text("utf-8")) for p in tmp_path.glob("vocab-*.json")}
    for key, (kind, value) in again["metadata"].items():
        whole = own[value["vocab"]][value["part"]] if isinstance(value, dict) else value
        assert [kind, whole] == recipe["metadata"][key]
    for tensor, (kind, shape, rule) in again["tensors"].items():
        assert [kind, shape] == recipe["tensors"][tensor][:2]
        assert set(rule) - {"clip"} == set(recipe["tensors"][tensor][2]) - {"clip"}


def test_quantized_tensors(tmp_path):
    recipe = build.load("qwen3-one-layer")
    recipe["tensors"]["output.weight"] = ["q8_0", *recipe["tensors"]["output.weight"][1:]]
    build.write(recipe, tmp_path / "quantized.gguf")
    again = extract.extract(tmp_path / "quantized.gguf", "again", "again", 1, tmp_path)
    kind, shape, rule = json.loads(again.read_text("utf-8"))["tensors"]["output.weight"]
    assert (kind, shape) == ("q8_0", [64, 392])
    assert rule["normal"][1] == pytest.approx(0.125, rel=0.03)


#: Faults whose file gguf-py reads without complaint: what is wrong is in what it reads.
READABLE = {
    "tensor-count-one-more", "dims-zero", "dims-too-many", "tensor-name-long", "offset-overflow", "offset-misaligned",
    "offset-shared", "wrong-shape", "missing-tensor", "empty-key", "nested-array", "no-architecture",
    "architecture-number", "suppress-unsigned", "nextn-1", "split-of-2", "no-hyperparameters", "feed-forward-0",
}  # fmt: skip
#: Faults that only newer releases of gguf-py see.
SEEN_LATELY = {"duplicate-key", "alignment-0", "alignment-24"}
ABOUT_VALUES = ("token", "no-to", "no-merges", "pre-", "block", "head", "key-length-0", "value-length", "embedding")


def test_hostile_files_differ_from_the_sound_one(broken, tmp_path):
    sound = build.build("qwen3-one-layer", tmp_path)
    assert hostile.read(sound).whole() == sound.read_bytes()
    assert {path.read_bytes() for path in broken.values()}.isdisjoint({sound.read_bytes()})
    assert len({path.read_bytes() for path in broken.values()}) == len(broken)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("fault", sorted({*hostile.REFUSED, *hostile.FATAL, *hostile.ODD} - SEEN_LATELY))
def test_whether_gguf_reads_a_hostile_file(broken, fault):
    readable = fault in READABLE or fault not in hostile.REFUSED or fault.startswith(ABOUT_VALUES)
    if readable:
        gguf.GGUFReader(broken[fault])
    else:
        with pytest.raises((ValueError, IndexError, KeyError, RecursionError)):
            gguf.GGUFReader(broken[fault])


def test_what_some_hostile_files_say(broken):
    def tensor(fault):
        return next(t for t in gguf.GGUFReader(broken[fault]).tensors if t.name == hostile.VICTIM)

    assert tensor("wrong-shape").shape.tolist() == [32, 128]
    assert tensor("offset-misaligned").data_offset % hostile.ALIGNMENT == 1
    assert hostile.VICTIM not in {t.name for t in gguf.GGUFReader(broken["missing-tensor"]).tensors}
    assert "general.architecture" not in gguf.GGUFReader(broken["no-architecture"]).fields
    assert not [key for key in gguf.GGUFReader(broken["no-tokenizer"]).fields if key.startswith("tokenizer.")]
    assert broken["empty"].stat().st_size == 0
    assert broken["cut-in-header"].stat().st_size == 20
    assert broken["duplicate-key"].read_bytes().count(b"general.name") == 2
    for number in (0, 24):
        entry = hostile.text("general.alignment") + struct.pack("<II", hostile.UINT32, number)
        assert entry in broken[f"alignment-{number}"].read_bytes()
    with pytest.raises(ValueError, match="version 99"):
        gguf.GGUFReader(broken["version-99"])
