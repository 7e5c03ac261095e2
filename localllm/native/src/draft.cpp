// Drafters that need no second model: llama.cpp's common_speculative over the history of each sequence.
#include "fields.h"
#include "guard.h"

#include "json.h"
#include "speculative.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace {

constexpr const char * KIND = "drafter";
constexpr int32_t MAX_DRAFT = 1024;

// One kind of one sequence, or a kind that all sequences share.
struct drafter {
    common_speculative_ptr spec;
    llama_seq_id seq_id;
};

struct history {
    llama_tokens tokens; // all but the newest
    llama_token newest = 0;
    bool begun = false; // any id may be the newest: places of media are negative
    std::vector<drafter> chain;
    int32_t last = -1; // which of the chain made the last draft
    llama_tokens draft;

    void append(const llama_token * ids, int32_t n) {
        for (int32_t i = 0; i < n; i++) {
            if (begun) {
                tokens.push_back(newest);
            }
            newest = ids[i];
            begun = true;
        }
    }
};

bool is_shared(common_speculative_type type) {
    // One table for all that was ever seen; the others describe one text.
    return type == COMMON_SPECULATIVE_TYPE_NGRAM_MOD;
}

bool is_ngram(common_speculative_type type) {
    return type == COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE || type == COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K ||
           type == COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V || type == COMMON_SPECULATIVE_TYPE_NGRAM_MOD ||
           type == COMMON_SPECULATIVE_TYPE_NGRAM_CACHE;
}

common_speculative_ptr make(const common_params_speculative & shape, common_speculative_type type, uint32_t n_seq) {
    common_params_speculative params = shape;
    params.types = {type};
    common_speculative_ptr spec(common_speculative_init(params, n_seq));
    lm_require(spec != nullptr, "chain: llama.cpp made no drafter of this kind");
    return spec;
}

} // namespace

struct lm_drafter {
    common_params_speculative shape;
    std::vector<common_speculative_type> chain;
    std::vector<common_speculative_ptr> shared; // by place in the chain, null for kinds of a single sequence
    std::vector<history> sequences;
    int32_t n_vocab = 0;

    void begin(int32_t slot, const llama_token * ids, int32_t n) {
        history fresh;
        fresh.append(ids, n);
        for (size_t at = 0; at < chain.size(); at++) {
            if (shared[at]) {
                common_speculative_begin(shared[at].get(), slot, fresh.tokens);
            } else {
                fresh.chain.push_back({make(shape, chain[at], 1), 0});
                common_speculative_begin(fresh.chain.back().spec.get(), 0, fresh.tokens);
            }
        }
        sequences[static_cast<size_t>(slot)] = std::move(fresh);
    }

    void accept(history & seq, int32_t slot, int32_t n_accepted) {
        if (seq.last >= 0 && n_accepted >= 0) {
            const auto [spec, seq_id] = place(seq, slot, static_cast<size_t>(seq.last));
            // The maps never draft more than was right the last time. If all was, nothing speaks against a longer one.
            const bool all = static_cast<size_t>(n_accepted) >= seq.draft.size();
            common_speculative_accept(spec, seq_id, all ? shape.ngram_map_k.size_m : static_cast<uint16_t>(n_accepted));
        }
        seq.last = -1;
    }

    void propose(history & seq, int32_t slot, int32_t n_max) {
        seq.draft.clear();
        for (size_t at = 0; at < chain.size() && seq.draft.empty(); at++) {
            const auto [spec, seq_id] = place(seq, slot, at);
            auto & params = common_speculative_get_draft_params(spec, seq_id);
            params.drafting = true;
            params.n_max = n_max;
            params.pos0 = static_cast<llama_pos>(seq.tokens.size());
            params.id_last = seq.newest;
            params.prompt = &seq.tokens;
            params.result = &seq.draft;
            common_speculative_draft(spec);
            keep_sound(seq.draft, n_max);
            seq.last = seq.draft.empty() ? -1 : static_cast<int32_t>(at);
        }
    }

  private:
    std::pair<common_speculative *, llama_seq_id> place(history & seq, int32_t slot, size_t at) {
        if (shared[at]) {
            return {shared[at].get(), slot};
        }
        size_t own = 0;
        for (size_t before = 0; before < at; before++) {
            own += shared[before] ? 0 : 1;
        }
        return {seq.chain[own].spec.get(), seq.chain[own].seq_id};
    }

    // Media positions (negative ids) are no tokens, so a draft ends before the first of them.
    void keep_sound(llama_tokens & draft, int32_t n_max) const {
        const auto bad = std::find_if(draft.begin(), draft.end(),
                                      [this](llama_token token) { return token < 0 || token >= n_vocab; });
        draft.erase(bad, draft.end());
        if (draft.size() > static_cast<size_t>(n_max)) {
            draft.resize(static_cast<size_t>(n_max));
        }
    }
};

