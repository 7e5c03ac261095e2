// All that follows one llama_decode, for every sequence of the batch in one call.
#include "guard.h"
#include "sampler.h"
#include "text.h"

#include <algorithm>
#include <string>
#include <vector>

namespace {

thread_local std::vector<std::string> row_errors;

void check_row(const lm_row & row) {
    lm_sampler_require(row.sampler);
    if (row.text) {
        lm_text_require(row.text);
    }
    lm_require(row.tokens, "tokens: NULL");
    lm_require(row.n_draft >= 0 && (row.draft || row.n_draft == 0), "draft: NULL, or a negative number");
    lm_require(row.n_top >= 0 && (row.top || row.n_top == 0), "top: NULL, or a negative number");
    lm_require(row.max_tokens >= 1, "max_tokens: less than 1");
}

// One token of the target's own choice. Returns why the sequence ends with it, or LM_FINISH_NONE.
lm_finish choose(llama_context * ctx, lm_row & row, lm_sampler & sampler) {
    const int32_t at = row.n_tokens;
    const llama_token token = sampler.sample(ctx, row.index + at);
    if (row.logprobs || row.n_top > 0) {
        llama_token_data * top =
            row.n_top > 0 ? row.top + static_cast<size_t>(at) * static_cast<size_t>(row.n_top) : nullptr;
        const int32_t got = sampler.top(ctx, row.index + at, row.sampled_probs, top, row.n_top, token,
                                        row.logprobs ? row.logprobs + at : nullptr);
        for (int32_t i = got; i < row.n_top; i++) {
            top[i] = {LLAMA_TOKEN_NULL, 0.0f, 0.0f};
        }
    }
    sampler.accept(token, true);
    row.tokens[at] = token;
    row.n_tokens++;
    if (!row.ignore_eog && llama_vocab_is_eog(sampler.vocab, token)) {
        return LM_FINISH_EOG;
    }
    if (row.text) {
        const lm_finish finish = row.text->push(token);
        if (finish != LM_FINISH_NONE) {
            return finish;
        }
    }
    return row.n_tokens >= row.max_tokens ? LM_FINISH_LENGTH : LM_FINISH_NONE;
}

void step(llama_context * ctx, lm_row & row) {
    check_row(row);
    lm_sampler & sampler = *row.sampler;
    row.n_tokens = 0;
    row.finish = LM_FINISH_NONE;
    row.bytes = nullptr;
    row.size = 0;
    if (row.text) {
        row.text->ready.clear();
    }
    for (int32_t i = 0; i <= row.n_draft && row.finish == LM_FINISH_NONE; i++) {
        row.finish = choose(ctx, row, sampler);
        // Past a token that was not drafted, the following logits belong to another text.
        if (i < row.n_draft && row.tokens[i] != row.draft[i]) {
            break;
        }
    }
    row.max_tokens -= row.n_tokens;
    if (row.text) {
        if (row.finish != LM_FINISH_NONE) {
            row.text->flush();
        }
        row.bytes = row.text->ready.data();
        row.size = row.text->ready.size();
    }
}

} // namespace

lm_status lm_step(llama_context * ctx, lm_row ** rows, int32_t n_rows) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(n_rows >= 0 && (rows || n_rows == 0), "rows: NULL, or a negative number");
        lm_require(std::find(rows, rows + n_rows, nullptr) == rows + n_rows, "rows: one of them is NULL");
        llama_synchronize(ctx);
        row_errors.assign(static_cast<size_t>(n_rows), "");
        for (int32_t i = 0; i < n_rows; i++) {
            lm_row & row = *rows[i];
            row.status = lm_guard(LM_INTERNAL, [&] { step(ctx, row); });
            if (row.status != LM_OK) {
                row_errors[static_cast<size_t>(i)] = lm_last_error();
            }
            row.error = row_errors[static_cast<size_t>(i)].c_str();
        }
    });
}

lm_status lm_run(llama_context * ctx, const llama_batch * batch, lm_row ** rows, int32_t n_rows) {
    const lm_status status = lm_decode(ctx, batch);
    return status == LM_OK ? lm_step(ctx, rows, n_rows) : status;
}
