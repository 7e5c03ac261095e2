#include "sampler.h"

#include "grammar.h"
#include "guard.h"
#include "sampler_params.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr const char * KIND = "sampler";

bool contains(const std::vector<common_sampler_type> & samplers, common_sampler_type type) {
    return std::find(samplers.begin(), samplers.end(), type) != samplers.end();
}

bool is_plain_greedy(const llama_vocab * vocab, const common_params_sampling & p) {
    int32_t n_suppress = 0;
    llama_vocab_get_suppress_tokens(vocab, &n_suppress);
    const bool penalties =
        p.penalty_last_n != 0 && (p.penalty_repeat != 1 || p.penalty_freq != 0 || p.penalty_present != 0);
    return p.temp <= 0 && p.mirostat == 0 && contains(p.samplers, COMMON_SAMPLER_TYPE_TEMPERATURE) &&
           !contains(p.samplers, COMMON_SAMPLER_TYPE_INFILL) && !contains(p.samplers, COMMON_SAMPLER_TYPE_ADAPTIVE_P) &&
           p.grammar.empty() && p.reasoning_budget_start.empty() && p.logit_bias.empty() && n_suppress == 0 &&
           !penalties && p.dry_multiplier == 0 && p.typ_p >= 1 && p.xtc_probability <= 0;
}

// The first of the largest logits; NaN never is. In blocks, so that the compiler uses vector instructions for both
// passes: a plain loop takes five times as long, which is felt beside a small model's decode.
llama_token argmax(const float * logits, int32_t n) {
    constexpr int32_t LANES = 16;
    float best[LANES];
    std::fill(best, best + LANES, -INFINITY);
    const int32_t whole = n - n % LANES;
    for (int32_t i = 0; i < whole; i += LANES) {
        for (int32_t lane = 0; lane < LANES; lane++) {
            best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
        }
    }
    float largest = *std::max_element(best, best + LANES);
    for (int32_t i = whole; i < n; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
    }
    for (int32_t i = 0; i < whole; i += LANES) {
        int found = 0;
        for (int32_t lane = 0; lane < LANES; lane++) {
            found |= logits[i + lane] == largest;
        }
        if (found) {
            return static_cast<llama_token>(std::find(logits + i, logits + i + LANES, largest) - logits);
        }
    }
    const float * last = std::find(logits + whole, logits + n, largest);
    return last == logits + n ? 0 : static_cast<llama_token>(last - logits);
}

bool is_ban_of_end(const llama_vocab * vocab, const llama_logit_bias & bias) {
    return bias.bias == -INFINITY && llama_vocab_is_eog(vocab, bias.token);
}

// A grammar that is complete permits only the end. If that is banned, nothing is left, and llama.cpp's sampler would
// choose any token, which its grammar then fails on. Whether the grammar is complete only a second sampler can tell.
common_sampler * make_ending(const lm_sampler & s) {
    common_params_sampling params = s.params;
    auto & bias = params.logit_bias;
    const auto is_ban = [&s](const llama_logit_bias & entry) { return is_ban_of_end(s.vocab, entry); };
    bias.erase(std::remove_if(bias.begin(), bias.end(), is_ban), bias.end());
    if (params.grammar.empty() || bias.size() == s.params.logit_bias.size()) {
        return nullptr;
    }
    params.ignore_eos = false;
    params.mirostat = 0;
    params.temp = 0;
    params.samplers = {COMMON_SAMPLER_TYPE_TEMPERATURE};
    return common_sampler_init(s.model, params);
}

void build(lm_sampler & s) {
    if (!s.params.grammar.grammar.empty()) {
        lm_require_grammar(s.params.grammar.grammar, llama_model_get_vocab(s.model));
    }
    try {
        common_params_sampling params = s.params;
        s.sampler.reset(common_sampler_init(s.model, params));
        s.ending.reset(make_ending(s));
        s.place = {};
        s.thought = lm_thought(s.vocab, s.thought_params, params.generation_prompt);
    } catch (const lm_error &) {
        throw;
    } catch (const std::exception & e) {
        throw lm_error(s.params.grammar.empty() ? LM_INVALID_ARGUMENT : LM_GRAMMAR,
                       std::string("grammar: ") + e.what());
    }
}

// Whether the last sample was a choice among banned tokens only.
bool nothing_left(common_sampler * sampler) {
    const llama_token_data_array * left = common_sampler_get_candidates(sampler, false);
    return left->selected >= 0 && left->data[left->selected].logit == -INFINITY;
}

// The logits of one output without those of some tokens, until it goes out of scope.
class Banned {
  public:
    Banned(float * logits, int32_t n) : logits_(logits), before_(logits, logits + n) {}
    Banned(const Banned &) = delete;
    Banned & operator=(const Banned &) = delete;
    ~Banned() { std::copy(before_.begin(), before_.end(), logits_); }
    void add(llama_token token) { logits_[token] = -INFINITY; }

