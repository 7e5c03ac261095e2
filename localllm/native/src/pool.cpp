// Vectors and scores of texts.
#include "guard.h"

#include "json.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace {

bool encodes(const llama_context * ctx) {
    return !llama_get_memory(ctx) || llama_model_has_encoder(llama_get_model(ctx));
}

void check_size(const llama_context * ctx, int32_t n_tokens) {
    lm_require(n_tokens > 0, "batch: empty");
    const bool at_once = encodes(ctx) || !llama_get_causal_attn(ctx);
    const uint32_t most = at_once ? llama_n_ubatch(ctx) : llama_n_batch(ctx);
    if (static_cast<uint32_t>(n_tokens) > most) {
        lm_invalid("batch: " + std::to_string(n_tokens) + " tokens, the context takes " + std::to_string(most) +
                   (at_once ? " in one micro-batch" : ""));
    }
}

// The table that llama.cpp looks tokens up in ends where the file says: reading beyond fails an assertion on a thread
// of the computation, where it cannot be caught.
void check_batch(llama_context * ctx, const llama_batch & batch) {
    check_size(ctx, batch.n_tokens);
    lm_require(batch.token && !batch.embd, "batch: needs tokens, and no embeddings");
    lm_require(batch.pos && batch.n_seq_id && batch.seq_id, "batch: needs pos, n_seq_id and seq_id");
    const llama_model * model = llama_get_model(ctx);
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    lm_require_positions(*model, batch);
    for (int32_t i = 0; i < batch.n_tokens; i++) {
        if (batch.token[i] < 0 || batch.token[i] >= n_vocab) {
            lm_invalid("batch: token " + std::to_string(batch.token[i]) + " is not in the vocabulary");
        }
        lm_require(batch.pos[i] >= 0, "batch: a negative position");
        lm_require(batch.n_seq_id[i] == 1 && batch.seq_id[i], "batch: each token needs one sequence");
        lm_require(batch.seq_id[i][0] >= 0 && static_cast<uint32_t>(batch.seq_id[i][0]) < llama_n_seq_max(ctx),
                   "batch: the context has no such sequence");
    }
}

size_t row_length(const llama_model * model, int32_t pooling) {
    return pooling == LM_POOL_RANK ? llama_model_n_cls_out(model) : static_cast<size_t>(llama_model_n_embd_out(model));
}

void check_piece(llama_context * ctx, const llama_batch & batch, const lm_piece & piece) {
    lm_require(piece.pooling >= LM_POOL_NONE && piece.pooling <= LM_POOL_RANK, "pooling: not an lm_pooling");
    const enum llama_pooling_type own =
        piece.pooling == LM_POOL_RANK ? LLAMA_POOLING_TYPE_RANK : LLAMA_POOLING_TYPE_NONE;
    lm_require(llama_pooling_type(ctx) == own, "pooling: the context was made for another one");
    lm_require(piece.n_tokens > 0 && piece.first >= 0 && piece.first <= batch.n_tokens - piece.n_tokens,
               "first: the piece is empty, or lies outside of the batch");
    lm_require(piece.n_done >= 0, "n_done: negative");
    lm_require(piece.out, "out: NULL");
    const size_t n_rows =
        piece.pooling == LM_POOL_NONE ? static_cast<size_t>(piece.n_done) + static_cast<size_t>(piece.n_tokens) : 1;
    lm_require(piece.n_out / n_rows >= row_length(llama_get_model(ctx), piece.pooling), "n_out: too small");
    const llama_seq_id sequence = batch.seq_id[piece.first][0];
    for (int32_t i = 1; i < piece.n_tokens; i++) {
        lm_require(batch.seq_id[piece.first + i][0] == sequence, "first: the piece holds tokens of another sequence");
    }
}

const float * token_row(llama_context * ctx, int32_t index) {
    const float * row = llama_get_embeddings_ith(ctx, index);
    lm_require(row, "ctx: it was made without embeddings");
    return row;
}

// The mean over `n_done` earlier tokens is in `out` already.
void add_to_mean(llama_context * ctx, const lm_piece & piece, size_t n) {
    std::vector<double> sum(n, 0.0);
    for (int32_t i = 0; i < piece.n_tokens; i++) {
        const float * row = token_row(ctx, piece.first + i);
        for (size_t j = 0; j < n; j++) {
            sum[j] += static_cast<double>(row[j]);
        }
    }
    const double before = piece.n_done;
    const double all = before + piece.n_tokens;
    for (size_t j = 0; j < n; j++) {
        const double earlier = piece.n_done > 0 ? static_cast<double>(piece.out[j]) * before : 0.0;
        piece.out[j] = static_cast<float>((earlier + sum[j]) / all);
    }
}

