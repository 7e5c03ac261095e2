// Drafts by a DFlash draft with a LiLiCorr head: the draft gives the most likely tokens of every slot of a block, the
// head says which of them go together.
#include "follower.h"
#include "guard.h"
#include "lilicorr_candidates.h"
#include "lilicorr_file.h"
#include "lilicorr_head.h"
#include "lilicorr_tokens.h"

#include "common.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace {

// Context rows of the positions from which the target's last batch gave tokens: one of them is what the next block is
// anchored to, and which one is known when it is asked for, by its position.
struct context_rows {
    std::vector<llama_pos> positions;
    std::vector<float> rows;
};

// A token of the target's batch.
struct batch_row {
    int32_t index;
    int32_t slot;
};

std::string metadata(const llama_model * model, const char * key) {
    char text[64] = {};
    return llama_model_meta_val_str(model, key, text, sizeof(text)) >= 0 ? text : "";
}

// A head, a draft and a target that go together; every message says what does not.
void require_fit(const llama_model & target, const llama_model & draft, const lilicorr_file & file) {
    const lilicorr_shape & shape = file.shape();
    const auto require = [](bool condition, const std::string & message) {
        if (!condition) {
            lm_invalid(message);
        }
    };
    const std::string other = "head: " + file.path() + " is that of another draft: ";
    const std::string block = metadata(&draft, "dflash.block_size");
    require(metadata(&draft, "general.architecture") == "dflash", "draft: its architecture is not dflash");
    require(block.empty() || std::atoi(block.c_str()) == shape.n_slots + 1,
            other + "its blocks have " + std::to_string(shape.n_slots + 1) + " tokens, the draft's " + block);
    require(shape.n_embd == llama_model_n_embd(&draft), other + "it takes rows of " + std::to_string(shape.n_embd) +
                                                            " values, the draft has " +
                                                            std::to_string(llama_model_n_embd(&draft)));
    require(file.n_draft_blocks() == static_cast<uint64_t>(llama_model_n_layer(&draft)),
            other + "that has " + std::to_string(file.n_draft_blocks()) + " layers, this one " +
                std::to_string(llama_model_n_layer(&draft)));
    require(shape.rms_eps == draft.hparams.f_norm_rms_eps, other + "their layer_norm_rms_epsilon differ");
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(&target));
    require(n_vocab == llama_vocab_n_tokens(llama_model_get_vocab(&draft)),
            "draft: its vocabulary is not the target's");
    require(shape.n_candidates <= n_vocab, "head: more candidates than the vocabulary has tokens");
    const llama_token mask = llama_vocab_mask(llama_model_get_vocab(&draft));
    require(mask >= 0 && mask < n_vocab, "draft: it names no mask token (tokenizer.ggml.mask_token_id)");
    require(shape.n_embd == llama_model_n_embd(&target) && target.tok_embd && target.tok_embd->ne[0] == shape.n_embd &&
                target.tok_embd->ne[1] >= n_vocab,
            "target: its hidden rows or token embeddings are not as wide as the draft's");
    const int32_t * layers = llama_model_target_layer_ids(&draft);
    const uint32_t n_layers = llama_model_target_layer_ids_n(&draft);
    require(n_layers > 0 && std::all_of(layers, layers + n_layers,
                                        [&](int32_t id) { return id >= 0 && id <= llama_model_n_layer(&target); }),
            "draft: it reads layers (dflash.target_layers) that the target does not have");
}

// Blocks that one pass of the draft can take.
int32_t require_room(const llama_context & draft, int32_t n_block, int32_t n_slots) {
    const llama_cparams & params = draft.get_cparams();
    const uint32_t room = std::min({params.n_batch, params.n_ubatch, params.n_outputs_max});
    lm_require(params.pooling_type == LLAMA_POOLING_TYPE_NONE, "draft: its context pools embeddings");
    if (room < static_cast<uint32_t>(n_block)) {
        lm_invalid("draft: a block is " + std::to_string(n_block) + " tokens, its context computes " +
                   std::to_string(room) + " at a time (n_batch, n_ubatch, n_outputs_max)");
    }
    return std::min(n_slots, static_cast<int32_t>(room) / n_block);
}

struct lilicorr_follower : lm_follower {
    lilicorr_follower(llama_context * target, llama_context * draft, const lm_follower_options & options,
                      lilicorr_file & file, int32_t n_sequences);

    void follow(const llama_batch & batch) override;
    void accept(int32_t, int32_t) override {} // the next block's position says it
    void propose(lm_draft_request * requests, int32_t n) override;
    int32_t n_max() const override { return n_draft_max; }

