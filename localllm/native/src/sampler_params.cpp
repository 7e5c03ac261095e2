#include "sampler_params.h"

#include "guard.h"
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

namespace {

constexpr int32_t MAX_WINDOW = 1 << 24; // tokens of history; the samplers reserve memory for all of them

using field_reader = std::function<void(common_params_sampling &, const common_json &)>;

field_reader number(float common_params_sampling::*field, double low, double high) {
    return [=](common_params_sampling & p, const common_json & v) {
        if (!v.is_number()) {
            lm_invalid("not a number");
        }
        const double x = v.get<double>();
        if (!(x >= low && x <= high)) {
            lm_invalid("outside its range");
        }
        p.*field = static_cast<float>(x);
    };
}

field_reader integer(int32_t common_params_sampling::*field, int64_t low, int64_t high) {
    return [=](common_params_sampling & p, const common_json & v) {
        if (!v.is_number_integer()) {
            lm_invalid("not an integer");
        }
        const auto x = v.get<int64_t>();
        if (x < low || x > high) {
            lm_invalid("outside its range");
        }
        p.*field = static_cast<int32_t>(x);
    };
}

field_reader flag(bool common_params_sampling::*field) {
    return [=](common_params_sampling & p, const common_json & v) {
        if (!v.is_boolean()) {
            lm_invalid("not a boolean");
        }
        p.*field = v.get<bool>();
    };
}

const std::map<std::string, common_sampler_type> SAMPLERS = {
    {"penalties", COMMON_SAMPLER_TYPE_PENALTIES},
    {"dry", COMMON_SAMPLER_TYPE_DRY},
    {"top_n_sigma", COMMON_SAMPLER_TYPE_TOP_N_SIGMA},
    {"top_k", COMMON_SAMPLER_TYPE_TOP_K},
    {"typical_p", COMMON_SAMPLER_TYPE_TYPICAL_P},
    {"top_p", COMMON_SAMPLER_TYPE_TOP_P},
    {"min_p", COMMON_SAMPLER_TYPE_MIN_P},
    {"xtc", COMMON_SAMPLER_TYPE_XTC},
    {"temperature", COMMON_SAMPLER_TYPE_TEMPERATURE},
    {"infill", COMMON_SAMPLER_TYPE_INFILL},
    {"adaptive_p", COMMON_SAMPLER_TYPE_ADAPTIVE_P},
};

void read_samplers(common_params_sampling & p, const common_json & v) {
    p.samplers.clear();
    for (const auto & name : v.get<std::vector<std::string>>()) {
        const auto it = SAMPLERS.find(name);
        if (it == SAMPLERS.end()) {
            lm_invalid("unknown sampler '" + name + "'");
        }
        p.samplers.push_back(it->second);
    }
}

void read_seed(common_params_sampling & p, const common_json & v) {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= LLAMA_DEFAULT_SEED) {
        lm_invalid("not an integer from 0 to 4294967294");
    }
    p.seed = static_cast<uint32_t>(v.get<int64_t>());
}

void read_grammar_kind(common_params_sampling & p, const common_json & v) {
    const auto kind = v.get<std::string>();
    if (kind == "user") {
        p.grammar.type = COMMON_GRAMMAR_TYPE_USER;
    } else if (kind == "output_format") {
        p.grammar.type = COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT;
    } else if (kind == "tool_calls") {
        p.grammar.type = COMMON_GRAMMAR_TYPE_TOOL_CALLS;
    } else {
        lm_invalid("'user', 'output_format' or 'tool_calls'");
    }
}

void read_grammar(common_params_sampling & p, const common_json & v) {
    p.grammar.grammar = v.get<std::string>();
}

