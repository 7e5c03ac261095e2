// What all drafters have in common that follow a target with a context of their own.
#pragma once

#include "guard.h"
#include "localllm.h"

#include <memory>
#include <string>
#include <vector>

struct lm_follower {
    virtual ~lm_follower() = default;

    // The arguments are checked: slots are below n_slots, tokens in the vocabulary.
    virtual void follow(const llama_batch & batch) = 0;
    virtual void accept(int32_t slot, int32_t n_accepted) = 0;
    virtual void propose(lm_draft_request * requests, int32_t n) = 0;
    virtual int32_t n_max() const = 0;
    // See lm_follower_carry and lm_follower_lag: most kinds carry nothing.
    virtual std::vector<uint8_t> carry(int32_t, llama_pos * position) const {
        *position = -1;
        return {};
    }
    virtual void set_carry(int32_t, llama_pos, const uint8_t *, size_t size) {
        lm_require(size == 0, "data: this kind of draft carries nothing");
    }
    virtual int32_t lag() const { return 0; }

    int32_t n_slots = 0;
    int32_t n_vocab = 0;
    lm_follower_times times = {};
};

// Adds the microseconds of its life to a counter.
class lm_stopwatch {
  public:
    explicit lm_stopwatch(uint64_t & counter);
    ~lm_stopwatch();
    lm_stopwatch(const lm_stopwatch &) = delete;
    lm_stopwatch & operator=(const lm_stopwatch &) = delete;

  private:
    uint64_t & sum;
    int64_t begin;
};

// What lm_follower_create is asked for.
struct lm_follower_options {
    std::string kind;
    std::string head;       // of "draft-lilicorr": a file
    std::string candidates; // of "draft-lilicorr": "auto", "graph" or "host"
    int32_t n_max = 3;      // as in llama.cpp
    int32_t n_min = 0;
    float p_min = 0.0f;
};

// llama.cpp's own kinds.
std::unique_ptr<lm_follower> lm_new_common_follower(llama_context * target, llama_context * draft,
                                                    const lm_follower_options & options, int32_t n_slots);
std::unique_ptr<lm_follower> lm_new_lilicorr_follower(llama_context * target, llama_context * draft,
                                                      const lm_follower_options & options, int32_t n_slots);
