// A limit on the tokens of a model's thoughts.
#pragma once

#include "llama.h"

#include <string>
#include <vector>

struct lm_thought_params {
    std::string start;             // text that begins a thought
    std::vector<std::string> ends; // texts that end one; the first is written when the budget is used up
    std::string message;           // written before that
    int32_t budget = -1;           // tokens; < 0: no limit
};

// Follows the text of an answer. llama.cpp's own limit compares tokens: it misses marks whose ends melt into other
// tokens (">\n"), and with a budget of 0 it takes tokens of the prompt behind the mark for the ones that it wanted.
class lm_thought {
  public:
    lm_thought() = default;
    // `before`: the part of the prompt that belongs to the answer, in which a thought may have begun.
    lm_thought(const llama_vocab * vocab, const lm_thought_params & params, const std::string & before);

    // The token that has to come next; LLAMA_TOKEN_NULL: any.
    llama_token forced() const;
    void accept(llama_token token);

  private:
    const llama_vocab * vocab_ = nullptr;
    lm_thought_params params_;
    std::vector<llama_token> closing_; // the message and the end
    std::string tail_;                 // the last of the text, in which a mark may have begun
    bool thinking_ = false;
    int32_t left_ = 0; // tokens of the running thought's budget; < 0: so many beyond it
    size_t n_forced_ = 0;

    void read(const std::string & text);
    bool leave(const std::vector<std::string> & marks);
    bool used_up() const;
    bool ends_in_half_a_mark() const;
};