const std::map<std::string, field_reader> & simple_fields() {
    using P = common_params_sampling;
    constexpr double ANY = 1e30;
    static const std::map<std::string, field_reader> fields = {
        {"seed", read_seed},
        {"temperature", number(&P::temp, 0, ANY)},
        {"dynatemp_range", number(&P::dynatemp_range, 0, ANY)},
        {"dynatemp_exponent", number(&P::dynatemp_exponent, 0, ANY)},
        {"top_k", integer(&P::top_k, 0, INT32_MAX)},
        {"top_p", number(&P::top_p, 0, 1)},
        {"min_p", number(&P::min_p, 0, 1)},
        {"typical_p", number(&P::typ_p, 0, 1)},
        {"top_n_sigma", number(&P::top_n_sigma, -1, ANY)},
        {"xtc_probability", number(&P::xtc_probability, 0, 1)},
        {"xtc_threshold", number(&P::xtc_threshold, 0, 1)},
        {"repeat_penalty", number(&P::penalty_repeat, 1e-6, ANY)},
        {"frequency_penalty", number(&P::penalty_freq, -ANY, ANY)},
        {"presence_penalty", number(&P::penalty_present, -ANY, ANY)},
        {"penalty_last_n", integer(&P::penalty_last_n, 0, MAX_WINDOW)},
        {"dry_multiplier", number(&P::dry_multiplier, 0, ANY)},
        {"dry_base", number(&P::dry_base, 0, ANY)},
        {"dry_allowed_length", integer(&P::dry_allowed_length, 0, INT32_MAX)},
        {"dry_penalty_last_n", integer(&P::dry_penalty_last_n, 0, MAX_WINDOW)},
        {"dry_sequence_breakers",
         [](P & p, const common_json & v) { p.dry_sequence_breakers = v.get<std::vector<std::string>>(); }},
        {"adaptive_target", number(&P::adaptive_target, -1, 1)},
        {"adaptive_decay", number(&P::adaptive_decay, 0, 0.99)},
        {"mirostat", integer(&P::mirostat, 0, 2)},
        {"mirostat_tau", number(&P::mirostat_tau, 0, ANY)},
        {"mirostat_eta", number(&P::mirostat_eta, 0, ANY)},
        {"min_keep", integer(&P::min_keep, 0, INT32_MAX)},
        {"ignore_eos", flag(&P::ignore_eos)},
        {"samplers", read_samplers},
        {"grammar", read_grammar},
        {"grammar_kind", read_grammar_kind},
        {"grammar_lazy", flag(&P::grammar_lazy)},
        {"generation_prompt", [](P & p, const common_json & v) { p.generation_prompt = v.get<std::string>(); }},
    };
    return fields;
}

// Fields that need the vocabulary, or tell of thoughts.
struct vocab_fields {
    const llama_vocab * vocab;
    lm_thought_params & thought;

    void logit_bias(common_params_sampling & p, const common_json & v) const {
        const int32_t n_vocab = llama_vocab_n_tokens(vocab);
        for (const auto & pair : v) {
            if (!pair.is_array() || pair.size() != 2 || !pair.at(size_t(0)).is_number_integer()) {
                lm_invalid("not a list of [token id, bias]");
            }
            const auto token = pair.at(size_t(0)).get<int64_t>();
            if (token < 0 || token >= n_vocab) {
                lm_invalid("token " + std::to_string(token) + " is not in the vocabulary of " +
                           std::to_string(n_vocab));
            }
            // JSON has no infinity: null bans the token.
            const common_json & bias = pair.at(size_t(1));
            const float x = bias.is_null() ? -INFINITY : static_cast<float>(bias.get<double>());
            if (std::isnan(x) || x == INFINITY) {
                lm_invalid("bias is not a number");
            }
            p.logit_bias.push_back({static_cast<llama_token>(token), x});
        }
    }

    void preserved_tokens(common_params_sampling & p, const common_json & v) const {
        for (const auto & text : v.get<std::vector<std::string>>()) {
            const auto ids = common_tokenize(vocab, text, false, true);
            if (ids.size() == 1) {
                p.preserved_tokens.insert(ids[0]);
            }
        }
    }

