// Model files, models, contexts, tokens.
#include "draft_file.h"
#include "gguf_file.h"
#include "guard.h"

#include "json.h"
#include "llama-model.h"

#include <cstring>
#include <vector>

namespace {

// A negative or undefined epsilon fails an assertion on a thread of the computation, where it cannot be caught.
void require_sound_epsilons(const gguf_context * ctx) {
    constexpr const char * SUFFIX = "_epsilon";
    for (int64_t i = 0; i < gguf_get_n_kv(ctx); i++) {
        const std::string key = gguf_get_key(ctx, i);
        const bool epsilon = key.size() > std::strlen(SUFFIX) &&
                             key.compare(key.size() - std::strlen(SUFFIX), std::string::npos, SUFFIX) == 0;
        if (epsilon && gguf_get_kv_type(ctx, i) == GGUF_TYPE_FLOAT32 && !(gguf_get_val_f32(ctx, i) >= 0.0f)) {
            throw lm_error(LM_LOAD_FAILED, "the metadata key '" + key + "' is not a number of at least 0");
        }
    }
}

void require_standalone(const gguf_context * header) {
    const std::string kind = gguf_kind(header);
    if (kind == "projector" || kind == "adapter" || kind == "control vector" || kind == "draft") {
        throw lm_error(LM_UNSUPPORTED, "this file is a " + kind + ", not a model that can stand alone");
    }
}

} // namespace

void lm_require_model_file(const gguf_context * header, bool any_kind) {
    require_sound_epsilons(header);
    if (gguf_string(header, "general.architecture") == "lilicorr-head") {
        throw lm_error(LM_UNSUPPORTED,
                       "this file is the LiLiCorr head of a DFlash draft: it goes beside that, as its 'head'");
    }
    if (!any_kind) {
        require_standalone(header);
    }
}

namespace {

const llama_vocab * require_vocab(const llama_model * model) {
    lm_require(model, "model: NULL");
    const llama_vocab * vocab = llama_model_get_vocab(model);
    if (!vocab || llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
        lm_invalid("model: it has no vocabulary");
    }
    return vocab;
}

void append_piece(const llama_vocab * vocab, llama_token token, bool special, std::string & out) {
    char buffer[128];
    const int32_t n = llama_token_to_piece(vocab, token, buffer, sizeof(buffer), 0, special);
    if (n >= 0) {
        out.append(buffer, static_cast<size_t>(n));
        return;
    }
    const size_t at = out.size();
    out.resize(at + static_cast<size_t>(-n));
    llama_token_to_piece(vocab, token, &out[at], -n, 0, special);
}

void check_batch(llama_context * ctx, const llama_batch & batch) {
    lm_require(batch.n_tokens > 0, "batch: empty");
    lm_require((batch.token != nullptr) != (batch.embd != nullptr), "batch: needs either tokens or embeddings");
    if (static_cast<uint32_t>(batch.n_tokens) > llama_n_batch(ctx)) {
        lm_invalid("batch: " + std::to_string(batch.n_tokens) + " tokens, the context takes " +
                   std::to_string(llama_n_batch(ctx)));
    }
    lm_require(llama_get_causal_attn(ctx) || static_cast<uint32_t>(batch.n_tokens) <= llama_n_ubatch(ctx),
               "batch: without causal attention it must fit one micro-batch");
    lm_require(llama_get_memory(ctx), "context: it has no memory; use llama_encode");
    if (batch.token) {
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
        for (int32_t i = 0; i < batch.n_tokens; i++) {
            if (batch.token[i] < 0 || batch.token[i] >= n_vocab) {
                lm_invalid("batch: token " + std::to_string(batch.token[i]) + " is not in the vocabulary");
            }
        }
    }
    lm_require_positions(*llama_get_model(ctx), batch);
}

} // namespace