  private:
    void inject(const llama_batch & source, const std::vector<batch_row> & rows, bool keeps);
    void inject_some(const llama_batch & source, const batch_row * rows, size_t n, bool keeps);
    const float * anchor_of(const lm_draft_request & request) const;
    void propose_some(const std::vector<lm_draft_request *> & requests);
    bool draft_blocks(const std::vector<lm_draft_request *> & requests);
    void find_candidates(int32_t n);
    void choose(const std::vector<lm_draft_request *> & requests);

    llama_context * target;
    llama_context * draft;
    lilicorr_head head;
    lilicorr_tokens tokens;
    std::unique_ptr<lilicorr_graph_candidates> in_graph; // NULL: found on the host
    std::vector<int32_t> layers;                         // of the target, whose inputs the draft reads
    llama_token mask;
    int32_t n_vocabulary;
    int32_t n_draft_max;
    int32_t n_draft_min;
    float p_min;
    common_batch batch;
    std::vector<context_rows> anchors; // by slot
    std::vector<float> features;
    std::vector<llama_token> ids;
    std::vector<float> logprobs;
    std::vector<float> rows;
    std::vector<lilicorr_scores> scores;
};

std::unique_ptr<lilicorr_graph_candidates> candidates_in_graph(llama_context * draft, const std::string & asked,
                                                               const lilicorr_shape & shape, int32_t n_slots) {
    lm_require(asked.empty() || asked == "auto" || asked == "graph" || asked == "host",
               "candidates: not 'auto', 'graph' or 'host'");
    // On the CPU the logits are where they are needed, and one core after the other would look through a row there.
    ggml_backend_dev_t device = llama_get_model(draft)->dev_output();
    const bool elsewhere = device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
    if (asked == "host" || (asked != "graph" && !elsewhere)) {
        return nullptr;
    }
    try {
        return std::make_unique<lilicorr_graph_candidates>(draft, n_slots, shape.n_slots + 1, shape.n_candidates);
    } catch (const lm_error & error) {
        if (asked == "graph" || error.status != LM_UNSUPPORTED) {
            throw;
        }
        return nullptr;
    }
}

lilicorr_follower::lilicorr_follower(llama_context * of_target, llama_context * of_draft,
                                     const lm_follower_options & options, lilicorr_file & file, int32_t n_sequences)
    : target(of_target), draft(of_draft),
      head(file, llama_get_model(of_draft)->dev_output(), llama_n_threads_batch(of_draft),
           require_room(*of_draft, file.shape().n_slots + 1, n_sequences)),
      tokens(*llama_get_model(of_target)->tok_embd, head),
      in_graph(candidates_in_graph(of_draft, options.candidates, head.shape(), n_sequences)),
      mask(llama_vocab_mask(llama_model_get_vocab(llama_get_model(of_draft)))),
      n_vocabulary(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(of_target)))),
      n_draft_max(std::min(options.n_max, head.shape().n_slots)),
      n_draft_min(std::min(options.n_min, head.shape().n_slots)), p_min(options.p_min), batch(of_draft),
      anchors(static_cast<size_t>(n_sequences)) {
    const llama_model * model = llama_get_model(draft);
    const int32_t * first = llama_model_target_layer_ids(model);
    layers.assign(first, first + llama_model_target_layer_ids_n(model));
    for (const int32_t layer : layers) {
        llama_set_embeddings_layer_inp(target, static_cast<uint32_t>(layer), true);
    }
    llama_set_causal_attn(draft, metadata(model, "dflash.attention.causal") == "true");
}

// ---- what the target has computed -----------------------------------------------------------------------------------

void lilicorr_follower::follow(const llama_batch & source) {
    std::vector<std::vector<batch_row>> by_slot(anchors.size());
    for (int32_t i = 0; i < source.n_tokens; i++) {
        by_slot[static_cast<size_t>(source.seq_id[i][0])].push_back({i, source.seq_id[i][0]});
    }
    const auto gives_token = [&](const batch_row & row) {
        return source.logits ? source.logits[row.index] != 0 : row.index == source.n_tokens - 1;
    };
    std::vector<batch_row> passed;
    std::vector<batch_row> kept;
    for (size_t slot = 0; slot < by_slot.size(); slot++) {
        const auto & all = by_slot[slot];
        if (!all.empty()) {
            anchors[slot] = {};
        }
        const auto first = std::find_if(all.begin(), all.end(), gives_token);
        passed.insert(passed.end(), all.begin(), first);
        kept.insert(kept.end(), first, all.end());
    }
    inject(source, passed, false);
    inject(source, kept, true);
}

