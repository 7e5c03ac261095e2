// The most likely tokens of each slot of a draft, with their log-probabilities: on the host, or in the draft's own
// graph.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// The k largest of each row of logits, best first and among equals the one with the lower id, with their natural-log
// probabilities among all of the row. k is at most n_vocab; `ids` and `logprobs` get n_rows times k values.
void lilicorr_candidates(const float * logits, int64_t n_rows, int32_t n_vocab, int32_t k, llama_token * ids,
                         float * logprobs);

// The same as samplers on a draft's context, one for each sequence: each output has them then as its "sampled"
// candidates and logits, and the logits of the whole vocabulary stay on the device.
class lilicorr_graph_candidates {
  public:
    // Throws LM_UNSUPPORTED if the context has no room for a block's outputs, or its device lacks an operation.
    lilicorr_graph_candidates(llama_context * draft, int32_t n_slots, int32_t n_outputs, int32_t k);
    ~lilicorr_graph_candidates();
    lilicorr_graph_candidates(const lilicorr_graph_candidates &) = delete;
    lilicorr_graph_candidates & operator=(const lilicorr_graph_candidates &) = delete;

  private:
    void detach();

    llama_context * draft;
    std::vector<llama_sampler *> chains;
};
