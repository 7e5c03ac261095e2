"""Which files of a repository belong together, and which are taken."""

from __future__ import annotations

import dataclasses

import pytest

from localllm.errors import IncompleteSetError, QuantNotFoundError
from localllm.hub.choose import Candidate, Machine, candidate, choose_model
from localllm.hub.companions import choose_companions
from localllm.hub.gguf import Header, TensorInfo, read_header
from localllm.hub.listing import Listing, RepoFile
from localllm.hub.sets import file_sets, grouped, models, role_of

GIB = 2**30
AVX2 = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})

# A repository of 8.03 G parameters with thirty quantizations, by bits per weight as such repositories really have them.
THIRTY = {
    "IQ2_M": 2.95, "Q2_K": 3.17, "Q2_K_L": 3.69, "IQ3_XXS": 3.27, "IQ3_XS": 3.51, "IQ3_S": 3.66, "IQ3_M": 3.77, "Q3_K_S": 3.65,
    "Q3_K_M": 4.0, "Q3_K_L": 4.31, "Q3_K_XL": 4.76, "IQ4_XS": 4.43, "IQ4_NL": 4.67, "Q4_0": 4.66, "Q4_1": 5.11, "Q4_K_S": 4.67,
    "Q4_K_M": 4.9, "Q4_K_L": 5.29, "Q5_K_S": 5.57, "Q5_K_M": 5.71, "Q5_K_L": 6.03, "Q6_K": 6.57, "Q6_K_L": 6.82, "Q8_0": 8.51,
    "BF16": 16.0, "F32": 32.0, "UD-Q4_K_XL": 5.0, "UD-Q2_K_XL": 3.4, "UD-IQ1_S": 2.1, "i1-Q4_K_M": 4.9,
}  # fmt: skip
N_PARAMETERS = 8_030_000_000


def listing(*files: str | tuple[str, int]) -> Listing:
    given = [(file, 1000) if isinstance(file, str) else file for file in files]
    return Listing("org/repo", "main", "0" * 40, tuple(RepoFile(path, size, "", None) for path, size in given))


def thirty(overhead: float = 1.15) -> list[Candidate]:
    files = [(f"Model-8B-{tag}.gguf", int(bits * N_PARAMETERS / 8)) for tag, bits in THIRTY.items()]
    found = [candidate(one, N_PARAMETERS) for one in models(listing(*files))]
    return [dataclasses.replace(one, needed_bytes=int(one.files.n_bytes * overhead)) for one in found]


def test_sets_in_all_places():
    sets = file_sets(
        listing(
            "README.md", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf",
            "Q8_0/m-Q8_0-00001-of-00003.gguf", "Q8_0/m-Q8_0-00003-of-00003.gguf", "other/m-Q4_K_M-00001-of-00002.gguf",
            "m-BF16-00001-of-00002.gguf", "m-BF16-00001-of-00003.gguf", "mmproj-F16.gguf",
        )
    )  # fmt: skip
    facts = [(one.path, len(one.files), one.missing, one.name.role) for one in sets]
    assert facts == [
        ("README.md", 1, (), "other"),
        ("Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", 2, (), "model"),
        ("m-Q8_0.gguf", 1, (), "model"),
        ("Q8_0/m-Q8_0-00001-of-00003.gguf", 2, (2,), "model"),
        ("other/m-Q4_K_M-00001-of-00002.gguf", 1, (2,), "model"),
        ("m-BF16-00001-of-00002.gguf", 1, (2,), "model"),
        ("m-BF16-00001-of-00003.gguf", 1, (2, 3), "model"),
        ("mmproj-F16.gguf", 1, (), "mmproj"),
    ]


CPU, GPU = {"on_cpu": True, "repacked": AVX2}, {"on_cpu": False}