    void grammar_triggers(common_params_sampling & p, const common_json & v) const {
        for (const auto & entry : v) {
            const auto type = entry.at("type").get<std::string>();
            const auto value = entry.at("value").get<std::string>();
            if (type == "word") {
                // A word that is one token must be recognised as that token: its text may never appear.
                const auto ids = common_tokenize(vocab, value, false, true);
                if (ids.size() == 1) {
                    p.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN, value, ids[0]});
                } else {
                    p.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_WORD, value, LLAMA_TOKEN_NULL});
                }
            } else if (type == "pattern") {
                p.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN, value, LLAMA_TOKEN_NULL});
            } else if (type == "pattern_full") {
                p.grammar_triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL, value, LLAMA_TOKEN_NULL});
            } else {
                lm_invalid("unknown trigger type '" + type + "'");
            }
        }
    }

    void reasoning_start(common_params_sampling & p, const common_json & v) const {
        thought.start = v.get<std::string>();
        p.reasoning_budget_start = common_tokenize(vocab, thought.start, false, true);
    }

    void reasoning_ends(common_params_sampling & p, const common_json & v) const {
        for (const auto & tag : v.get<std::vector<std::string>>()) {
            if (!tag.empty()) {
                thought.ends.push_back(tag);
                p.reasoning_budget_end.push_back(common_tokenize(vocab, tag, false, true));
            }
        }
    }

    bool read(const std::string & key, common_params_sampling & p, const common_json & v) const {
        if (key == "logit_bias") {
            logit_bias(p, v);
        } else if (key == "preserved_tokens") {
            preserved_tokens(p, v);
        } else if (key == "grammar_triggers") {
            grammar_triggers(p, v);
        } else if (key == "reasoning_start") {
            reasoning_start(p, v);
        } else if (key == "reasoning_ends") {
            reasoning_ends(p, v);
        } else if (key == "reasoning_budget_tokens") {
            lm_require(v.is_number_integer(), "not an integer");
            const auto budget = v.get<int64_t>();
            lm_require(budget >= -1 && budget <= INT32_MAX, "outside its range");
            thought.budget = static_cast<int32_t>(budget);
        } else if (key == "reasoning_budget_message") {
            thought.message = v.get<std::string>();
        } else {
            return false;
        }
        return true;
    }
};

// What depends on several fields.
void finish(const llama_vocab * vocab, common_params_sampling & p) {
    if (p.seed == LLAMA_DEFAULT_SEED) {
        p.seed = std::random_device{}() % LLAMA_DEFAULT_SEED;
    }
    if (p.ignore_eos) {
        for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
            if (llama_vocab_is_eog(vocab, token)) {
                p.logit_bias.push_back({token, -INFINITY});
            }
        }
    }
    if (p.grammar.grammar.empty()) {
        p.grammar.type = COMMON_GRAMMAR_TYPE_NONE;
    } else if (p.grammar.type == COMMON_GRAMMAR_TYPE_NONE) {
        p.grammar.type = COMMON_GRAMMAR_TYPE_USER;
    }
    if (p.grammar_lazy && p.grammar_triggers.empty() && !p.grammar.empty()) {
        lm_invalid("grammar_lazy: needs grammar_triggers");
    }
    p.no_perf = true;
}

} // namespace

lm_sampling lm_parse_sampling(const llama_vocab * vocab, const std::string & json) {
    const common_json object = common_json::parse(json);
    lm_require(object.is_object(), "json: not an object");
    lm_sampling params;
    const vocab_fields with_vocab{vocab, params.thought};
    for (const auto & [key, value] : object.items()) {
        try {
            const auto it = simple_fields().find(key);
            if (it != simple_fields().end()) {
                it->second(params.common, value);
            } else if (!with_vocab.read(key, params.common, value)) {
                lm_invalid("unknown field");
            }
        } catch (const lm_error & e) {
            throw lm_error(e.status, key + ": " + e.what());
        } catch (const common_json_error & e) {
            lm_invalid(key + ": wrong type (" + e.what() + ")");
        }
    }
    finish(vocab, params.common);
    return params;
}
