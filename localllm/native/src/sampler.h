// A sampler for one sequence: llama.cpp's common_sampler, its parameters checked, with a short cut for plain greedy
// choice.
#pragma once

#include "localllm.h"

#include "sampling.h"
#include "thought.h"
#include "utf8.h"

#include <string>
#include <vector>

struct lm_sampler {
    const llama_model * model = nullptr;
    const llama_vocab * vocab = nullptr;
    common_params_sampling params;
    lm_thought_params thought_params;
    common_sampler_ptr sampler;
    common_sampler_ptr ending; // where the end is banned and there is a grammar: its best token without that ban
    llama_token last_resort = LLAMA_TOKEN_NULL; // what `ending` gave when nothing else was left
    lm_thought thought;
    lm_utf8_place place; // where the answer's text stands; kept where there is a grammar
    int32_t n_vocab = 0;
    int32_t window = 0;        // how many past tokens any stage looks at
    bool plain_greedy = false; // nothing in the chain can change which logit is the largest

    // Whether the answer's text stays well-formed with `token`.
    bool keeps_characters(llama_token token) const;
    llama_token sample(llama_context * ctx, int32_t index);
    void accept(llama_token token, bool generated);
    // The `n` best of output `index`; fewer if there are fewer. `chosen` >= 0: its log-probability goes to `*logprob`.
    int32_t top(llama_context * ctx, int32_t index, bool sampled, llama_token_data * out, int32_t n, llama_token chosen,
                float * logprob);
};

lm_sampler & lm_sampler_require(const lm_sampler * sampler);

// The logits of output `index` of the last decode. Throws if there are none.
const float * lm_logits(llama_context * ctx, int32_t index);