@pytest.mark.parametrize(
    ("free_gib", "machine", "tag", "why"),
    [
        (100, CPU, "Q8_0", "best that fits"),
        (8.0, CPU, "Q6_K_L", "best that fits"),
        (7.2, CPU, "Q6_K", "best that fits"),
        (6.0, CPU, "Q4_K_L", "Q5_K_S is about as good, but llama.cpp repacks Q4_K_L"),
        (6.0, GPU, "Q5_K_S", "best that fits"),
        (5.75, CPU, "UD-Q4_K_XL", "importance matrix"),
        (5.4, CPU, "UD-Q4_K_XL", "best that fits"),
        (5.3, CPU, "i1-Q4_K_M", "best that fits"),
        (5.03, CPU, "Q4_K_S", "best that fits"),
        (4.8, CPU, "Q3_K_L", "i-quants are slow"),
        (4.8, GPU, "IQ4_XS", "best that fits"),
        (3.2, CPU, "IQ2_M", "best that fits"),
        (2.3, CPU, "UD-IQ1_S", "best that fits"),
    ],
)
def test_the_best_that_fits(free_gib, machine, tag, why):
    choice = choose_model(thirty(), Machine(int(free_gib * GIB), **machine), "org/repo")
    assert (choice.files.name.tag, choice.fits) == (tag, True)
    assert why in choice.reason and tag in choice.reason


def test_nothing_fits_is_said_loudly():
    choice = choose_model(thirty(), Machine(GIB), "org/repo")
    assert (choice.files.name.tag, choice.fits) == ("UD-IQ1_S", False)
    assert "NOTHING FITS" in choice.warnings[0] and "1.0 GiB are free" in choice.warnings[0]


def test_the_usual_one_where_memory_is_not_known():
    choice = choose_model(thirty(), Machine(None), "org/repo")
    assert (choice.files.name.tag, choice.fits) == ("Q4_K_M", None) and "not known" in choice.reason
    without = [one for one in thirty() if one.files.name.quant != "Q4_K_M"]
    assert choose_model(without, Machine(None), "org/repo").files.name.tag == "UD-Q4_K_XL"


@pytest.mark.parametrize("names", [["BF16"], ["F32", "BF16"], ["F16"]])
def test_full_precision_only_if_there_is_nothing_else(names):
    files = models(listing(*((f"m-{name}.gguf", 16 if name != "F32" else 32) for name in names)))
    choice = choose_model([candidate(one) for one in files], Machine(None), "org/repo")
    assert choice.files.name.quant == names[-1]


def test_a_model_published_in_mxfp4_stays_so():
    def tag(sizes: dict[str, float]) -> str:
        files = models(listing(*((f"m-{name}.gguf", int(size * GIB)) for name, size in sizes.items())))
        found = [dataclasses.replace(candidate(one, 20_900_000_000), needed_bytes=one.n_bytes) for one in files]
        return choose_model(found, Machine(64 * GIB), "org/repo").files.name.tag

    assert tag({"F16": 12.8, "Q8_0": 11.3, "Q4_K_M": 10.8, "MXFP4": 11.3}) == "MXFP4"
    assert tag({"BF16": 38.9, "Q8_0": 20.7, "MXFP4_MOE": 11.3}) == "Q8_0"


@pytest.mark.parametrize(
    ("tag", "found"),
    [("q8_0", "Q8_0"), ("BF16", "BF16"), ("f32", "F32"), ("IQ4_NL", "IQ4_NL"), ("Q4_K_M", "Q4_K_M"), ("i1-q4_k_m", "i1-Q4_K_M"),
     ("Q2_K_XL", "UD-Q2_K_XL")],
)  # fmt: skip
def test_a_tag_is_taken_whatever_fits(tag, found):
    choice = choose_model(thirty(), Machine(4 * GIB), "org/repo", tag)
    assert choice.files.name.tag == found and tag in choice.reason
    assert bool(choice.warnings) == (choice.fits is False)


@pytest.mark.parametrize("tag", ["F16", "NL", "4_1", "Q4_K", "Q7_K", "latest"])
def test_an_unknown_tag_lists_what_there_is(tag):
    with pytest.raises(QuantNotFoundError) as caught:
        choose_model(thirty(), Machine(), "org/repo", tag)
    assert tag in str(caught.value) and all(known in str(caught.value) for known in THIRTY)


