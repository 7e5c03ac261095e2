// The LiLiCorr head by itself, for who wants to compare its numbers.
#include "guard.h"
#include "lilicorr_candidates.h"
#include "lilicorr_head.h"

#include "json.h"

#include <algorithm>
#include <memory>

struct lm_lilicorr {
    lilicorr_file file;
    lilicorr_head head;

    lm_lilicorr(const std::string & path, int32_t n_threads, int32_t n_blocks)
        : file(path), head(file, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), n_threads, n_blocks) {}
};

namespace {

constexpr const char * KIND = "LiLiCorr head";
constexpr int32_t MAX_BLOCKS = 256;
constexpr int32_t MAX_THREADS = 512; // of ggml

lm_lilicorr & require_head(const lm_lilicorr * handle) {
    lm_handle_require(handle, KIND);
    return *const_cast<lm_lilicorr *>(handle);
}

void score(lilicorr_head & head, lm_lilicorr_block * blocks, int32_t n) {
    const lilicorr_shape & shape = head.shape();
    const auto n_tokens = static_cast<size_t>(shape.n_nodes()) * static_cast<size_t>(shape.n_hidden);
    std::vector<float> tokens(n_tokens * static_cast<size_t>(n));
    std::vector<lilicorr_inputs> inputs;
    std::vector<lilicorr_scores> scores(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; i++) {
        const lm_lilicorr_block & block = blocks[i];
        float * rows = tokens.data() + n_tokens * static_cast<size_t>(i);
        head.project(block.embeddings, shape.n_nodes(), rows);
        inputs.push_back({rows, block.logprobs, block.hidden, block.anchor});
    }
    head.score(inputs.data(), n, scores.data());
    for (int32_t i = 0; i < n; i++) {
        lm_lilicorr_block & block = blocks[i];
        const lilicorr_scores & found = scores[static_cast<size_t>(i)];
        std::copy(found.start.begin(), found.start.end(), block.start);
        std::copy(found.pair.begin(), found.pair.end(), block.pair);
        block.n_path = lilicorr_walk(shape, found, block.p_min, block.path);
    }
}

} // namespace

lm_status lm_lilicorr_create(const char * path, int32_t n_threads, int32_t n_blocks, lm_lilicorr ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(path, "path: NULL");
        lm_require(out, "out: NULL");
        lm_require(n_threads >= 1 && n_threads <= MAX_THREADS, "n_threads: out of range");
        lm_require(n_blocks >= 1 && n_blocks <= MAX_BLOCKS, "n_blocks: out of range");
        auto head = std::make_unique<lm_lilicorr>(path, n_threads, n_blocks);
        lm_handle_add(head.get(), KIND);
        *out = head.release();
    });
}

lm_status lm_lilicorr_free(lm_lilicorr * head) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(head, KIND)) {
            lm_invalid("head: not a live handle");
        }
        delete head;
    });
}

lm_status lm_lilicorr_info(const lm_lilicorr * handle, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lilicorr_shape & shape = require_head(handle).head.shape();
        lm_require(out, "out: NULL");
        common_json info = common_json::object();
        info["n_embd"] = shape.n_embd;
        info["n_hidden"] = shape.n_hidden;
        info["n_slots"] = shape.n_slots;
        info["n_candidates"] = shape.n_candidates;
        info["n_layers"] = shape.n_layers;
        info["n_heads"] = shape.n_heads;
        info["n_mlp"] = shape.n_mlp;
        info["n_factors"] = shape.n_factors;
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_lilicorr_candidates(const float * logits, int32_t n_rows, int32_t n_vocab, int32_t k, llama_token * ids,
                                 float * logprobs) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(logits && ids && logprobs, "logits, ids, logprobs: NULL");
        lm_require(n_rows >= 0 && n_vocab >= 1, "n_rows, n_vocab: negative, or no tokens");
        lm_require(k >= 1 && k <= n_vocab, "k: not between 1 and n_vocab");
        lilicorr_candidates(logits, n_rows, n_vocab, k, ids, logprobs);
    });
}

lm_status lm_lilicorr_score(lm_lilicorr * handle, lm_lilicorr_block * blocks, int32_t n) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lilicorr_head & head = require_head(handle).head;
        lm_require(n >= 0 && (blocks || n == 0), "blocks: NULL, or a negative number");
        for (int32_t i = 0; i < n; i++) {
            const lm_lilicorr_block & block = blocks[i];
            lm_require(block.logprobs && block.embeddings && block.hidden && block.anchor && block.start &&
                           block.pair && block.path,
                       "blocks: one has a NULL in it");
            lm_require(block.p_min >= 0.0f && block.p_min <= 1.0f, "p_min: not between 0 and 1");
        }
        for (int32_t i = 0; i < n; i += head.max_blocks()) {
            score(head, blocks + i, std::min(head.max_blocks(), n - i));
        }
    });
}
