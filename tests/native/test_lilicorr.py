"""The LiLiCorr head alone: its numbers are those of a float64 implementation, whatever the layout of its file."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.errors import ClosedError, InvalidRequestError
from localllm.native.lilicorr import Block, LilicorrHead, candidates

FILES = {
    "lilicorr": ("lilicorr-unified", "lilicorr-head"),
    "hd": ("hd-unified", "hd-head"),
    "conv": ("conv-unified", "conv-head"),
}
P_MIN = 0.6


def blocks(data, logprobs):
    return [Block(*rows) for rows in zip(logprobs, data["embeddings"], data["hidden"], data["anchor"], strict=True)]


def sampled_walk(start, pair, uniforms):
    """Candidates drawn one after the other from the softmax of their row, and the distributions they were drawn from."""
    picks, shares, row = [], [], start
    for slot, uniform in enumerate(uniforms):
        row = pair[slot - 1, picks[-1]] if slot else start
        share = np.exp(row.astype(np.float64) - row.max())
        share /= share.sum()
        picks.append(int(min((np.cumsum(share) <= uniform).sum(), len(share) - 1)))
        shares.append(share)
    return picks, np.array(shares)


@pytest.fixture(scope="module")
def parity(lilicorr_maker, lilicorr_files):
    return {name: lilicorr_maker.read(lilicorr_files[f"parity_{name}"]).tensors for name in FILES}


@pytest.mark.parametrize("variant", FILES)
def test_candidates_are_the_most_likely_of_the_whole_vocabulary(parity, variant):
    data = parity[variant]
    for logits, ids, logprobs in zip(data["logits"], data["ids"], data["logp"], strict=True):
        found_ids, found = candidates(logits, ids.shape[-1])
        assert found_ids.tolist() == ids.tolist()
        np.testing.assert_allclose(found, logprobs, atol=1e-5)


@pytest.mark.parametrize("n_vocab", [1, 15, 16, 17, 1024, 1025, 5000, 152_000])
def test_candidates_of_vocabularies_of_any_size(n_vocab):
    random = np.random.default_rng(n_vocab)
    logits = (random.normal(size=(3, n_vocab)) * 8).astype(np.float32)
    logits[1] = logits[1].round()  # many are equal: the first of them are taken
    logits[2, random.integers(n_vocab, size=n_vocab // 2)] = -np.inf  # not in a reduced vocabulary
    k = min(n_vocab, 8)
    ids, logprobs = candidates(logits, k)
    exact = logits.astype(np.float64)
    assert ids.tolist() == np.argsort(-exact, axis=-1, kind="stable")[:, :k].tolist()
    norm = np.logaddexp.reduce(exact, axis=-1, keepdims=True)
    np.testing.assert_allclose(logprobs, np.take_along_axis(exact, ids, -1) - norm, atol=1e-5)


@pytest.mark.parametrize("n_blocks", [1, 3, 8])
@pytest.mark.parametrize(("variant", "name"), [(variant, name) for variant, names in FILES.items() for name in names])
def test_scores_paths_and_samples_from_equal_inputs(parity, lilicorr_files, variant, name, n_blocks):
    data = parity[variant]
    head = LilicorrHead(lilicorr_files[name], n_blocks=n_blocks)
    found = head.score(blocks(data, data["logp"]))
    kept = [scores.path for scores in head.score(blocks(data, data["logp"]), P_MIN)]
    for at, scores in enumerate(found):
        np.testing.assert_allclose(scores.start, data["start"][at], atol=1e-5)
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=1e-5)
        assert scores.path == tuple(data["path"][at])
        assert kept[at] == scores.path[: data["kept"][at]]
        picks, shares = sampled_walk(scores.start, scores.pair, data["uniforms"][at])
        assert picks == data["sampled"][at].tolist()
        np.testing.assert_allclose(shares, data["q"][at], atol=1e-5)
    head.close()


def test_both_layouts_give_the_same_bits(parity, lilicorr_files):
    for variant, names in FILES.items():
        one, other = (
            LilicorrHead(lilicorr_files[name]).score(blocks(parity[variant], parity[variant]["logp"])) for name in names
        )
        for mine, yours in zip(one, other, strict=True):
            assert mine.start.tobytes() == yours.start.tobytes() and mine.pair.tobytes() == yours.pair.tobytes()


def test_halves_choose_the_same_paths(parity, lilicorr_files):
    data = parity["lilicorr"]
    for at, scores in enumerate(LilicorrHead(lilicorr_files["lilicorr-unified-f16"]).score(blocks(data, data["logp"]))):
        np.testing.assert_allclose(scores.start, data["start"][at], atol=1e-2)
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=1e-2)
        assert scores.path == tuple(data["path"][at])


@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_other_types_stay_near(parity, lilicorr_maker, lilicorr_files, tmp_path, kind):
    import gguf

    head = lilicorr_maker.read(lilicorr_files["hd-head"])  # 96 values a row: 288 in the matrix that is cut in three
    quantized = {
        name: gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
        for name, array in head.tensors.items()
        if array.ndim == 2 and array.shape[-1] % 32 == 0 and "embedding" not in name
    }
    path = tmp_path / "head.gguf"
    writer = gguf.GGUFWriter(path, "lilicorr-head")
    for key, (types, value) in head.keys.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, types[0])
    for name, array in head.tensors.items():
        raw = quantized.get(name)
        writer.add_tensor(name, array if raw is None else raw, raw_dtype=None if raw is None else gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = parity["hd"]
    for at, scores in enumerate(LilicorrHead(path).score(blocks(data, data["logp"]))):
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=0.15)


def test_scales_of_matrices_are_heeded(parity, lilicorr_maker, lilicorr_files, tmp_path):
    head = lilicorr_maker.read(lilicorr_files["lilicorr-head"])
    scaled = ["lilicorr.token_proj", "lilicorr.context_proj", "blk.2.ffn_down", "blk.3.attn_output"]
    changes = {f"{name}.weight": head.tensors[f"{name}.weight"] / 4 for name in scaled}
    changes.update({f"{name}.scale": np.array([4.0], np.float32) for name in scaled})
    path = lilicorr_maker.write(head.changed(tensors=changes), tmp_path / "head.gguf")
    data = parity["lilicorr"]
    for at, scores in enumerate(LilicorrHead(path).score(blocks(data, data["logp"]))):
        np.testing.assert_allclose(scores.pair, data["pair"][at], atol=1e-5)


def test_wrong_calls_are_refused(parity, lilicorr_files):
    data = parity["lilicorr"]
    head = LilicorrHead(lilicorr_files["lilicorr-head"])
    (block,) = blocks(data, data["logp"])[:1]
    for name in ("logprobs", "embeddings", "hidden", "anchor"):
        values = {**vars(block), name: getattr(block, name)[..., :-1]}
        with pytest.raises(InvalidRequestError, match=f"^{name}: "):
            head.score([Block(**values)])
    for p_min in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidRequestError, match="^p_min: "):
            head.score([block], p_min)
    for k in (0, 385):
        with pytest.raises(InvalidRequestError, match="^k: "):
            candidates(data["logits"][0], k)
    for options in ({"n_threads": 0}, {"n_threads": 513}, {"n_blocks": 0}, {"n_blocks": 257}):
        with pytest.raises(InvalidRequestError, match=f"^{next(iter(options))}: "):
            LilicorrHead(lilicorr_files["lilicorr-head"], **options)
    assert head.score([]) == []
    head.close()
    with pytest.raises(ClosedError):
        head.score([block])


def test_values_that_are_no_numbers_end_nothing(parity, lilicorr_files):
    data = parity["lilicorr"]
    head = LilicorrHead(lilicorr_files["lilicorr-head"])
    broken = np.full_like(data["hidden"][0], np.nan)
    (scores,) = head.score([Block(data["logp"][0], data["embeddings"][0], broken, data["anchor"][0])])
    assert all(0 <= choice < 4 for choice in scores.path)
    ids, _ = candidates(np.full((1, 100), np.nan, np.float32), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]