def test_a_tag_that_two_models_have_names_the_files():
    found = [candidate(one) for one in models(listing("a-Q4_0.gguf", "b-Q4_0.gguf"))]
    with pytest.raises(QuantNotFoundError, match=r"a-Q4_0.gguf, b-Q4_0.gguf"):
        choose_model(found, Machine(), "org/repo", "Q4_0")
    assert choose_model(found, Machine(), "org/repo", file="b-Q4_0.gguf").files.path == "b-Q4_0.gguf"
    with pytest.raises(QuantNotFoundError, match="c.gguf"):
        choose_model(found, Machine(), "org/repo", file="c.gguf")


def test_of_several_models_the_one_with_most_files_is_meant():
    names = ["small-Q8_0.gguf", "Large-Q4_0.gguf", "large-UD-Q4_K_XL.gguf", "tiny.gguf"]
    choice = choose_model([candidate(one) for one in models(listing(*names))], Machine(), "org/repo")
    assert choice.files.path == "large-UD-Q4_K_XL.gguf"
    assert "small, tiny" in choice.warnings[0]


def test_what_is_not_whole_is_never_chosen():
    found = [candidate(one) for one in models(listing("m-Q8_0-00001-of-00002.gguf", "m-Q4_0.gguf"))]
    choice = choose_model(found, Machine(), "org/repo")
    assert choice.files.name.tag == "Q4_0" and "Q8_0 is left out: 1 of 2 files are missing (number 2)" in choice.warnings[0]
    for asked in ({"tag": "Q8_0"}, {"file": "m-Q8_0-00001-of-00002.gguf"}):
        with pytest.raises(IncompleteSetError, match=r"Q8_0 is not whole.*number 2"):
            choose_model(found, Machine(), "org/repo", **asked)
    for none in ([], found[:1]):
        with pytest.raises(QuantNotFoundError, match="no complete GGUF model"):
            choose_model(none, Machine(), "org/repo")


def test_sets_by_role_and_what_a_header_says_counts_more():
    files = listing(
        "m-Q4_0.gguf", "x-style.gguf", "mmproj-F16.gguf", "mtp-Q8_0.gguf", "lora-F16.gguf", "README.md", "imatrix.gguf"
    )
    by_name = grouped(files)
    assert [len(found) for found in (by_name.models, by_name.projectors, by_name.drafts, by_name.adapters)] == [2, 1, 1, 1]
    assert by_name.others == ("README.md", "imatrix.gguf")
    assert [one.path for one in grouped(files, {"x-style.gguf": "adapter"}).adapters] == ["x-style.gguf", "lora-F16.gguf"]


@pytest.mark.parametrize(
    ("name", "role"),
    [("qwen3", "model"), ("gemma3-mmproj", "mmproj"), ("qwen35-mtp-head", "draft"), ("qwen3-lora", "adapter"),
     ("qwen3-vocab-only", "vocab"), ("bert", "model")],
)  # fmt: skip
def test_roles_by_header(models, name, role):
    assert role_of(read_header(models[name])) == role


def test_roles_by_header_of_what_is_no_model():
    assert role_of(header("wavtokenizer-dec")) == "other"
    assert role_of(header("imatrix", (), **{"general.type": "imatrix"})) == "imatrix"


# ---- companions


def header(architecture: str, tensors: tuple[str, ...] = ("blk.0.x",), tokens_hash: str = "", **metadata: object) -> Header:
    keys = {key if "." in key else f"{architecture}.{key}": value for key, value in metadata.items()}
    infos = tuple(TensorInfo(name, (32,), "F32", 128, 0) for name in tensors)
    return Header("x", 3, {"general.architecture": architecture, **keys}, infos, 0, 0, tokens_hash)


def projector(width: int) -> Header:
    return header("clip", (), **{"clip.vision.projection_dim": width})


MODEL = header("qwen3", embedding_length=2560, tokens_hash="aa")


