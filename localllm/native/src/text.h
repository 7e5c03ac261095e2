// The text of one answer, built token by token.
#pragma once

#include "localllm.h"

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

struct lm_text {
    const llama_vocab * vocab = nullptr;
    std::vector<std::string> stops;
    std::unordered_set<llama_token> stop_tokens;
    std::unordered_set<llama_token> visible;
    bool special = false;

    std::string ready; // may be shown; the caller empties it

    lm_finish push(llama_token token);
    void flush();

  private:
    std::string raw;  // bytes that do not make a whole character yet
    std::string held; // whole characters that could be the beginning of a stop string

    void append_piece(llama_token token);
    size_t find_stop() const;
    size_t undecided() const;
};

lm_text & lm_text_require(lm_text * text);
