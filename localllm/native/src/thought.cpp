#include "thought.h"

#include "common.h"
#include "unicode.h"

#include <algorithm>

namespace {

constexpr int32_t GRACE = 8; // tokens

} // namespace

lm_thought::lm_thought(const llama_vocab * vocab, const lm_thought_params & params, const std::string & before)
    : vocab_(vocab), params_(params) {
    if (params_.budget < 0 || params_.start.empty() || params_.ends.empty()) {
        vocab_ = nullptr;
        return;
    }
    closing_ = common_tokenize(vocab, params_.message + params_.ends.front(), false, true);
    read(before);
}

llama_token lm_thought::forced() const {
    return used_up() ? closing_[n_forced_] : LLAMA_TOKEN_NULL;
}

void lm_thought::accept(llama_token token) {
    if (!vocab_) {
        return;
    }
    if (used_up()) {
        if (++n_forced_ == closing_.size()) {
            thinking_ = false;
            tail_.clear();
        }
        return;
    }
    left_ -= thinking_;
    read(common_token_to_piece(vocab_, token, true));
}

void lm_thought::read(const std::string & text) {
    tail_ += text;
    while (leave(thinking_ ? params_.ends : std::vector<std::string>{params_.start})) {
        thinking_ = !thinking_;
        left_ = params_.budget;
        n_forced_ = 0;
    }
    size_t longest = params_.start.size();
    for (const auto & end : params_.ends) {
        longest = std::max(longest, end.size());
    }
    // Long enough for every mark, and for the beginning of a character.
    const size_t kept = std::max<size_t>(longest, 4);
    if (tail_.size() > kept) {
        tail_.erase(0, tail_.size() - kept);
    }
}

// Goes on behind the first of these marks, if there is one.
bool lm_thought::leave(const std::vector<std::string> & marks) {
    size_t first = std::string::npos;
    size_t length = 0;
    for (const auto & mark : marks) {
        const size_t at = mark.empty() ? std::string::npos : tail_.find(mark);
        if (at < first) {
            first = at;
            length = mark.size();
        }
    }
    if (first == std::string::npos) {
        return false;
    }
    tail_.erase(0, first + length);
    return true;
}

bool lm_thought::used_up() const {
    if (!vocab_ || !thinking_ || left_ > 0) {
        return false;
    }
    // Half a character or half an end gets some tokens more.
    return n_forced_ > 0 || left_ <= -GRACE || (common_utf8_is_complete(tail_) && !ends_in_half_a_mark());
}

bool lm_thought::ends_in_half_a_mark() const {
    for (const auto & end : params_.ends) {
        const std::string mark = end.substr(std::min(end.find_first_not_of(" \n"), end.size()));
        for (size_t n = std::min(mark.size(), tail_.size() + 1) - 1; n >= 2 && n < mark.size(); n--) {
            if (tail_.compare(tail_.size() - n, n, mark, 0, n) == 0) {
                return true;
            }
        }
    }
    return false;
}
