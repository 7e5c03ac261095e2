// The head of a LiLiCorr draft as a file has it: alone (architecture "lilicorr-head"), or in one file with its draft.
#pragma once

#include "byte_file.h"
#include "gguf_file.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Sizes and constants of a head, all of them checked.
struct lilicorr_shape {
    int32_t n_embd;       // width of the draft
    int32_t n_hidden;     // width of the head
    int32_t n_slots;      // tokens of a draft: one fewer than a block has positions
    int32_t n_candidates; // tokens to choose from in each slot
    int32_t n_layers;     // of the lattice
    int32_t n_heads;
    int32_t n_mlp;
    int32_t n_factors;
    float rms_eps;
    float vector_eps;
    float scale; // of the scores

    int32_t n_nodes() const { return n_slots * n_candidates; }
    bool projects_tokens() const { return n_hidden != n_embd; }
};

// A tensor that the head computes with.
struct lilicorr_tensor {
    std::string file_name; // of the tensor that it is, or a part of which it is
    std::vector<int64_t> ne;
    ggml_type type;
    int64_t first_column = 0; // where it begins in each row of that tensor
};

class lilicorr_file {
  public:
    // Checks every key, shape and range; reads no weights. Throws LM_LOAD_FAILED or LM_UNSUPPORTED with the file and
    // what is wrong in it.
    explicit lilicorr_file(const std::string & path);

    const lilicorr_shape & shape() const { return sizes; }
    const std::string & path() const { return file.path(); }
    uint64_t n_draft_blocks() const { return n_blocks; }

    // By the names of the head's own parts: "token_proj.weight", "layers.0.attn.in_proj.bias", ...
    const std::map<std::string, lilicorr_tensor> & tensors() const { return parts; }
    // The data of one of them, in its type.
    std::vector<uint8_t> data(const lilicorr_tensor & tensor);

  private:
    [[noreturn]] void fail(const std::string & what) const;
    int32_t count(const char * key, int32_t low) const;
    float number(const char * key) const;
    void read_shape();
    void expect(const std::string & part, const std::string & name, std::vector<int64_t> ne, bool matrix);
    void expect_linear(const std::string & part, const std::string & name, int64_t n_in, int64_t n_out, bool scaled);
    void expect_factors();
    void expect_layer(int32_t layer);
    void expect_all();
    const ggml_tensor & found(const std::string & name, const std::vector<int64_t> & ne) const;

    lm_byte_file file;
    ggml_ptr infos;
    gguf_ptr header;
    lilicorr_shape sizes = {};
    uint64_t n_blocks = 0; // of the draft: the head's are behind them
    std::map<std::string, lilicorr_tensor> parts;
    std::map<std::string, bool> known; // tensors of the file
};