// In as many passes as the draft's context needs. Where rows are kept all of them have to be outputs, and outputs of
// all sequences together are not more than those of a pass of blocks, which buffers are made for anyway.
void lilicorr_follower::inject(const llama_batch & source, const std::vector<batch_row> & all, bool keeps) {
    const llama_cparams & params = draft->get_cparams();
    const auto n_block = static_cast<size_t>(head.shape().n_slots) + 1;
    const size_t room =
        keeps ? n_block * static_cast<size_t>(head.max_blocks()) : std::min(params.n_batch, params.n_ubatch);
    for (size_t begin = 0; begin < all.size();) {
        size_t end = begin;
        size_t n_same = 0; // of the last sequence
        while (end < all.size() && end - begin < room) {
            n_same = end > begin && all[end].slot == all[end - 1].slot ? n_same + 1 : 1;
            if (keeps && n_same > n_block) {
                break;
            }
            end++;
        }
        inject_some(source, all.data() + begin, end - begin, keeps);
        begin = end;
    }
}

void lilicorr_follower::inject_some(const llama_batch & source, const batch_row * some, size_t n, bool keeps) {
    const auto n_embd = static_cast<size_t>(head.shape().n_embd);
    const size_t width = layers.size() * n_embd;
    features.resize(n * width);
    for (size_t k = 0; k < layers.size(); k++) {
        const float * layer = llama_get_embeddings_layer_inp(target, static_cast<uint32_t>(layers[k]));
        for (size_t i = 0; i < n; i++) {
            std::copy_n(layer + static_cast<size_t>(some[i].index) * n_embd, n_embd,
                        features.data() + i * width + k * n_embd);
        }
    }
    batch.clear();
    for (size_t i = 0; i < n; i++) {
        const llama_pos position = source.pos[some[i].index];
        const llama_pos positions[] = {position, position, position, 0}; // all but the first are read with M-RoPE only
        batch.add_embd({features.data() + i * width, 1, width}, positions, some[i].slot, keeps);
    }
    llama_set_embeddings(draft, keeps);
    if (llama_process(draft, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
        throw lm_error(LM_DECODE_FAILED, "the draft's context could not take a batch in");
    }
    for (size_t i = 0; keeps && i < n; i++) {
        context_rows & known = anchors[static_cast<size_t>(some[i].slot)];
        const float * row = llama_get_embeddings_ith(draft, static_cast<int32_t>(i));
        known.positions.push_back(source.pos[some[i].index]);
        known.rows.insert(known.rows.end(), row, row + n_embd);
    }
}

// The row of the last token that the target has computed; NULL if that was not in the slot's last batch.
const float * lilicorr_follower::anchor_of(const lm_draft_request & request) const {
    const context_rows & known = anchors[static_cast<size_t>(request.slot)];
    const auto at = std::find(known.positions.begin(), known.positions.end(), request.n_past - 1);
    if (at == known.positions.end()) {
        return nullptr;
    }
    return known.rows.data() + (at - known.positions.begin()) * static_cast<std::ptrdiff_t>(head.shape().n_embd);
}

// ---- drafts ---------------------------------------------------------------------------------------------------------

void lilicorr_follower::propose(lm_draft_request * requests, int32_t n) {
    std::vector<lm_draft_request *> ready;
    for (int32_t i = 0; i < n; i++) {
        requests[i].n_draft = 0;
        if (anchor_of(requests[i])) {
            ready.push_back(&requests[i]);
        }
    }
    const auto step = static_cast<size_t>(head.max_blocks());
    for (size_t i = 0; i < ready.size(); i += step) {
        const size_t end = std::min(ready.size(), i + step);
        propose_some(
            {ready.begin() + static_cast<std::ptrdiff_t>(i), ready.begin() + static_cast<std::ptrdiff_t>(end)});
    }
}

void lilicorr_follower::propose_some(const std::vector<lm_draft_request *> & requests) {
    const bool drafted = draft_blocks(requests);
    for (const lm_draft_request * request : requests) {
        // The block is not known to be true: the target's batch brings it again.
        llama_memory_seq_rm(llama_get_memory(draft), request->slot, request->n_past, -1);
    }
    if (drafted) {
        {
            const lm_stopwatch watch(times.candidates_us);
            find_candidates(static_cast<int32_t>(requests.size()));
        }
        const lm_stopwatch watch(times.head_us);
        choose(requests);
    }
}

// Always whole blocks, as the head has learned to see them. False if the cache has no room for them.
bool lilicorr_follower::draft_blocks(const std::vector<lm_draft_request *> & requests) {
    const lm_stopwatch watch(times.draft_us);
    batch.clear();
    for (const lm_draft_request * request : requests) {
        // What was wrong of the last draft may still be there.
        llama_memory_seq_rm(llama_get_memory(draft), request->slot, request->n_past, -1);
        for (int32_t i = 0; i <= head.shape().n_slots; i++) {
            batch.add(i == 0 ? request->last : mask, request->n_past + i, request->slot, true);
        }
    }
    llama_set_embeddings(draft, true);
    const int32_t result = llama_process(draft, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (result != 0 && result != 1) {
        throw lm_error(LM_DECODE_FAILED, "the draft's context could not compute a block");
    }
    llama_synchronize(draft);
    return result == 0;
}

void lilicorr_follower::find_candidates(int32_t n) {
    const lilicorr_shape & shape = head.shape();
    const auto k = static_cast<size_t>(shape.n_candidates);
    ids.resize(static_cast<size_t>(n) * static_cast<size_t>(shape.n_nodes()));
    logprobs.resize(ids.size());
    size_t at = 0;
    for (int32_t block = 0; block < n; block++) {
        for (int32_t slot = 0; slot < shape.n_slots; slot++, at += k) {
            const int32_t row = block * (shape.n_slots + 1) + 1 + slot;
            if (!in_graph) {
                lilicorr_candidates(llama_get_logits_ith(draft, row), 1, n_vocabulary, shape.n_candidates, &ids[at],
                                    &logprobs[at]);
                continue;
            }
            if (llama_get_sampled_candidates_count_ith(draft, row) != k ||
                llama_get_sampled_logits_count_ith(draft, row) != k) {
                throw lm_error(LM_INTERNAL, "the draft's graph gave no candidates");
            }
            std::copy_n(llama_get_sampled_candidates_ith(draft, row), k, &ids[at]);
            std::copy_n(llama_get_sampled_logits_ith(draft, row), k, &logprobs[at]);
        }
    }
    if (std::any_of(ids.begin(), ids.end(), [this](llama_token id) { return id < 0 || id >= n_vocabulary; })) {
        throw lm_error(LM_INTERNAL, "the draft's graph gave candidates that are no tokens");
    }
}

void lilicorr_follower::choose(const std::vector<lm_draft_request *> & requests) {
    const lilicorr_shape & shape = head.shape();
    const auto n_nodes = static_cast<size_t>(shape.n_nodes());
    const auto n_hidden = static_cast<size_t>(shape.n_hidden);
    rows.resize(ids.size() * n_hidden);
    tokens.gather(ids.data(), ids.size(), rows.data());
    std::vector<lilicorr_inputs> inputs;
    for (size_t i = 0; i < requests.size(); i++) {
        const auto row = static_cast<int32_t>(i) * (shape.n_slots + 1) + 1;
        inputs.push_back({rows.data() + i * n_nodes * n_hidden, logprobs.data() + i * n_nodes,
                          llama_get_embeddings_ith(draft, row), anchor_of(*requests[i])});
    }
    scores.resize(requests.size());
    head.score(inputs.data(), static_cast<int32_t>(requests.size()), scores.data());
    std::vector<int32_t> path(static_cast<size_t>(shape.n_slots));
    for (size_t i = 0; i < requests.size(); i++) {
        lm_draft_request & request = *requests[i];
        const int32_t n = std::min(lilicorr_walk(shape, scores[i], p_min, path.data()), n_draft_max);
        request.n_draft = n < n_draft_min ? 0 : std::min(n, request.n_max);
        for (int32_t slot = 0; slot < request.n_draft; slot++) {
            const int32_t node = slot * shape.n_candidates + path[static_cast<size_t>(slot)];
            request.draft[slot] = ids[i * n_nodes + static_cast<size_t>(node)];
        }
    }
}

} // namespace

std::unique_ptr<lm_follower> lm_new_lilicorr_follower(llama_context * target, llama_context * draft,
                                                      const lm_follower_options & options, int32_t n_slots) {
    lm_require(llama_get_ctx_other(draft) == target, "draft: its context was not made with the target as ctx_other");
    lilicorr_file file(options.head);
    require_fit(*llama_get_model(target), *llama_get_model(draft), file);
    return std::make_unique<lilicorr_follower>(target, draft, options, file, n_slots);
}
