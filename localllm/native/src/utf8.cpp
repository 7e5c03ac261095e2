#include "utf8.h"

size_t lm_utf8_length(char first) {
    const auto lead = static_cast<unsigned char>(first);
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 3;
    }
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// Unicode 15, table 3-7.
bool lm_utf8_follows(unsigned char lead, size_t at, unsigned char byte) {
    if (at == 1) {
        switch (lead) {
        case 0xE0:
            return byte >= 0xA0 && byte <= 0xBF;
        case 0xED:
            return byte >= 0x80 && byte <= 0x9F;
        case 0xF0:
            return byte >= 0x90 && byte <= 0xBF;
        case 0xF4:
            return byte >= 0x80 && byte <= 0x8F;
        default:
            break;
        }
    }
    return byte >= 0x80 && byte <= 0xBF;
}

// Whether `byte` belongs there.
bool lm_utf8_place::step(unsigned char byte) {
    const bool goes_on = have_ > 0 && lm_utf8_follows(lead_, have_, byte);
    const bool belongs = goes_on || (have_ == 0 && lm_utf8_length(static_cast<char>(byte)) > 0);
    if (!goes_on) {
        lead_ = byte;
        have_ = 0;
    }
    const size_t length = lm_utf8_length(static_cast<char>(lead_));
    have_ = have_ + 1 < length ? have_ + 1 : 0;
    return belongs;
}

bool lm_utf8_place::takes(const std::string & piece) const {
    lm_utf8_place place = *this;
    for (const char byte : piece) {
        if (!place.step(static_cast<unsigned char>(byte))) {
            return false;
        }
    }
    return true;
}

void lm_utf8_place::add(const std::string & piece) {
    for (const char byte : piece) {
        step(static_cast<unsigned char>(byte));
    }
}
