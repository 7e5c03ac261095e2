// The head of a LiLiCorr draft: scores which candidate of a slot goes with which of the next.
//
// Each slot of a draft has its K most likely tokens. A small bidirectional transformer looks at all of them together
// and gives every candidate two vectors; the score of a pair is the product of the one's first and the other's second.
#pragma once

#include "lilicorr_file.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <map>
#include <string>
#include <vector>

// What is scored of one block, row-major.
struct lilicorr_inputs {
    const float * tokens;   // [nodes, n_hidden] rows of the candidates, as lilicorr_head::project gives them
    const float * logprobs; // [slots, candidates] of the whole vocabulary's distribution, best first
    const float * hidden;   // [slots, n_embd] of the draft after its last norm
    const float * anchor;   // [n_embd] the draft's context row of the last token that the target has computed
};

struct lilicorr_scores {
    std::vector<float> start; // [candidates] of the first slot
    std::vector<float> pair;  // [slots - 1, candidates, candidates] previous, next
};

class lilicorr_head {
  public:
    // On `device`, or on the CPU if that cannot compute all of it. At most `max_blocks` blocks in one pass.
    lilicorr_head(lilicorr_file & file, ggml_backend_dev_t device, int32_t n_threads, int32_t max_blocks);

    const lilicorr_shape & shape() const { return sizes; }
    int32_t max_blocks() const { return n_blocks_max; }

    // Rows of the target's token embedding, [n, n_embd], as the lattice takes them: [n, n_hidden].
    void project(const float * rows, int32_t n, float * out);
    void score(const lilicorr_inputs * blocks, int32_t n, lilicorr_scores * out);

  private:
    // A computation for a fixed number of blocks, or rows.
    struct plan {
        ggml_context_ptr ctx;
        ggml_cgraph * graph = nullptr;
        std::map<std::string, ggml_tensor *> inputs;
        ggml_tensor * start = nullptr;
        ggml_tensor * pair = nullptr; // NULL if a draft is one token
        int32_t buffer = 0;           // in which buffer it was laid out
    };
    using builder = plan (lilicorr_head::*)(int32_t) const;

    void describe_weights(const lilicorr_file & file);
    bool choose(ggml_backend_dev_t device, int32_t n_threads);
    bool supported(const plan & one) const;
    void load(lilicorr_file & file);
    const plan & ready(std::map<int32_t, plan> & plans, int32_t n, builder build);
    void compute(const plan & one);

    ggml_tensor * weight(const std::string & name) const;
    ggml_tensor * linear(ggml_context * ctx, const std::string & name, ggml_tensor * x) const;
    ggml_tensor * normed(ggml_context * ctx, const std::string & name, ggml_tensor * x) const;
    ggml_tensor * features(ggml_context * ctx, ggml_tensor * x) const;
    ggml_tensor * attention(ggml_context * ctx, const std::string & layer, ggml_tensor * x, int64_t n) const;
    ggml_tensor * lattice(plan & one, int64_t n) const;
    ggml_tensor * factors(ggml_context * ctx, ggml_tensor * x, ggml_tensor * anchor) const;
    plan score_plan(int32_t n) const;
    plan project_plan(int32_t n) const;

    lilicorr_shape sizes;
    int32_t n_blocks_max;
    ggml_context_ptr weights;
    std::map<std::string, ggml_tensor *> by_name;
    ggml_backend_ptr backend;
    ggml_backend_buffer_ptr buffer;
    ggml_gallocr_ptr memory; // of all plans: only one is computed at a time
    int32_t n_buffers = 0;   // that it has had so far
    std::map<int32_t, plan> score_plans;
    std::map<int32_t, plan> project_plans;
    std::vector<float> scratch;
};

// The candidate of each slot that goes best with the one before it. It ends before the first whose probability among
// the candidates is below p_min. `path` gets at most n_slots indices; returns how many.
int32_t lilicorr_walk(const lilicorr_shape & shape, const lilicorr_scores & scores, float p_min, int32_t * path);
