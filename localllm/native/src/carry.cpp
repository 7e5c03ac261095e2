#include "carry.h"

#include "llama-ext.h"

#include <algorithm>
#include <cstring>

lm_carry::lm_carry(llama_context * target_context, llama_context * draft_context, common_speculative_type type,
                   int32_t n_slots)
    : target(target_context), draft(draft_context), lags(type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3),
      slots(static_cast<size_t>(n_slots)), one(target_context) {
    const llama_model * model = llama_get_model(target);
    const size_t n_embd = static_cast<size_t>(llama_model_n_embd(model));
    const source output = {-1, static_cast<size_t>(llama_model_n_embd_out(model))};
    if (type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP && llama_get_ctx_other(draft) != target) {
        sources = {output};
    } else if (type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3) {
        const llama_model * drafts = llama_get_model(draft);
        const int32_t * ids = llama_model_target_layer_ids(drafts);
        for (uint32_t i = 0; i < llama_model_target_layer_ids_n(drafts); i++) {
            sources.push_back(ids[i] < llama_model_n_layer(model) ? source{ids[i], n_embd} : output);
        }
    }
    for (const source & from : sources) {
        width += from.width;
    }
}

float * lm_carry::features(const source & from) const {
    return from.layer < 0 ? llama_get_embeddings_nextn(target)
                          : llama_get_embeddings_layer_inp(target, static_cast<uint32_t>(from.layer));
}

void lm_carry::note(const common_batch & batch) {
    if (width == 0) {
        return; // and then no drafter wants to know what stands where
    }
    for (size_t begin = 0, end; begin < batch.tokens.size(); begin = end) {
        const auto & first = batch.tokens[begin];
        for (end = begin + 1; end < batch.tokens.size() && batch.tokens[end].seq_id == first.seq_id;) {
            end++;
        }
        // Rows with an output are the newest token and a draft behind it; of a prompt only the last token matters.
        size_t from = begin;
        while (from + 1 < end && !batch.tokens[from].output) {
            from++;
        }
        known & slot = slots[static_cast<size_t>(first.seq_id)];
        slot.first = batch.tokens[from].pos[0];
        slot.at = static_cast<int32_t>(end - from) - 1;
        slot.n_before = static_cast<int32_t>(from - begin);
        slot.stale = batch.has_embd(); // drafters that carry something leave rows of pictures out
        slot.rows.resize((end - from) * width);
        size_t offset = 0;
        for (const source & part : sources) {
            const float * rows = features(part);
            for (size_t row = from; row < end; row++) {
                std::copy_n(rows + row * part.width, part.width, slot.rows.data() + (row - from) * width + offset);
            }
            offset += part.width;
        }
    }
}

void lm_carry::accept(int32_t at, int32_t n_accepted, bool told) {
    if (width == 0) {
        return;
    }
    known & slot = slots[static_cast<size_t>(at)];
    const int32_t last = static_cast<int32_t>(slot.rows.size() / width) - 1;
    slot.at = std::min(n_accepted, last);
    slot.stale = !told;
}

std::vector<uint8_t> lm_carry::get(int32_t at, llama_pos * position) const {
    const known & slot = slots[static_cast<size_t>(at)];
    const bool is_known = width > 0 && slot.at >= 0;
    *position = is_known ? slot.first + slot.at : -1;
    std::vector<uint8_t> data(is_known ? width * sizeof(float) : 0);
    if (is_known) {
        std::memcpy(data.data(), slot.rows.data() + static_cast<size_t>(slot.at) * width, data.size());
    }
    return data;
}

void lm_carry::set(int32_t at, llama_pos position, const uint8_t * data, size_t size) {
    known fresh;
    fresh.stale = true;
    if (size > 0) {
        lm_require(size == width * sizeof(float), "data: not what this kind of draft carries");
        lm_require(position >= 0, "position: negative");
        fresh.first = position;
        fresh.at = 0;
        fresh.rows.resize(width);
        std::memcpy(fresh.rows.data(), data, size);
    }
    slots[static_cast<size_t>(at)] = std::move(fresh);
}

// Writes one row of features where the target would have put those of its batch's first token.
void lm_carry::put(const float * row, std::vector<float> * replaced) const {
    for (const source & part : sources) {
        float * there = features(part);
        if (replaced) {
            replaced->insert(replaced->end(), there, there + part.width);
        }
        std::copy_n(row, part.width, there);
        row += part.width;
    }
}

void lm_carry::resume(common_speculative * spec, int32_t at, llama_pos next) {
    known & slot = slots[static_cast<size_t>(at)];
    if (width == 0 || !slot.stale) {
        return;
    }
    slot.stale = false;
    const bool fits = slot.at >= 0 && slot.first + slot.at == next - 1;
    if (!fits && lags) {
        return; // without the features its state has to end where the batch begins
    }
    const std::vector<float> none(fits ? 0 : width, 0.0f);
    const float * row = fits ? slot.rows.data() + static_cast<size_t>(slot.at) * width : none.data();

    // The drafter takes features in only with a token, which it computes: that is done beside the slot's own state.
    const auto n_slots = static_cast<llama_seq_id>(slots.size());
    llama_memory_t memory = llama_get_memory(draft);
    llama_memory_seq_cp(memory, at, n_slots, -1, -1);
    llama_memory_seq_rm(memory, at, -1, -1);
    std::vector<float> replaced;
    put(row, &replaced);
    one.clear();
    one.add(0, std::max(next - 1, 0), at, false);
    const bool done = common_speculative_process(spec, one);
    put(replaced.data(), nullptr);
    llama_memory_seq_rm(memory, at, -1, -1);
    llama_memory_seq_cp(memory, n_slots, at, -1, -1);
    llama_memory_seq_rm(memory, n_slots, -1, -1);
    if (!done) {
        throw lm_error(LM_DECODE_FAILED, "the draft's context could not take features in");
    }
}