lm_status lm_file_info(const char * path, char ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(path, "path: NULL");
        lm_require(out, "out: NULL");
        const gguf_ptr header = gguf_header(path);
        common_json info = common_json::object();
        info["architecture"] = gguf_string(header.get(), "general.architecture");
        info["type"] = gguf_string(header.get(), "general.type");
        info["kind"] = gguf_kind(header.get());
        info["draft_kind"] = gguf_draft_kind(header.get());
        info["tensors"] = gguf_get_n_tensors(header.get());
        info["metadata_keys"] = gguf_get_n_kv(header.get());
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_model_load(const char * path, const llama_model_params * params, bool any_kind, llama_model ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(path, "path: NULL");
        lm_require(params, "params: NULL");
        lm_require(out, "out: NULL");
        const gguf_ptr header = gguf_header(path);
        lm_require_model_file(header.get(), any_kind);
        const std::shared_lock<std::shared_mutex> gate(lm_loading_mutex());
        lm_error_capture errors;
        llama_model * model = lm_load_model_file(path, *params, header.get());
        if (!model) {
            const std::string why = errors.text();
            if (why.find("unknown model architecture") != std::string::npos) {
                throw lm_error(LM_UNSUPPORTED, "this build does not know the architecture '" +
                                                   gguf_string(header.get(), "general.architecture") +
                                                   "'; update localllm");
            }
            throw lm_error(LM_LOAD_FAILED, why.empty() ? "llama.cpp could not load the model" : why);
        }
        *out = model;
    });
}

lm_status lm_context_create(llama_model * model, const llama_context_params * params, llama_context ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        lm_require(params, "params: NULL");
        lm_require(out, "out: NULL");
        lm_require(params->n_seq_max >= 1 && params->n_seq_max <= llama_max_parallel_sequences(),
                   "n_seq_max: more sequences than llama.cpp supports, or none");
        const std::shared_lock<std::shared_mutex> gate(lm_loading_mutex());
        lm_error_capture errors;
        const std::lock_guard<std::mutex> lock(lm_adapters_mutex());
        llama_context * ctx = llama_init_from_model(model, *params);
        if (!ctx) {
            const std::string why = errors.text();
            throw lm_error(LM_LOAD_FAILED, why.empty() ? "llama.cpp could not make a context" : why);
        }
        *out = ctx;
    });
}

lm_status lm_model_metadata(const llama_model * model, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        common_json metadata = common_json::object();
        std::vector<char> key(256);
        std::vector<char> value(4096);
        for (int32_t i = 0; i < llama_model_meta_count(model); i++) {
            const int32_t n_key = llama_model_meta_key_by_index(model, i, key.data(), key.size());
            if (n_key < 0) {
                continue;
            }
            if (static_cast<size_t>(n_key) >= key.size()) {
                key.resize(static_cast<size_t>(n_key) + 1);
                llama_model_meta_key_by_index(model, i, key.data(), key.size());
            }
            const int32_t n_value = llama_model_meta_val_str_by_index(model, i, value.data(), value.size());
            if (n_value < 0) {
                continue;
            }
            if (static_cast<size_t>(n_value) >= value.size()) {
                value.resize(static_cast<size_t>(n_value) + 1);
                llama_model_meta_val_str_by_index(model, i, value.data(), value.size());
            }
            metadata[std::string(key.data())] = std::string(value.data());
        }
        *out = lm_string_copy(metadata.dump_safe());
    });
}

lm_status lm_tokenize(const llama_model * model, const char * text, size_t size, bool add_special, bool parse_special,
                      llama_token * tokens, int32_t * n) {
    return lm_guard(LM_INTERNAL, [&] {
        const llama_vocab * vocab = require_vocab(model);
        lm_check_text(text, size, "text");
        lm_require(n && *n >= 0, "n: NULL or negative");
        lm_require(tokens || *n == 0, "tokens: NULL");
        const int32_t got =
            llama_tokenize(vocab, text ? text : "", static_cast<int32_t>(size), tokens, *n, add_special, parse_special);
        if (got == INT32_MIN) {
            lm_invalid("text: more tokens than fit 31 bits");
        }
        if (got < 0) {
            *n = -got;
            lm_invalid("tokens: too small");
        }
        *n = got;
    });
}

