// Token embeddings of a target as the lattice of a LiLiCorr head takes them, kept by token.
#pragma once

#include "lilicorr_head.h"

#include "llama.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

class lilicorr_tokens {
  public:
    // `table` is the target's embedding, of any type and in any memory; `head` projects its rows. Both outlive it.
    lilicorr_tokens(const ggml_tensor & table, lilicorr_head & head);

    // [n, n_hidden] rows of `ids`, which have to be rows of the table.
    void gather(const llama_token * ids, size_t n, float * out);

  private:
    // Rows of one generation. A full one becomes the old one, and what is asked for of that comes back: the tokens in
    // use stay, and no more than two generations are kept.
    struct generation {
        std::unordered_map<llama_token, size_t> places;
        std::vector<float> rows;
    };

    bool copy_known(llama_token id, float * out);
    void keep(llama_token id, const float * row);
    void read(llama_token id, float * out);
    void compute(const std::vector<llama_token> & ids);

    const ggml_tensor & table;
    lilicorr_head & head;
    size_t n_hidden;
    size_t capacity; // rows of a generation
    generation young;
    generation old;
    std::vector<float> raw;
    std::vector<float> computed;
    std::vector<uint8_t> quantized;
};