  private:
    float * logits_;
    std::vector<float> before_;
};

// A choice among the tokens that break no character; LLAMA_TOKEN_NULL if the grammar permits none of them.
llama_token sample_whole_characters(lm_sampler & s, llama_context * ctx, int32_t index) {
    Banned banned(llama_get_logits_ith(ctx, index), s.n_vocab);
    for (llama_token token = 0; token < s.n_vocab; token++) {
        if (!s.keeps_characters(token)) {
            banned.add(token);
        }
    }
    const llama_token token = common_sampler_sample(s.sampler.get(), ctx, index);
    return nothing_left(s.sampler.get()) ? LLAMA_TOKEN_NULL : token;
}

// A token that keeps to the grammar. llama.cpp must not be given any other: an end too early would abort the process.
llama_token sample_by_grammar(lm_sampler & s, llama_context * ctx, int32_t index) {
    const llama_token token = common_sampler_sample(s.sampler.get(), ctx, index);
    if (!nothing_left(s.sampler.get())) {
        if (s.keeps_characters(token)) {
            return token;
        }
        // llama.cpp's grammars take three bytes that are no character (an overlong form, half of a pair) for one, and
        // an end within a character; the text then has more characters than the grammar has counted.
        const llama_token whole = sample_whole_characters(s, ctx, index);
        return whole != LLAMA_TOKEN_NULL ? whole : common_sampler_sample(s.sampler.get(), ctx, index);
    }
    if (s.ending) {
        const llama_token end = common_sampler_sample(s.ending.get(), ctx, index);
        if (!nothing_left(s.ending.get())) {
            s.last_resort = end;
            return end;
        }
    }
    throw lm_error(LM_GRAMMAR,
                   "grammar: no token is left that it permits here; logit_bias bans them, or the vocabulary "
                   "has none");
}

bool better(const llama_token_data & a, const llama_token_data & b) {
    return a.logit > b.logit;
}

} // namespace

const float * lm_logits(llama_context * ctx, int32_t index) {
    const float * logits = index >= 0 ? llama_get_logits_ith(ctx, index) : nullptr;
    if (!logits) {
        lm_invalid("index: the last decode has no output " + std::to_string(index));
    }
    return logits;
}

bool lm_sampler::keeps_characters(llama_token token) const {
    return llama_vocab_is_eog(vocab, token) ? place.is_whole() : place.takes(common_token_to_piece(vocab, token, true));
}

llama_token lm_sampler::sample(llama_context * ctx, int32_t index) {
    const float * logits = lm_logits(ctx, index);
    const llama_token forced = thought.forced();
    last_resort = LLAMA_TOKEN_NULL;
    const llama_token token = forced != LLAMA_TOKEN_NULL ? forced
                              : plain_greedy             ? argmax(logits, n_vocab)
                              : params.grammar.empty()   ? common_sampler_sample(sampler.get(), ctx, index)
                                                         : sample_by_grammar(*this, ctx, index);
    if (std::isnan(logits[token])) {
        throw lm_error(LM_DECODE_FAILED, "the model's output is not a number: its weights or metadata are damaged");
    }
    return token;
}

void lm_sampler::accept(llama_token token, bool generated) {
    if (generated) {
        thought.accept(token);
        if (!params.grammar.empty()) {
            place.add(common_token_to_piece(vocab, token, true));
        }
    }
    if (!plain_greedy) {
        try {
            common_sampler_accept(sampler.get(), token, generated);
            if (ending) {
                common_sampler_accept(ending.get(), token, generated);
            }
        } catch (const lm_error &) {
            throw;
        } catch (const std::exception & e) {
            throw lm_error(LM_GRAMMAR, std::string("grammar: ") + e.what());
        }
    }
}

int32_t lm_sampler::top(llama_context * ctx, int32_t index, bool sampled, llama_token_data * out, int32_t n,
                        llama_token chosen, float * logprob) {
    std::vector<llama_token_data> candidates;
    const llama_token forced = thought.forced() != LLAMA_TOKEN_NULL ? thought.forced() : last_resort;
    const bool free = forced == LLAMA_TOKEN_NULL;
    if (sampled && !plain_greedy && free) {
        const llama_token_data_array * left = common_sampler_get_candidates(sampler.get(), false);
        candidates.assign(left->data, left->data + left->size);
    } else {
        const float * logits = lm_logits(ctx, index);
        candidates.resize(static_cast<size_t>(n_vocab));
        for (int32_t i = 0; i < n_vocab; i++) {
            candidates[static_cast<size_t>(i)] = {i, logits[i], 0.0f};
        }
        if (sampled) {
            const llama_token only = free ? argmax(logits, n_vocab) : forced;
            candidates = {{chosen >= 0 ? chosen : only, 0.0f, 1.0f}};
        }
    }
    // log-softmax: log p_i = x_i - max - log(sum(exp(x_j - max)))
    float largest = -INFINITY;
    for (const auto & c : candidates) {
        largest = std::max(largest, c.logit);
    }
    double sum = 0;
    for (const auto & c : candidates) {
        sum += std::exp(static_cast<double>(c.logit - largest));
    }
    const auto shift = static_cast<float>(largest + std::log(sum));
    if (logprob) {
        *logprob = -INFINITY;
        for (const auto & c : candidates) {
            if (c.id == chosen) {
                *logprob = c.logit - shift;
                break;
            }
        }
    }
    const int32_t count = std::min(n, static_cast<int32_t>(candidates.size()));
    std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), better);
    for (int32_t i = 0; i < count; i++) {
        const float log_p = candidates[static_cast<size_t>(i)].logit - shift;
        out[i] = {candidates[static_cast<size_t>(i)].id, log_p, std::exp(log_p)};
    }
    return count;
}

