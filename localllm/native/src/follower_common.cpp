// llama.cpp's drafters with a model: its common_speculative, whose context follows that of the target.
#include "carry.h"
#include "follower.h"
#include "guard.h"

#include "speculative.h"

#include <algorithm>
#include <vector>

namespace {

bool is_model_kind(common_speculative_type type) {
    return type == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE || type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 ||
           type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP || type == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH ||
           type == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK;
}

// llama.cpp's own check, which only says that something differs. The first tokens are the special ones, which may.
void require_same_vocabulary(const llama_model * target, const llama_model * draft) {
    constexpr int32_t N_SPECIAL = 5, MAX_DIFFERENCE = 128; // SPEC_VOCAB_* in llama.cpp's common/speculative.cpp
    const llama_vocab * one = llama_model_get_vocab(target);
    const llama_vocab * other = llama_model_get_vocab(draft);
    const int32_t n_one = llama_vocab_n_tokens(one), n_other = llama_vocab_n_tokens(other);
    for (int32_t i = N_SPECIAL; i < std::min(n_one, n_other); i++) {
        const std::string text = llama_vocab_get_text(one, i), drafted = llama_vocab_get_text(other, i);
        if (text != drafted) {
            lm_invalid("draft: another vocabulary: token " + std::to_string(i) + " is '" + text + "', the draft's '" +
                       drafted + "'");
        }
    }
    if (std::abs(n_one - n_other) > MAX_DIFFERENCE) {
        lm_invalid("draft: another vocabulary: " + std::to_string(n_one) + " tokens, the draft's has " +
                   std::to_string(n_other) + "; the first that only one has is " +
                   std::to_string(std::min(n_one, n_other)));
    }
    const bool same_ends = llama_vocab_get_add_bos(one) == llama_vocab_get_add_bos(other) &&
                           llama_vocab_get_add_eos(one) == llama_vocab_get_add_eos(other) &&
                           (!llama_vocab_get_add_bos(one) || llama_vocab_bos(one) == llama_vocab_bos(other)) &&
                           (!llama_vocab_get_add_eos(one) || llama_vocab_eos(one) == llama_vocab_eos(other));
    lm_require(same_ends && llama_vocab_type(one) == llama_vocab_type(other),
               "draft: another vocabulary: of another type, or with other tokens at the ends of a text");
}

struct common_follower : lm_follower {
    llama_context * draft = nullptr;
    common_speculative_ptr spec;
    lm_carry carried;
    llama_token n_known = 0; // tokens that the drafter has
    size_t n_row = 0;        // floats of a picture's row
    common_batch seen;
    std::vector<llama_tokens> drafts; // by slot
    std::vector<char> drafted;        // by slot: whether there ever was a draft, before which llama.cpp accepts none

    // A batch of the target as common_speculative reads it.
    void follow(const llama_batch & batch) override {
        seen.clear();
        for (int32_t i = 0; i < batch.n_tokens; i++) {
            const llama_seq_id slot = batch.seq_id[i][0];
            if (seen.tokens.empty() || seen.tokens.back().seq_id != slot) {
                carried.resume(spec.get(), slot, batch.pos[i]);
            }
            const bool output = batch.logits && batch.logits[i];
            if (batch.token) {
                seen.add(known(batch.token[i]), batch.pos[i], slot, output);
            } else {
                add_row(batch, i, output);
            }
        }
        if (!common_speculative_process(spec.get(), seen)) {
            throw lm_error(LM_DECODE_FAILED, "the draft's context could not take a batch in");
        }
        carried.note(seen);
    }

    // A row of a picture or sound, whose positions lie section by section.
    void add_row(const llama_batch & batch, int32_t i, bool output) {
        llama_pos positions[GGML_MROPE_SECTIONS] = {};
        for (int32_t section = 0; section < seen.n_pos; section++) {
            positions[section] = batch.pos[section * batch.n_tokens + i];
        }
        const float * row = batch.embd + static_cast<size_t>(i) * n_row;
        seen.add_embd({row, 1, n_row}, positions, batch.seq_id[i][0], output);
    }

    // A smaller vocabulary may lack the target's last tokens: any other in their place costs only guesses.
    llama_token known(llama_token token) const { return token < n_known ? token : 0; }

