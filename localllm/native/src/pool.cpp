// Embeddings and scores of a batch.
#include "guard.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace {

int32_t row_width(const llama_model * model, enum llama_pooling_type pooling) {
    return pooling == LLAMA_POOLING_TYPE_RANK ? static_cast<int32_t>(llama_model_n_cls_out(model))
                                              : llama_model_n_embd_out(model);
}

// What llama.cpp asserts, or does not look at.
void check(llama_context * ctx, const llama_batch & batch, int32_t n_rows) {
    const llama_model * model = llama_get_model(ctx);
    const bool pooled = llama_pooling_type(ctx) != LLAMA_POOLING_TYPE_NONE;
    lm_require(batch.n_tokens > 0 && batch.token && !batch.embd, "batch: empty, or without tokens");
    lm_require(batch.pos && batch.n_seq_id && batch.seq_id, "batch: without positions or sequences");
    lm_require(static_cast<uint32_t>(batch.n_tokens) <= llama_n_ubatch(ctx),
               "batch: more tokens than one micro-batch; pooling would see only a part");
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const auto n_sequences = static_cast<int32_t>(llama_n_seq_max(ctx));
    // A table of positions ends where training did.
    const int32_t n_positions = llama_get_memory(ctx) ? INT32_MAX : llama_model_n_ctx_train(model);
    std::vector<bool> seen(static_cast<size_t>(n_sequences), false);
    for (int32_t i = 0; i < batch.n_tokens; i++) {
        if (batch.token[i] < 0 || batch.token[i] >= n_vocab) {
            lm_invalid("batch: token " + std::to_string(batch.token[i]) + " is not in the vocabulary");
        }
        lm_require(batch.n_seq_id[i] == 1 && batch.seq_id[i], "batch: every token belongs to one sequence");
        const llama_seq_id slot = batch.seq_id[i][0];
        lm_require(slot >= 0 && slot < n_sequences, "batch: the context has no such sequence");
        lm_require(batch.pos[i] >= 0 && batch.pos[i] < n_positions, "batch: a position beyond the trained length");
        seen[static_cast<size_t>(slot)] = true;
    }
    const auto n_seen = static_cast<int32_t>(std::find(seen.begin(), seen.end(), false) - seen.begin());
    lm_require(std::count(seen.begin(), seen.end(), true) == n_seen, "batch: its sequences are not numbered from 0 on");
    lm_require(n_rows == (pooled ? n_seen : batch.n_tokens), "n_rows: not one for each sequence, or each token");
}

} // namespace

lm_status lm_embed(llama_context * ctx, const llama_batch * batch, bool fresh, float * out, int32_t n_rows,
                   int32_t * width) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(batch, "batch: NULL");
        lm_require(width, "width: NULL");
        const auto pooling = llama_pooling_type(ctx);
        const int32_t n = row_width(llama_get_model(ctx), pooling);
        lm_require(n > 0, "ctx: this model has nothing to give with this pooling");
        if (!out) {
            *width = n;
            return;
        }
        check(ctx, *batch, n_rows);
        lm_require(*width == n, "width: not that of a row");
        llama_memory_t memory = llama_get_memory(ctx);
        if (memory && fresh) {
            llama_memory_clear(memory, false);
        }
        lm_error_capture errors;
        const int32_t result = memory ? llama_decode(ctx, *batch) : llama_encode(ctx, *batch);
        if (result == 2) {
            throw lm_error(LM_ABORTED, "aborted");
        }
        if (result != 0) {
            throw lm_error(result == 1 ? LM_NO_SLOT : LM_DECODE_FAILED,
                           "the batch failed with status " + std::to_string(result) + ": " + errors.text());
        }
        llama_synchronize(ctx);
        for (int32_t i = 0; i < n_rows; i++) {
            const float * row = pooling == LLAMA_POOLING_TYPE_NONE ? llama_get_embeddings_ith(ctx, i)
                                                                   : llama_get_embeddings_seq(ctx, i);
            if (!row) {
                throw lm_error(LM_DECODE_FAILED, "llama.cpp gave no row " + std::to_string(i) + ": " + errors.text());
            }
            if (std::any_of(row, row + n, [](float x) { return std::isnan(x); })) {
                throw lm_error(LM_DECODE_FAILED,
                               "the model's output is not a number: its weights or metadata are damaged");
            }
            std::copy(row, row + n, out + static_cast<size_t>(i) * static_cast<size_t>(n));
        }
    });
}
