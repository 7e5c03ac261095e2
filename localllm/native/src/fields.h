// Fields of options that are given as JSON.
#pragma once

#include "guard.h"

#include <string>

// An integer within bounds; the error names the field.
inline int32_t lm_whole(const common_json & value, const std::string & name, int32_t low, int32_t high) {
    lm_require(value.is_number_integer(), (name + ": not an integer").c_str());
    const auto number = value.get<int64_t>();
    if (number < low || number > high) {
        lm_invalid(name + ": not between " + std::to_string(low) + " and " + std::to_string(high));
    }
    return static_cast<int32_t>(number);
}

// Slots of the sequences that a drafter knows.
inline void lm_require_slot(int32_t slot, size_t n_slots) {
    if (slot < 0 || static_cast<size_t>(slot) >= n_slots) {
        lm_invalid("slot: " + std::to_string(slot) + " is not one of " + std::to_string(n_slots));
    }
}