@pytest.mark.parametrize(
    ("model", "files", "widths", "bf16", "taken", "why"),
    [
        ("m-Q4_0.gguf", ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], {}, False, "mmproj-F16.gguf", "CPU"),
        ("m-Q4_0.gguf", ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], {}, True, "mmproj-BF16.gguf", "GPU"),
        ("m-Q4_0.gguf", ["mmproj-Q8_0.gguf", "mmproj-F32.gguf"], {}, False, "mmproj-F32.gguf", "F32"),
        ("Q4_0/m-Q4_0.gguf", ["mmproj-F16.gguf"], {}, False, "mmproj-F16.gguf", "goes with"),
        ("Q4_0/m-Q4_0.gguf", ["mmproj-F16.gguf", "Q4_0/mmproj-BF16.gguf"], {}, False, "Q4_0/mmproj-BF16.gguf", "nearest"),
        ("m-Q4_0.gguf", ["Q8_0/mmproj-F16.gguf"], {}, False, None, "no projector"),
        ("Q4/m-Q4_0.gguf", ["Q4_0/mmproj-F16.gguf"], {}, False, None, "no projector"),
        ("m-Q4_0.gguf", ["mmproj-F16.gguf", "mmproj-4b-BF16.gguf"], {"mmproj-F16.gguf": 2048, "mmproj-4b-BF16.gguf": 2560}, False,
         "mmproj-4b-BF16.gguf", "2048 values, the model takes 2560"),
        ("m-Q4_0.gguf", ["mmproj-F16.gguf"], {"mmproj-F16.gguf": 2048}, False, None, "takes 2560"),
    ],
)  # fmt: skip
def test_the_projector_of_a_model(model, files, widths, bf16, taken, why):
    sets = grouped(listing(model, *files))
    headers = {model: MODEL, **{path: projector(width) for path, width in widths.items()}}
    found = choose_companions(sets.models[0], sets, headers, prefers_bf16=bf16).projector
    assert (found.files and found.files.path) == taken and why in found.reason


@pytest.mark.parametrize(
    ("model", "drafts", "taken", "why"),
    [
        (MODEL, {}, None, "no draft"),
        (MODEL, {"mtp-Q8_0.gguf": header("qwen3", tokens_hash="aa")}, "mtp-Q8_0.gguf", "predicts"),
        (MODEL, {"mtp-Q8_0.gguf": header("qwen3", tokens_hash="bb")}, None, "another one"),
        (MODEL, {"mtp-Q8_0.gguf": None}, None, "not known"),
        (MODEL, {"eagle3-F16.gguf": header("eagle3", target_hidden_size=2560)}, "eagle3-F16.gguf", "eagle3"),
        (MODEL, {"eagle3-F16.gguf": header("eagle3", target_hidden_size=4096)}, None, "width 4096"),
        (MODEL, {"eagle3-F16.gguf": header("eagle3", target_hidden_size=2560),
                 "dflash-Q8_0.gguf": header("dflash", embedding_length=2560)},
         "dflash-Q8_0.gguf", "dflash"),
        (header("qwen35", ("blk.0.x", "blk.1.nextn.eh_proj.weight"), nextn_predict_layers=1, block_count=2),
         {"mtp-Q8_0.gguf": header("qwen35")}, None, "by itself"),
    ],
)  # fmt: skip
def test_the_draft_of_a_model(model, drafts, taken, why):
    sets = grouped(listing("m-Q4_0.gguf", *drafts))
    headers = {"m-Q4_0.gguf": model, **{path: one for path, one in drafts.items() if one}}
    found = choose_companions(sets.models[0], sets, headers).draft
    assert (found.files and found.files.path) == taken and why in found.reason


def test_adapters_are_listed_and_never_taken():
    sets = grouped(listing("m-Q4_0.gguf", "lora-a-F16.gguf", "adapter-b-F16.gguf", "lora-c-00001-of-00002.gguf"))
    found = choose_companions(sets.models[0], sets, {})
    assert [one.path for one in found.adapters] == ["lora-a-F16.gguf", "adapter-b-F16.gguf"]
    assert (found.projector.files, found.draft.files) == (None, None)
