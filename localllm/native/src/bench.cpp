// The bare decoding loop that the engine's speed is compared with (benchmarks/decode.py).
#include "guard.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

using seconds_clock = std::chrono::steady_clock;

double seconds_since(seconds_clock::time_point begin) {
    return std::chrono::duration<double>(seconds_clock::now() - begin).count();
}

void decode_or_throw(llama_context * ctx, llama_token * tokens, int32_t n) {
    if (llama_decode(ctx, llama_batch_get_one(tokens, n)) != 0) {
        throw lm_error(LM_DECODE_FAILED, "llama_decode failed");
    }
}

llama_token largest_logit(llama_context * ctx, int32_t n_vocab) {
    const float * logits = llama_get_logits_ith(ctx, -1);
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

} // namespace

lm_status lm_bench_loop(llama_context * ctx, const llama_token * tokens, int32_t n, int32_t n_generate,
                        llama_token * generated, double * prefill_seconds, double * decode_seconds) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(tokens && n > 0, "tokens: NULL or empty");
        lm_require(n_generate > 0 && generated, "generated: NULL or nothing to generate");
        lm_require(prefill_seconds && decode_seconds, "seconds: NULL");
        const auto n_batch = static_cast<int32_t>(llama_n_batch(ctx));
        lm_require(n <= INT32_MAX - n_generate && static_cast<uint32_t>(n + n_generate) <= llama_n_ctx(ctx),
                   "tokens: more than the context holds");
        lm_require(n + n_generate <= lm_n_positions(*llama_get_model(ctx)),
                   "tokens: more than the model has positions");
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
        std::vector<llama_token> prompt(tokens, tokens + n);
        llama_memory_clear(llama_get_memory(ctx), false);
        const auto start = seconds_clock::now();
        for (int32_t at = 0; at < n; at += n_batch) {
            decode_or_throw(ctx, prompt.data() + at, std::min(n_batch, n - at));
        }
        generated[0] = largest_logit(ctx, n_vocab);
        *prefill_seconds = seconds_since(start);
        const auto middle = seconds_clock::now();
        for (int32_t i = 1; i < n_generate; i++) {
            llama_token last = generated[i - 1];
            decode_or_throw(ctx, &last, 1);
            generated[i] = largest_logit(ctx, n_vocab);
        }
        *decode_seconds = seconds_since(middle);
    });
}
