// What a drafter has to know of the last token of a sequence before the next one comes, when the sequence goes on in
// another slot, or comes back from a copy: the target's features of that token. llama.cpp's drafters remember them by
// slot, take them from the target's buffers alone, and only EAGLE-3's gives them away, for some targets.
#pragma once

#include "guard.h"

#include "speculative.h"

#include <vector>

class lm_carry {
  public:
    lm_carry() = default;
    lm_carry(llama_context * target, llama_context * draft, common_speculative_type type, int32_t n_slots);

    // How many positions behind the target's the draft's state ends.
    int32_t lag() const { return lags ? 1 : 0; }
    // How many sequences the draft's context needs besides those of the slots.
    int32_t n_spare() const { return width > 0 ? 1 : 0; }
    // How many tokens of the slot stood in the last batch before the one that a draft follows.
    int32_t n_before(int32_t slot) const { return slots[static_cast<size_t>(slot)].n_before; }

    // Notes the features of a batch that the target has decoded and the drafter has taken in.
    void note(const common_batch & batch);
    // So many drafted tokens of the slot's rows in the last batch were right. `told`: the drafter knows that itself.
    void accept(int32_t slot, int32_t n_accepted, bool told);

    // Features of the slot's last token, and its position; none, and -1, if they are not known.
    std::vector<uint8_t> get(int32_t slot, llama_pos * position) const;
    void set(int32_t slot, llama_pos position, const uint8_t * data, size_t size);

    // Brings the drafter to what is known of slots that were changed. The slot after the last one is used meanwhile.
    void resume(common_speculative * spec, int32_t slot, llama_pos next);

  private:
    struct source {
        int32_t layer; // of whose input the features are; -1: the output that is made for the next token
        size_t width;
    };
    struct known {
        std::vector<float> rows;
        llama_pos first = -1; // position of the first row
        int32_t at = -1;      // the row of the last right token; -1: not known
        int32_t n_before = 0; // tokens of the batch before the first row
        bool stale = false;   // the drafter remembers something else
    };

    float * features(const source & from) const;
    void put(const float * row, std::vector<float> * replaced) const;

    llama_context * target = nullptr;
    llama_context * draft = nullptr;
    bool lags = false;
    size_t width = 0;
    std::vector<source> sources;
    std::vector<known> slots;
    common_batch one;
};
