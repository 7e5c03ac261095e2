#include "gguf_file.h"

#include "guard.h"

#include <algorithm>
#include <cstring>

namespace {

bool has_trunk(const gguf_context * ctx) {
    for (int64_t i = 0; i < gguf_get_n_tensors(ctx); i++) {
        if (std::strncmp(gguf_get_tensor_name(ctx, i), "blk.0.", 6) == 0) {
            return true;
        }
    }
    return false;
}

} // namespace

std::string gguf_string(const gguf_context * ctx, const char * key) {
    const int64_t id = gguf_find_key(ctx, key);
    return id >= 0 && gguf_get_kv_type(ctx, id) == GGUF_TYPE_STRING ? gguf_get_val_str(ctx, id) : "";
}

uint64_t gguf_count(const gguf_context * ctx, const std::string & key) {
    const int64_t id = gguf_find_key(ctx, key.c_str());
    if (id < 0) {
        return 0;
    }
    switch (gguf_get_kv_type(ctx, id)) {
    case GGUF_TYPE_UINT8:
        return gguf_get_val_u8(ctx, id);
    case GGUF_TYPE_UINT16:
        return gguf_get_val_u16(ctx, id);
    case GGUF_TYPE_UINT32:
        return gguf_get_val_u32(ctx, id);
    case GGUF_TYPE_UINT64:
        return gguf_get_val_u64(ctx, id);
    case GGUF_TYPE_INT32:
        return static_cast<uint64_t>(std::max(0, gguf_get_val_i32(ctx, id)));
    default:
        return 0;
    }
}

std::string gguf_kind(const gguf_context * ctx) {
    const std::string architecture = gguf_string(ctx, "general.architecture");
    const std::string type = gguf_string(ctx, "general.type");
    if (architecture == "clip" || type == "mmproj") {
        return "projector";
    }
    if (type == "adapter") {
        return "adapter";
    }
    if (architecture == "controlvector") {
        return "control vector";
    }
    // EAGLE-3 and DFlash drafts read hidden states of their target; a LiLiCorr head goes with such a draft.
    if (architecture == "eagle3" || architecture == "dflash" || architecture == "lilicorr-head") {
        return "draft";
    }
    if (architecture.empty() || (!type.empty() && type != "model")) {
        return "other";
    }
    const bool split = gguf_count(ctx, "split.count") > 1;
    if (gguf_get_n_tensors(ctx) == 0) {
        return split ? "model" : "vocabulary";
    }
    // A file with prediction heads but without the layers under them crashes llama.cpp when a context is made.
    if (!split && gguf_count(ctx, architecture + ".nextn_predict_layers") > 0 && !has_trunk(ctx)) {
        return "draft";
    }
    return "model";
}

std::string gguf_draft_kind(const gguf_context * ctx) {
    const std::string architecture = gguf_string(ctx, "general.architecture");
    const std::string kind = gguf_kind(ctx);
    if (architecture == "eagle3") {
        return "draft-eagle3";
    }
    if (architecture == "dflash" && gguf_find_key(ctx, "lilicorr.hidden_size") >= 0) {
        return "draft-lilicorr";
    }
    if (architecture == "dflash") {
        return gguf_find_tensor(ctx, "markov_w1.weight") >= 0 ? "draft-dspark" : "draft-dflash";
    }
    return kind == "draft" ? "draft-mtp" : kind == "model" ? "draft-simple" : "";
}

gguf_ptr gguf_header(const char * path, ggml_ptr * tensors) {
    lm_error_capture errors;
    ggml_context * ctx = nullptr;
    gguf_init_params params = {/*no_alloc=*/true, /*ctx=*/tensors ? &ctx : nullptr};
    gguf_ptr header(gguf_init_from_file(path, params));
    if (!header) {
        const std::string why = errors.text();
        throw lm_error(LM_LOAD_FAILED, why.empty() ? "not a readable GGUF file" : why);
    }
    if (tensors) {
        tensors->reset(ctx);
    }
    return header;
}