// Writes the piece's rows; returns the first of them and how many floats were written.
std::pair<const float *, size_t> pool(llama_context * ctx, const llama_batch & batch, const lm_piece & piece) {
    const size_t n = row_length(llama_get_model(ctx), piece.pooling);
    const int32_t last = piece.first + piece.n_tokens - 1;
    switch (piece.pooling) {
    case LM_POOL_NONE: {
        float * out = piece.out + static_cast<size_t>(piece.n_done) * n;
        for (int32_t i = 0; i < piece.n_tokens; i++) {
            std::copy_n(token_row(ctx, piece.first + i), n, out + static_cast<size_t>(i) * n);
        }
        return {out, n * static_cast<size_t>(piece.n_tokens)};
    }
    case LM_POOL_MEAN:
        add_to_mean(ctx, piece, n);
        break;
    case LM_POOL_CLS:
        if (piece.n_done == 0) {
            std::copy_n(token_row(ctx, piece.first), n, piece.out);
        }
        break;
    case LM_POOL_LAST:
        std::copy_n(token_row(ctx, last), n, piece.out);
        break;
    default: {
        const float * row = llama_get_embeddings_seq(ctx, batch.seq_id[last][0]);
        lm_require(row, "ctx: it was made without embeddings");
        std::copy_n(row, n, piece.out);
    }
    }
    return {piece.out, n};
}

} // namespace

lm_status lm_embed(llama_context * ctx, const llama_batch * batch, lm_piece * pieces, int32_t n_pieces) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(batch, "batch: NULL");
        lm_require(n_pieces >= 0 && (pieces || n_pieces == 0), "pieces: NULL, or a negative number");
        check_batch(ctx, *batch);
        for (int32_t i = 0; i < n_pieces; i++) {
            check_piece(ctx, *batch, pieces[i]);
        }
        lm_error_capture errors;
        const int32_t result = encodes(ctx) ? llama_encode(ctx, *batch) : llama_decode(ctx, *batch);
        lm_require_decoded(result, errors.text());
        llama_synchronize(ctx);
        for (int32_t i = 0; i < n_pieces; i++) {
            const auto [row, n] = pool(ctx, *batch, pieces[i]);
            const bool sound = std::all_of(row, row + n, [](float value) { return std::isfinite(value); });
            pieces[i].status = sound ? LM_OK : LM_DECODE_FAILED;
        }
    });
}

lm_status lm_rows_finish(float * rows, size_t n_rows, int32_t n_from, int32_t n_to, bool normalize) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(rows, "rows: NULL");
        lm_require(n_to >= 1 && n_to <= n_from, "n_to: must be 1 to n_from");
        const auto from = static_cast<size_t>(n_from);
        const auto to = static_cast<size_t>(n_to);
        for (size_t i = 0; i < n_rows; i++) {
            float * row = rows + i * to;
            std::memmove(row, rows + i * from, to * sizeof(float));
            if (!normalize) {
                continue;
            }
            double squares = 0.0;
            for (size_t j = 0; j < to; j++) {
                squares += static_cast<double>(row[j]) * static_cast<double>(row[j]);
            }
            const double length = std::sqrt(squares);
            for (size_t j = 0; j < to && length > 0.0; j++) {
                row[j] = static_cast<float>(static_cast<double>(row[j]) / length);
            }
        }
    });
}

lm_status lm_pool_info(const llama_model * model, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        const uint32_t n_outputs = llama_model_n_cls_out(model);
        const ggml_tensor * last = model->cls_out ? model->cls_out : model->cls;
        common_json info = common_json::object();
        info["outputs"] = static_cast<int64_t>(n_outputs);
        info["width"] = last ? static_cast<int64_t>(last->ne[1]) : int64_t{0};
        // As in llm_graph_context::build_pooling.
        info["softmax"] = model->arch == LLM_ARCH_QWEN3 || model->arch == LLM_ARCH_QWEN3VL;
        info["positions"] = model->pos_embd ? static_cast<int64_t>(model->pos_embd->ne[1]) : int64_t{0};
        common_json labels = common_json::array();
        for (uint32_t i = 0; i < n_outputs; i++) {
            const char * label = llama_model_cls_label(model, i);
            if (label) {
                labels.push_back(std::string(label));
            }
        }
        info["labels"] = labels;
        *out = lm_string_copy(info.dump_safe());
    });
}