    void accept(int32_t slot, int32_t n_accepted) override {
        const bool told = drafted[static_cast<size_t>(slot)] != 0;
        if (told) {
            common_speculative_accept(spec.get(), slot, static_cast<uint16_t>(carried.n_before(slot) + n_accepted));
        }
        carried.accept(slot, n_accepted, told);
    }

    std::vector<uint8_t> carry(int32_t slot, llama_pos * position) const override {
        return carried.get(slot, position);
    }
    void set_carry(int32_t slot, llama_pos position, const uint8_t * data, size_t size) override {
        carried.set(slot, position, data, size);
    }
    int32_t lag() const override { return carried.lag(); }

    void propose(lm_draft_request * requests, int32_t n) override {
        for (int32_t i = 0; i < n; i++) {
            const lm_draft_request & request = requests[i];
            // What was wrong of the last draft may still be there.
            llama_memory_seq_rm(llama_get_memory(draft), request.slot, request.n_past, -1);
            carried.resume(spec.get(), request.slot, request.n_past);
            llama_tokens & draft_tokens = drafts[static_cast<size_t>(request.slot)];
            draft_tokens.clear();
            auto & params = common_speculative_get_draft_params(spec.get(), request.slot);
            params.drafting = true;
            params.n_max = request.n_max;
            params.pos0 = request.n_past;
            params.id_last = known(request.last);
            params.prompt = nullptr;
            params.result = &draft_tokens;
        }
        {
            const lm_stopwatch watch(times.draft_us);
            common_speculative_draft(spec.get());
        }
        for (int32_t i = 0; i < n; i++) {
            lm_draft_request & request = requests[i];
            llama_tokens & draft_tokens = drafts[static_cast<size_t>(request.slot)];
            // What was drafted is not known to be true: the target's batch brings it again.
            llama_memory_seq_rm(llama_get_memory(draft), request.slot, request.n_past, -1);
            drafted[static_cast<size_t>(request.slot)] |= draft_tokens.empty() ? 0 : 1;
            const auto bad = std::find_if(draft_tokens.begin(), draft_tokens.end(),
                                          [this](llama_token token) { return token < 0 || token >= n_vocab; });
            draft_tokens.erase(bad, draft_tokens.end());
            request.n_draft = std::min(request.n_max, static_cast<int32_t>(draft_tokens.size()));
            std::copy_n(draft_tokens.begin(), request.n_draft, request.draft);
        }
    }

    int32_t n_max() const override { return common_speculative_n_max(spec.get()); }
};

} // namespace

std::unique_ptr<lm_follower> lm_new_common_follower(llama_context * target, llama_context * draft,
                                                    const lm_follower_options & options, int32_t n_slots) {
    const auto type = common_speculative_type_from_name(options.kind);
    lm_require(is_model_kind(type), "kind: is none of those that a model drafts");
    const bool is_simple = type == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE;
    if (is_simple) {
        require_same_vocabulary(llama_get_model(target), llama_get_model(draft));
    }
    common_params_speculative params;
    params.types = {type};
    params.draft.n_max = options.n_max;
    params.draft.n_min = options.n_min;
    params.draft.p_min = options.p_min;
    // The in-graph sampling of EAGLE-3 loses most of its acceptance when several sequences draft together.
    params.draft.backend_sampling = false;
    params.draft.ctx_tgt = target;
    params.draft.ctx_dft = draft;
    auto follower = std::make_unique<common_follower>();
    follower->draft = draft;
    follower->n_known = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(is_simple ? draft : target)));
    follower->carried = lm_carry(target, draft, type, n_slots);
    lm_require(llama_n_seq_max(draft) >= static_cast<uint32_t>(n_slots + follower->carried.n_spare()),
               "draft: needs a sequence more than the slots");
    follower->spec.reset(common_speculative_init(params, static_cast<uint32_t>(n_slots)));
    lm_require(follower->spec != nullptr, "kind: llama.cpp made no drafter of it");
    follower->seen = common_batch(target);
    follower->n_row = static_cast<size_t>(llama_model_n_embd_inp(llama_get_model(target)));
    follower->drafts.resize(static_cast<size_t>(n_slots));
    follower->drafted.resize(static_cast<size_t>(n_slots));
    return follower;
}