lm_sampler & lm_sampler_require(const lm_sampler * sampler) {
    lm_handle_require(sampler, KIND);
    return *const_cast<lm_sampler *>(sampler);
}

lm_status lm_sampler_create(const llama_model * model, const char * json, lm_sampler ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        auto s = std::make_unique<lm_sampler>();
        s->model = model;
        s->vocab = llama_model_get_vocab(model);
        lm_require(llama_vocab_type(s->vocab) != LLAMA_VOCAB_TYPE_NONE, "model: it has no vocabulary");
        s->n_vocab = llama_vocab_n_tokens(s->vocab);
        const auto given = lm_parse_sampling(s->vocab, lm_checked_json(json, "json"));
        s->params = given.common;
        s->thought_params = given.thought;
        s->window = std::max({s->params.penalty_last_n, s->params.dry_penalty_last_n, s->params.n_prev});
        s->plain_greedy = is_plain_greedy(s->vocab, s->params);
        build(*s);
        lm_handle_add(s.get(), KIND);
        *out = s.release();
    });
}

lm_status lm_sampler_clone(const lm_sampler * sampler, lm_sampler ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_sampler & source = lm_sampler_require(sampler);
        lm_require(out, "out: NULL");
        auto copy = std::make_unique<lm_sampler>();
        copy->model = source.model;
        copy->vocab = source.vocab;
        copy->params = source.params;
        copy->thought_params = source.thought_params;
        copy->thought = source.thought;
        copy->place = source.place;
        copy->n_vocab = source.n_vocab;
        copy->window = source.window;
        copy->plain_greedy = source.plain_greedy;
        copy->sampler.reset(common_sampler_clone(source.sampler.get()));
        copy->ending.reset(source.ending ? common_sampler_clone(source.ending.get()) : nullptr);
        copy->last_resort = source.last_resort;
        lm_handle_add(copy.get(), KIND);
        *out = copy.release();
    });
}

lm_status lm_sampler_free(lm_sampler * sampler) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(sampler, KIND)) {
            lm_invalid("sampler: not a live handle");
        }
        delete sampler;
    });
}

lm_status lm_sampler_reset(lm_sampler * sampler) {
    // common_sampler_reset leaves the grammar where it is, so the whole sampler is made anew.
    return lm_guard(LM_INTERNAL, [&] { build(lm_sampler_require(sampler)); });
}

lm_status lm_sampler_accept(lm_sampler * sampler, const llama_token * tokens, int32_t n, bool generated) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_sampler & s = lm_sampler_require(sampler);
        lm_require(n >= 0 && (tokens || n == 0), "tokens: NULL, or a negative number");
        for (int32_t i = 0; i < n; i++) {
            // Negative ids are media positions: they take part in the sequence, but are no words.
            if (tokens[i] >= s.n_vocab || (generated && tokens[i] < 0)) {
                lm_invalid("tokens: " + std::to_string(tokens[i]) + " is not in the vocabulary");
            }
        }
        for (int32_t i = generated ? 0 : std::max(0, n - s.window); i < n; i++) {
            if (tokens[i] >= 0) {
                s.accept(tokens[i], generated);
            }
        }
    });
}

lm_status lm_sampler_sample(lm_sampler * sampler, llama_context * ctx, int32_t index, llama_token * out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_sampler & s = lm_sampler_require(sampler);
        lm_require(ctx, "ctx: NULL");
        lm_require(out, "out: NULL");
        *out = s.sample(ctx, index);
    });
}

lm_status lm_sampler_top(lm_sampler * sampler, llama_context * ctx, int32_t index, bool sampled, llama_token_data * out,
                         int32_t * n) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_sampler & s = lm_sampler_require(sampler);
        lm_require(ctx, "ctx: NULL");
        lm_require(n && *n >= 0 && (out || *n == 0), "n: NULL or negative");
        *n = s.top(ctx, index, sampled, out, *n, LLAMA_TOKEN_NULL, nullptr);
    });
}

lm_status lm_sampler_seed(const lm_sampler * sampler, uint32_t * out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_sampler & s = lm_sampler_require(sampler);
        lm_require(out, "out: NULL");
        *out = s.params.seed;
    });
}