lm_status lm_detokenize(const llama_model * model, const llama_token * tokens, int32_t n, bool special, char ** out,
                        size_t * size) {
    return lm_guard(LM_INTERNAL, [&] {
        const llama_vocab * vocab = require_vocab(model);
        lm_require(n >= 0 && (tokens || n == 0), "tokens: NULL, or a negative number");
        lm_require(out && size, "out: NULL");
        const int32_t n_vocab = llama_vocab_n_tokens(vocab);
        std::string text;
        for (int32_t i = 0; i < n; i++) {
            if (tokens[i] < 0 || tokens[i] >= n_vocab) {
                lm_invalid("tokens: " + std::to_string(tokens[i]) + " is not in the vocabulary");
            }
            append_piece(vocab, tokens[i], special, text);
        }
        *out = lm_string_copy(text);
        *size = text.size();
    });
}

int64_t lm_n_positions(const llama_model & model) {
    return model.pos_embd ? model.pos_embd->ne[1] : INT32_MAX;
}

void lm_require_positions(const llama_model & model, const llama_batch & batch) {
    if (!model.pos_embd) {
        return;
    }
    const int64_t n = lm_n_positions(model);
    lm_require(batch.pos, "batch: needs positions, as this model has a table of them");
    for (int32_t i = 0; i < batch.n_tokens; i++) {
        if (batch.pos[i] < 0 || batch.pos[i] >= n) {
            lm_invalid("batch: position " + std::to_string(batch.pos[i]) + " of a model with " + std::to_string(n));
        }
    }
}

void lm_require_decoded(int32_t result, const std::string & why) {
    switch (result) {
    case 0:
        return;
    case 1:
        throw lm_error(LM_NO_SLOT, "the KV cache has no room for this batch");
    case 2:
        throw lm_error(LM_ABORTED, "aborted");
    case -1:
        lm_invalid("batch: " + why);
    default:
        throw lm_error(LM_DECODE_FAILED,
                       "llama.cpp could not compute the batch (" + std::to_string(result) + "): " + why);
    }
}

lm_status lm_decode(llama_context * ctx, const llama_batch * batch) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(batch, "batch: NULL");
        check_batch(ctx, *batch);
        lm_error_capture errors;
        lm_require_decoded(llama_decode(ctx, *batch), errors.text());
    });
}

namespace {

void check_sequence(llama_context * ctx, llama_seq_id seq_id) {
    lm_require(ctx, "ctx: NULL");
    lm_require(llama_get_memory(ctx), "context: it has no memory");
    lm_require(seq_id >= 0 && static_cast<uint32_t>(seq_id) < llama_n_seq_max(ctx),
               "seq_id: the context has no such sequence");
}

} // namespace

lm_status lm_state_save(llama_context * ctx, llama_seq_id seq_id, uint8_t * data, size_t * size) {
    return lm_guard(LM_INTERNAL, [&] {
        check_sequence(ctx, seq_id);
        lm_require(size && (data || *size == 0), "size: NULL");
        const size_t needed = llama_state_seq_get_size(ctx, seq_id);
        if (!data) {
            *size = needed;
            return;
        }
        lm_require(*size >= needed, "data: too small");
        *size = llama_state_seq_get_data(ctx, data, *size, seq_id);
        lm_require(*size > 0, "seq_id: its state could not be saved");
    });
}

lm_status lm_state_load(llama_context * ctx, llama_seq_id seq_id, const uint8_t * data, size_t size) {
    return lm_guard(LM_INTERNAL, [&] {
        check_sequence(ctx, seq_id);
        lm_require(data && size > 0, "data: NULL or empty");
        lm_error_capture errors;
        try {
            if (llama_state_seq_set_data(ctx, data, size, seq_id) == 0) {
                throw lm_error(LM_NO_SLOT, "the state could not be restored: " + errors.text());
            }
        } catch (...) {
            llama_memory_seq_rm(llama_get_memory(ctx), seq_id, -1, -1);
            throw;
        }
    });
}

bool lm_abort_if_set(void * data) {
    return data && __atomic_load_n(static_cast<int32_t *>(data), __ATOMIC_RELAXED) != 0;
}