namespace {

lm_drafter & require_drafter(const lm_drafter * handle) {
    lm_handle_require(handle, KIND);
    return *const_cast<lm_drafter *>(handle);
}

history & require_slot(lm_drafter & drafter, int32_t slot) {
    lm_require_slot(slot, drafter.sequences.size());
    return drafter.sequences[static_cast<size_t>(slot)];
}

void parse(lm_drafter & drafter, const common_json & options) {
    lm_require(options.is_object(), "json: not an object");
    auto & shape = drafter.shape;
    for (const auto & [key, value] : options.items()) {
        if (key == "chain") {
            for (const auto & name : value.get<std::vector<std::string>>()) {
                const auto type = common_speculative_type_from_name(name);
                if (!is_ngram(type)) {
                    lm_invalid("chain: '" + name + "' is no n-gram drafter");
                }
                drafter.chain.push_back(type);
            }
        } else if (key == "n_max") {
            const int32_t n_max = lm_whole(value, key, 1, MAX_DRAFT);
            shape.ngram_simple.size_m = shape.ngram_map_k.size_m = shape.ngram_map_k4v.size_m =
                static_cast<uint16_t>(n_max);
            shape.ngram_mod.n_max = n_max;
        } else if (key == "n_min") {
            shape.ngram_mod.n_min = lm_whole(value, key, 0, MAX_DRAFT);
        } else if (key == "n_match") {
            const int32_t n = lm_whole(value, key, 1, MAX_DRAFT);
            shape.ngram_simple.size_n = shape.ngram_map_k.size_n = shape.ngram_map_k4v.size_n =
                static_cast<uint16_t>(n);
            shape.ngram_mod.n_match = n;
        } else if (key == "min_hits") {
            shape.ngram_map_k.min_hits = shape.ngram_map_k4v.min_hits =
                static_cast<uint16_t>(lm_whole(value, key, 1, std::numeric_limits<int16_t>::max()));
        } else {
            lm_invalid(key + ": unknown field");
        }
    }
    lm_require(!drafter.chain.empty(), "chain: empty");
}

} // namespace

lm_status lm_drafter_create(const llama_model * model, const char * json, int32_t n_slots, lm_drafter ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        lm_require(n_slots >= 1 && n_slots <= static_cast<int32_t>(llama_max_parallel_sequences()),
                   "n_slots: more sequences than llama.cpp supports, or none");
        auto drafter = std::make_unique<lm_drafter>();
        drafter->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        parse(*drafter, common_json::parse(lm_checked_json(json, "json")));
        for (const auto type : drafter->chain) {
            drafter->shared.push_back(is_shared(type) ? make(drafter->shape, type, static_cast<uint32_t>(n_slots))
                                                      : nullptr);
        }
        drafter->sequences.resize(static_cast<size_t>(n_slots));
        lm_handle_add(drafter.get(), KIND);
        *out = drafter.release();
    });
}

lm_status lm_drafter_free(lm_drafter * drafter) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(drafter, KIND)) {
            lm_invalid("drafter: not a live handle");
        }
        delete drafter;
    });
}

lm_status lm_drafter_begin(lm_drafter * handle, int32_t slot, const llama_token * tokens, int32_t n) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_drafter & drafter = require_drafter(handle);
        require_slot(drafter, slot);
        lm_require(tokens && n >= 1, "tokens: NULL, or none");
        drafter.begin(slot, tokens, n);
    });
}

lm_status lm_drafter_propose(lm_drafter * handle, lm_proposal * proposals, int32_t n) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_drafter & drafter = require_drafter(handle);
        lm_require(n >= 0 && (proposals || n == 0), "proposals: NULL, or a negative number");
        for (int32_t i = 0; i < n; i++) {
            const lm_proposal & p = proposals[i];
            const history & seq = require_slot(drafter, p.slot);
            lm_require(seq.begun, "slot: lm_drafter_begin was not called for it");
            lm_require(p.n_news >= 0 && (p.news || p.n_news == 0), "news: NULL, or a negative number");
            lm_require(p.n_accepted >= -1 && p.n_accepted <= MAX_DRAFT, "n_accepted: out of range");
            lm_require(p.n_max >= 0 && p.n_max <= MAX_DRAFT && (p.draft || p.n_max == 0), "draft: NULL, or too long");
        }
        for (int32_t i = 0; i < n; i++) {
            lm_proposal & p = proposals[i];
            history & seq = require_slot(drafter, p.slot);
            p.n_draft = 0;
            drafter.accept(seq, p.slot, p.n_accepted);
            seq.append(p.news, p.n_news);
            if (p.n_max > 0) {
                drafter.propose(seq, p.slot, p.n_max);
                std::copy(seq.draft.begin(), seq.draft.end(), p.draft);
                p.n_draft = static_cast<int32_t>(seq.draft.size());
            }
        }
    });
}
