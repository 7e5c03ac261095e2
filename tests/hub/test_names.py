"""Names as the well-known publishers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.hub.names import FileName, is_safe_path, match_tag, parse_name, parse_tag

M, P, D, A, MATRIX, V, OTHER = "model", "mmproj", "draft", "adapter", "imatrix", "vocab", "other"

# path, quantization, variant, shard, role
NAMES = [
    # TheBloke and others of that time
    ("llama-2-7b-chat.Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("llama-2-7b-chat.Q2_K.gguf", "Q2_K", "", None, M),
    ("mistral-7b-instruct-v0.2.Q5_K_S.gguf", "Q5_K_S", "", None, M),
    ("mixtral-8x7b-instruct-v0.1.Q3_K_M.gguf", "Q3_K_M", "", None, M),
    ("codellama-34b-instruct.Q8_0.gguf", "Q8_0", "", None, M),
    ("falcon-180b.Q6_K.gguf-split-a", "Q6_K", "", None, OTHER),
    ("falcon-180b-chat.Q6_K.gguf-part-b", "Q6_K", "", None, OTHER),
    ("tinyllama-1.1b-chat-v1.0.Q4_0.gguf", "Q4_0", "", None, M),
    ("phi-2.Q5_1.gguf", "Q5_1", "", None, M),
    ("ggml-model-q4_k.gguf", "Q4_K", "", None, M),
    ("ggml-model-f16.gguf", "F16", "", None, M),
    ("ggml-model-i2_s.gguf", "I2_S", "", None, M),
    # bartowski
    ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("Llama-3.2-1B-Instruct-Q3_K_XL.gguf", "Q3_K_XL", "", None, M),
    ("Llama-3.2-1B-Instruct-Q4_K_L.gguf", "Q4_K_L", "", None, M),
    ("Llama-3.2-1B-Instruct-Q6_K_L.gguf", "Q6_K_L", "", None, M),
    ("Llama-3.2-1B-Instruct-IQ3_M.gguf", "IQ3_M", "", None, M),
    ("Llama-3.2-1B-Instruct-IQ4_NL.gguf", "IQ4_NL", "", None, M),
    ("Llama-3.2-1B-Instruct-IQ4_XS.gguf", "IQ4_XS", "", None, M),
    ("Llama-3.2-1B-Instruct-Q4_0_4_4.gguf", "Q4_0_4_4", "", None, M),
    ("Llama-3.2-1B-Instruct-Q4_0_4_8.gguf", "Q4_0_4_8", "", None, M),
    ("Llama-3.2-1B-Instruct-Q4_0_8_8.gguf", "Q4_0_8_8", "", None, M),
    ("Llama-3.2-1B-Instruct-f16.gguf", "F16", "", None, M),
    ("Llama-3.2-1B-Instruct.imatrix", "", "", None, MATRIX),
    ("google_gemma-3-27b-it-bf16/google_gemma-3-27b-it-bf16-00001-of-00002.gguf", "BF16", "", (1, 2), M),
    ("google_gemma-3-27b-it-Q5_K_L.gguf", "Q5_K_L", "", None, M),
    ("mmproj-google_gemma-3-27b-it-f16.gguf", "F16", "", None, P),
    ("mmproj-google_gemma-3-27b-it-f32.gguf", "F32", "", None, P),
    ("Qwen_Qwen3-235B-A22B-Q4_1/Qwen_Qwen3-235B-A22B-Q4_1-00003-of-00004.gguf", "Q4_1", "", (3, 4), M),
    ("openai_gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE", "", None, M),
    ("Qwen_Qwen3-30B-A3B-IQ2_XXS.gguf", "IQ2_XXS", "", None, M),
    ("Mistral-Large-Instruct-2407-IQ1_M.gguf", "IQ1_M", "", None, M),
    ("Qwen_Qwen3-4B-imatrix.gguf", "", "", None, MATRIX),
    # unsloth
    ("Qwen3-4B-UD-Q4_K_XL.gguf", "Q4_K_XL", "UD", None, M),
    ("Qwen3-4B-UD-IQ1_S.gguf", "IQ1_S", "UD", None, M),
    ("Qwen3-4B-UD-IQ2_M.gguf", "IQ2_M", "UD", None, M),
    ("Qwen3-4B-UD-Q8_K_XL.gguf", "Q8_K_XL", "UD", None, M),
    ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("Qwen3-4B-BF16.gguf", "BF16", "", None, M),
    ("imatrix_unsloth.dat", "", "", None, MATRIX),
    ("imatrix_unsloth.gguf", "", "", None, MATRIX),
    ("imatrix_unsloth.gguf_file", "", "", None, MATRIX),
    ("mmproj-BF16.gguf", "BF16", "", None, P),
    ("mmproj-F16.gguf", "F16", "", None, P),
    ("mmproj-F32.gguf", "F32", "", None, P),
    ("UD-Q4_K_XL/DeepSeek-R1-0528-UD-Q4_K_XL-00001-of-00008.gguf", "Q4_K_XL", "UD", (1, 8), M),
    ("UD-TQ1_0/DeepSeek-R1-0528-UD-TQ1_0-00002-of-00004.gguf", "TQ1_0", "UD", (2, 4), M),
    ("DeepSeek-R1-0528-UD-TQ1_0.gguf", "TQ1_0", "UD", None, M),
    ("DeepSeek-R1-UD-IQ1_S/DeepSeek-R1-UD-IQ1_S-00003-of-00003.gguf", "IQ1_S", "UD", (3, 3), M),
    ("BF16/Qwen3-235B-A22B-BF16-00010-of-00010.gguf", "BF16", "", (10, 10), M),
    ("Q2_K_L/Kimi-K2-Instruct-Q2_K_L-00001-of-00009.gguf", "Q2_K_L", "", (1, 9), M),
    ("gpt-oss-20b-F16.gguf", "F16", "", None, M),
    ("gpt-oss-20b-UD-Q8_K_XL.gguf", "Q8_K_XL", "UD", None, M),
    ("Qwen3.5-27B-UD-IQ4_NL_XL.gguf", "IQ4_NL_XL", "UD", None, M),
    ("Qwen3.5-27B-MTP-UD-Q4_K_XL.gguf", "Q4_K_XL", "UD", None, M),
    ("gemma-3n-E4B-it-UD-Q2_K_XL.gguf", "Q2_K_XL", "UD", None, M),
    ("gemma-3-270m-it-qat-UD-Q6_K_XL.gguf", "Q6_K_XL", "QAT-UD", None, M),
    # mradermacher
    ("Mistral-Nemo-Instruct-2407.i1-Q4_K_M.gguf", "Q4_K_M", "i1", None, M),
    ("Mistral-Nemo-Instruct-2407.i1-IQ2_XS.gguf", "IQ2_XS", "i1", None, M),
    ("Mistral-Nemo-Instruct-2407.i1-IQ3_XXS.gguf", "IQ3_XXS", "i1", None, M),
    ("Mistral-Nemo-Instruct-2407.i1-Q4_0.gguf", "Q4_0", "i1", None, M),
    ("Mistral-Nemo-Instruct-2407.Q4_K_S.gguf", "Q4_K_S", "", None, M),
    ("Mistral-Nemo-Instruct-2407.IQ4_XS.gguf", "IQ4_XS", "", None, M),
    ("Mistral-Nemo-Instruct-2407.f16.gguf", "F16", "", None, M),
    ("Mistral-Nemo-Instruct-2407.imatrix.gguf", "", "", None, MATRIX),
    ("imatrix.dat", "", "", None, MATRIX),
    ("Qwen2-VL-7B-Instruct.mmproj-Q8_0.gguf", "Q8_0", "", None, P),
    ("Qwen2-VL-7B-Instruct.mmproj-fp16.gguf", "F16", "", None, P),
    ("Behemoth-123B.i1-Q6_K.gguf.part1of3", "Q6_K", "i1", None, OTHER),
    # ggml-org
    ("gemma-3-4b-it-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("mmproj-model-f16.gguf", "F16", "", None, P),
    ("gpt-oss-20b-mxfp4.gguf", "MXFP4", "", None, M),
    ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "MXFP4", "", (1, 3), M),
    ("SmolVLM-500M-Instruct-Q8_0.gguf", "Q8_0", "", None, M),
    ("mmproj-SmolVLM-500M-Instruct-Q8_0.gguf", "Q8_0", "", None, P),
    ("mmproj-SmolVLM-500M-Instruct-f16.gguf", "F16", "", None, P),
    ("stories15M-q4_0.gguf", "Q4_0", "", None, M),
    ("tinyllamas/stories260K.gguf", "", "", None, M),
    ("ggml-vocab-llama-bpe.gguf", "", "", None, V),
    ("models/ggml-vocab-qwen2.gguf", "", "", None, V),
    ("embeddinggemma-300M-Q8_0.gguf", "Q8_0", "", None, M),
    ("embeddinggemma-300M-qat-Q4_0.gguf", "Q4_0", "QAT", None, M),
    ("moe_shakespeare15M.gguf", "", "", None, M),
    ("lora_shakespeare15M.gguf", "", "", None, A),
    ("Qwen3-Coder-30B-A3B-Instruct-Q8_0.gguf", "Q8_0", "", None, M),
    ("mtp-Qwen3.6-27B-Q8_0.gguf", "Q8_0", "", None, D),
    ("eagle3-gpt-oss-20b-BF16.gguf", "BF16", "", None, D),
    ("dflash-Qwen3-8B-Q8_0.gguf", "Q8_0", "", None, D),
    ("dspark-Qwen3-8B-F16.gguf", "F16", "", None, D),
    ("gpt-oss-120b-Eagle3-v3-F16.gguf", "F16", "", None, D),
    ("Qwen3.5-9B-DFlash-Q4_K_M.gguf", "Q4_K_M", "", None, D),
    ("drafts/mtp-F16.gguf", "F16", "", None, D),
    ("WavTokenizer-Large-75-F16.gguf", "F16", "", None, OTHER),
    ("ultravox-v0_5-llama-3_2-1b-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("mmproj-ultravox-v0_5-llama-3_2-1b-f16.gguf", "F16", "", None, P),
    # lmstudio-community
    ("Qwen2.5-7B-Instruct-1M-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("gemma-3-12B-it-QAT-Q4_0.gguf", "Q4_0", "QAT", None, M),
    ("mmproj-model-f16.gguf", "F16", "", None, P),
    ("mmproj-Qwen3-VL-4B-Instruct-F16.gguf", "F16", "", None, P),
    ("gpt-oss-20b-MXFP4.gguf", "MXFP4", "", None, M),
    ("Nemotron-3-Nano-30B-NVFP4.gguf", "NVFP4", "", None, M),
    # Qwen's, Google's, Microsoft's, Meta's own
    ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M", "", None, M),
    ("qwen2.5-0.5b-instruct-fp16.gguf", "F16", "", None, M),
    ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M", "", (1, 2), M),
    ("Q4_K_M/Qwen3-235B-A22B-Q4_K_M-00001-of-00005.gguf", "Q4_K_M", "", (1, 5), M),
    ("Q8_0/Qwen3-235B-A22B-00009-of-00009.gguf", "Q8_0", "", (9, 9), M),
    ("Qwen3VL-4B-Instruct-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("mmproj-Qwen3VL-4B-Instruct-F16.gguf", "F16", "", None, P),
    ("gemma-3-4b-it-q4_0.gguf", "Q4_0", "", None, M),
    ("mmproj-model-f16-4B.gguf", "F16", "", None, P),
    ("gemma-2-2b-it.gguf", "", "", None, M),
    ("gemma-3-1b-it-qat.gguf", "", "QAT", None, M),
    ("Phi-3-mini-4k-instruct-q4.gguf", "Q4", "", None, M),
    ("Phi-3-mini-4k-instruct-fp16.gguf", "F16", "", None, M),
    ("phi-4-Q4_K_S.gguf", "Q4_K_S", "", None, M),
    ("granite-3.3-2b-instruct-Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("smollm2-1.7b-instruct-q4_k_m.gguf", "Q4_K_M", "", None, M),
    ("LFM2-1.2B-Q4_0.gguf", "Q4_0", "", None, M),
    ("mmproj-LFM2-VL-450M-Q8_0.gguf", "Q8_0", "", None, P),
    # many other styles
    ("Model-Q4_K_M-imat.gguf", "Q4_K_M", "imat", None, M),
    ("c4ai-command-r-plus-104b-IQ4_XS-imatrix.gguf", "IQ4_XS", "imat", None, M),
    ("nomic-embed-text-v1.5.f32.gguf", "F32", "", None, M),
    ("bge-m3-FP16.gguf", "F16", "", None, M),
    ("bge-reranker-v2-m3-Q2_K.gguf", "Q2_K", "", None, M),
    ("MiniCPM-V-2_6-mmproj-f16.gguf", "F16", "", None, P),
    ("llava-v1.6-mistral-7b.Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("moondream2-mmproj-f16-20250414.gguf", "F16", "", None, P),
    ("adapter-sql-lora-Q4_K_M.gguf", "Q4_K_M", "", None, A),
    ("Llama-3-8B-Instruct-abliterated-LORA-F16.gguf", "F16", "", None, A),
    ("adapters/style-f16.gguf", "F16", "", None, M),
    ("Hermes-LoRA-merged-Q5_K_M.gguf", "Q5_K_M", "", None, M),
    ("BitNet-b1.58-2B-4T-TQ2_0.gguf", "TQ2_0", "", None, M),
    ("Bonsai-8B-Q1_0.gguf", "Q1_0", "", None, M),
    ("Bonsai-8B-Q1_0_g128.gguf", "Q1_0_G128", "", None, M),
    ("Qwen3-30B-A3B-IQ4_KS.gguf", "IQ4_KS", "", None, M),
    ("Kimi-K2-IQ1_KT-00004-of-00005.gguf", "IQ1_KT", "", (4, 5), M),
    ("Mistral.f16.q5_k.gguf", "Q5_K", "", None, M),
    ("model_Q4_K_M.gguf", "Q4_K_M", "", None, M),
    ("MODEL-Q4_K_M.GGUF", "Q4_K_M", "", None, M),
    ("Qwen3-4B-Instruct-2507-Q4_K_M-00004-of-00003.gguf", "Q4_K_M", "", None, OTHER),
    ("Qwen3-4B-Instruct-2507-Q4_K_M-00000-of-00003.gguf", "Q4_K_M", "", None, OTHER),
    ("Qwen3-4B-Q4_K_M-1-of-3.gguf", "Q4_K_M", "", None, M),
    ("SomethingQ4_K_M.gguf", "", "", None, M),
    ("Q4_K_Mixed-model.gguf", "", "", None, M),
    ("Outlier-XBF16.gguf", "", "", None, M),
    ("HauhauCS-Uncensored-Q4_K_P.gguf", "Q4_K_P", "", None, M),
    # no models
    ("README.md", "", "", None, OTHER),
    (".gitattributes", "", "", None, OTHER),
    ("config.json", "", "", None, OTHER),
    ("chat_template.jinja", "", "", None, OTHER),
    ("model-00001-of-00002.safetensors", "", "", None, OTHER),
    ("original/consolidated.00.pth", "", "", None, OTHER),
    ("mmproj-model.bin", "", "", None, OTHER),
    ("gguf", "", "", None, OTHER),
    ("", "", "", None, OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("path", "quant", "variant", "shard", "role"), NAMES)
def test_the_parts_of_a_name(path, quant, variant, shard, role):
    name = parse_name(path)
    assert (name.quant, name.variant, name.shard, name.role) == (quant, variant, shard, role)
    assert name.path == path


def test_there_are_enough_of_them():
    assert len({path for path, *_ in NAMES}) >= 120


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("UD-Q4_K_XL/DeepSeek-R1-0528-UD-Q4_K_XL-00001-of-00008.gguf", "DeepSeek-R1-0528"),
        ("Mistral-Nemo-Instruct-2407.i1-Q4_K_M.gguf", "Mistral-Nemo-Instruct-2407"),
        ("gemma-3-12B-it-QAT-Q4_0.gguf", "gemma-3-12B-it"), ("gemma-2-2b-it.gguf", "gemma-2-2b-it"),
        ("model_Q4_K_M.gguf", "model"), ("mmproj-F16.gguf", "mmproj"), ("Model-Q4_K_M-imat.gguf", "Model"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_name(path, base):
    assert parse_name(path).base == base


@pytest.mark.parametrize(
    ("path", "draft", "certain"),
    [
        ("mtp-Qwen3.6-27B-Q8_0.gguf", "mtp", True), ("eagle3-gpt-oss-20b-BF16.gguf", "eagle3", True),
        ("dflash-Qwen3-8B-Q8_0.gguf", "dflash", True), ("dspark-Qwen3-8B-F16.gguf", "dspark", True),
        ("gpt-oss-120b-Eagle3-v3-F16.gguf", "eagle3", False), ("Qwen3.5-27B-MTP-Q4_K_M.gguf", "", False),
        ("Qwen3-4B-Q4_K_M.gguf", "", True),
    ],
)  # fmt: skip
def test_kinds_of_drafts_and_what_only_a_header_can_tell(path, draft, certain):
    name = parse_name(path)
    assert (name.draft, name.is_certain) == (draft, certain)


def quants(*tags: str) -> list[FileName]:
    return [parse_name(f"Model-{tag}.gguf") for tag in tags]


@pytest.mark.parametrize(
    ("tag", "there_are", "means", "note"),
    [
        ("F16", ["BF16", "F16"], ["F16"], ""),
        ("F16", ["BF16", "Q4_0"], [], ""),
        ("fp16", ["BF16", "F16"], ["F16"], ""),
        ("NL", ["IQ4_NL"], [], "not the name"),
        ("4_1", ["Q4_1"], [], "not the name"),
        ("K_M", ["Q4_K_M"], [], "not the name"),
        ("Q4_K", ["Q4_K_M", "Q4_K_S"], [], ""),
        ("q4_k_m", ["Q4_K_M", "Q4_K_L", "IQ4_XS"], ["Q4_K_M"], ""),
        ("Q4_K_XL", ["UD-Q4_K_XL", "Q4_K_M"], ["UD-Q4_K_XL"], "only as UD-Q4_K_XL"),
        ("Q4_K_XL", ["UD-Q4_K_XL", "Q4_K_XL"], ["Q4_K_XL"], ""),
        ("UD-Q4_K_XL", ["UD-Q4_K_XL", "Q4_K_XL"], ["UD-Q4_K_XL"], ""),
        ("ud-q4_k_xl", ["UD-Q4_K_XL"], ["UD-Q4_K_XL"], ""),
        ("UD-Q4_K_M", ["Q4_K_M"], [], ""),
        ("Q4_0", ["QAT-Q4_0", "i1-Q4_0"], [], "QAT-Q4_0 or i1-Q4_0"),
        ("i1-Q4_0", ["QAT-Q4_0", "i1-Q4_0"], ["i1-Q4_0"], ""),
        ("Q4_K_M", ["i1-Q4_K_M"], ["i1-Q4_K_M"], "only as i1"),
        ("MXFP4", ["MXFP4_MOE"], [], ""),
        ("latest", ["Q4_0"], [], "not the name"),
        ("", ["Q4_0"], [], "not the name"),
        ("model-Q4_0", ["Q4_0"], [], "not the name"),
    ],
)  # fmt: skip
def test_a_tag_means_exactly_one_quantization(tag, there_are, means, note):
    found = match_tag(tag, quants(*there_are))
    assert [name.tag for name in found.names] == means
    assert note in found.note


@pytest.mark.parametrize(("path", "quant", "variant", "shard", "role"), [row for row in NAMES if row[1]])
def test_the_tag_of_a_name_leads_back_to_it(path, quant, variant, shard, role):
    name = parse_name(path)
    tag = parse_tag(name.tag)
    assert tag is not None and (tag.quant, tag.variant) == (quant, variant)
    assert match_tag(name.tag.swapcase(), [name]).names == (name,)


@pytest.mark.parametrize(
    "path",
    ["../m.gguf", "a/../m.gguf", "/m.gguf", "a//m.gguf", "./m.gguf", "a\\m.gguf", "C:m.gguf", "c:/m.gguf", "nul.gguf",
     "a/CON/m.gguf", "com1.x.gguf", "a./m.gguf", "a /m.gguf", "m\n.gguf", "m\x7f.gguf", "m.gguf/"],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_never_models(path):
    assert not is_safe_path(path) and parse_name(path).role == "other"


@pytest.mark.parametrize("path", ["m.gguf", "a/b c/m.gguf", "console.gguf", "com10/m.gguf", "a..b/m.gguf", "é/.x/m.gguf"])
def test_paths_that_stay_where_they_are(path):
    assert is_safe_path(path) and parse_name(path).role == "model"


@given(st.text(max_size=60))
def test_no_text_breaks_it(text):
    name = parse_name(text)
    assert name.path == text
    parse_tag(text)
