// Drafters with a model of their own, or with heads of the target, whose context follows that of the target, sequence
// by sequence.
#include "follower.h"

#include "fields.h"
#include "guard.h"

#include "ggml.h"
#include "json.h"

#include <algorithm>

namespace {

constexpr const char * KIND = "follower";
constexpr const char * LILICORR = "draft-lilicorr";
constexpr int32_t MAX_DRAFT = 1024;

lm_follower_options parse(const common_json & options) {
    lm_require(options.is_object(), "json: not an object");
    lm_follower_options parsed;
    for (const auto & [key, value] : options.items()) {
        if (key == "kind") {
            parsed.kind = value.get<std::string>();
        } else if (key == "head") {
            parsed.head = value.get<std::string>();
        } else if (key == "candidates") {
            parsed.candidates = value.get<std::string>();
        } else if (key == "n_max") {
            parsed.n_max = lm_whole(value, key, 1, MAX_DRAFT);
        } else if (key == "n_min") {
            parsed.n_min = lm_whole(value, key, 0, MAX_DRAFT);
        } else if (key == "p_min") {
            lm_require(value.is_number(), "p_min: not a number");
            parsed.p_min = value.get<float>();
            lm_require(parsed.p_min >= 0.0f && parsed.p_min <= 1.0f, "p_min: not between 0 and 1");
        } else {
            lm_invalid(key + ": unknown field");
        }
    }
    lm_require(!parsed.kind.empty(), "kind: missing");
    const bool has_head = parsed.kind == LILICORR;
    lm_require(has_head != parsed.head.empty(), "head: 'draft-lilicorr' needs one, the other kinds have none");
    lm_require(has_head || parsed.candidates.empty(), "candidates: only 'draft-lilicorr' has a choice of them");
    return parsed;
}

lm_follower & require_follower(const lm_follower * handle) {
    lm_handle_require(handle, KIND);
    return *const_cast<lm_follower *>(handle);
}

} // namespace

lm_stopwatch::lm_stopwatch(uint64_t & counter) : sum(counter), begin(ggml_time_us()) {}

lm_stopwatch::~lm_stopwatch() {
    sum += static_cast<uint64_t>(ggml_time_us() - begin);
}

lm_status lm_follower_create(llama_context * target, llama_context * draft, const char * json, int32_t n_slots,
                             lm_follower ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(target && draft, "target, draft: NULL");
        lm_require(out, "out: NULL");
        lm_require(n_slots >= 1 && n_slots <= static_cast<int32_t>(llama_n_seq_max(target)) &&
                       n_slots <= static_cast<int32_t>(llama_n_seq_max(draft)),
                   "n_slots: more sequences than the contexts have, or none");
        const lm_follower_options options = parse(common_json::parse(lm_checked_json(json, "json")));
        const auto create = options.kind == LILICORR ? lm_new_lilicorr_follower : lm_new_common_follower;
        auto follower = create(target, draft, options, n_slots);
        follower->n_slots = n_slots;
        follower->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(target)));
        lm_handle_add(follower.get(), KIND);
        *out = follower.release();
    });
}

lm_status lm_follower_free(lm_follower * follower) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(follower, KIND)) {
            lm_invalid("follower: not a live handle");
        }
        delete follower;
    });
}

lm_status lm_follower_n_max(const lm_follower * handle, int32_t * out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_follower & follower = require_follower(handle);
        lm_require(out, "out: NULL");
        *out = follower.n_max();
    });
}

lm_status lm_follower_get_times(const lm_follower * handle, lm_follower_times * out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_follower & follower = require_follower(handle);
        lm_require(out, "out: NULL");
        *out = follower.times;
    });
}

lm_status lm_follower_follow(lm_follower * handle, const llama_batch * batch) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_follower & follower = require_follower(handle);
        lm_require(batch && batch->pos && batch->seq_id, "batch: NULL, or without positions");
        lm_require((batch->token != nullptr) != (batch->embd != nullptr), "batch: needs either tokens or embeddings");
        for (int32_t i = 0; i < batch->n_tokens; i++) {
            lm_require_slot(batch->seq_id[i][0], static_cast<size_t>(follower.n_slots));
        }
        const lm_stopwatch watch(follower.times.follow_us);
        follower.follow(*batch);
        follower.times.n_followed += static_cast<uint64_t>(batch->n_tokens);
    });
}

lm_status lm_follower_accept(lm_follower * handle, int32_t slot, int32_t n_accepted) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_follower & follower = require_follower(handle);
        lm_require_slot(slot, static_cast<size_t>(follower.n_slots));
        lm_require(n_accepted >= 0 && n_accepted <= MAX_DRAFT, "n_accepted: out of range");
        follower.accept(slot, n_accepted);
    });
}

lm_status lm_follower_carry(const lm_follower * handle, int32_t slot, llama_pos * position, uint8_t * data,
                            size_t * size) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_follower & follower = require_follower(handle);
        lm_require_slot(slot, static_cast<size_t>(follower.n_slots));
        lm_require(position && size, "position, size: NULL");
        const std::vector<uint8_t> bytes = follower.carry(slot, position);
        if (data) {
            lm_require(*size >= bytes.size(), "size: too small");
            std::copy(bytes.begin(), bytes.end(), data);
        }
        *size = bytes.size();
    });
}

lm_status lm_follower_set_carry(lm_follower * handle, int32_t slot, llama_pos position, const uint8_t * data,
                                size_t size) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_follower & follower = require_follower(handle);
        lm_require_slot(slot, static_cast<size_t>(follower.n_slots));
        lm_require(data || size == 0, "data: NULL");
        follower.set_carry(slot, position, data, size);
    });
}

lm_status lm_follower_lag(const lm_follower * handle, int32_t * out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_follower & follower = require_follower(handle);
        lm_require(out, "out: NULL");
        *out = follower.lag();
    });
}

lm_status lm_follower_propose(lm_follower * handle, lm_draft_request * requests, int32_t n) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_follower & follower = require_follower(handle);
        lm_require(n >= 0 && (requests || n == 0), "requests: NULL, or a negative number");
        for (int32_t i = 0; i < n; i++) {
            const lm_draft_request & request = requests[i];
            lm_require_slot(request.slot, static_cast<size_t>(follower.n_slots));
            lm_require(request.n_past >= 0, "n_past: negative");
            lm_require(request.last >= 0 && request.last < follower.n_vocab, "last: no token");
            lm_require(request.n_max >= 1 && request.n_max <= MAX_DRAFT && request.draft, "draft: NULL, or too long");
        }
        follower.propose(requests, n);
        follower.times.n_proposals += static_cast<uint64_t>(n);
    });
}
