// Models written again with other tensor types: which types that gives, and the writing itself.
#include "gguf_file.h"
#include "guard.h"

#include "llama-cpp.h"
#include "llama-ext.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

// What llama-quantize calls a mixture, and llama.cpp a file type: those that need no importance matrix.
const std::map<std::string, llama_ftype> MIXTURES = {
    {"F32", LLAMA_FTYPE_ALL_F32},          {"F16", LLAMA_FTYPE_MOSTLY_F16},
    {"BF16", LLAMA_FTYPE_MOSTLY_BF16},     {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
    {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},     {"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M},
    {"Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S}, {"Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
    {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M},
    {"Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S}, {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
    {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL},
    {"IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS}, {"MXFP4_MOE", LLAMA_FTYPE_MOSTLY_MXFP4_MOE},
    {"Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L}, {"Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M},
    {"Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S}, {"IQ3_M", LLAMA_FTYPE_MOSTLY_IQ3_M},
    {"IQ3_S", LLAMA_FTYPE_MOSTLY_IQ3_S},   {"Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K},
};

constexpr uint64_t MAX_FILES = 1 << 10;
constexpr size_t MAX_BUFFER_BYTES = 256u << 20;

llama_ftype mixture(const char * name) {
    lm_require(name, "type: NULL");
    const auto found = MIXTURES.find(name);
    if (found == MIXTURES.end()) {
        lm_invalid("type: '" + std::string(name) + "' is none of those that lm_quantize_types lists");
    }
    return found->second;
}

std::string upper(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
    return text;
}

// The tensors of all files of a model, without their data, in the order in which llama.cpp goes through them: by
// layer, then by name. Some mixtures count as they go.
class tensor_list {
  public:
    explicit tensor_list(const char * path) {
        gguf_ptr header = gguf_header(path, &contexts_.emplace_back());
        const std::string kind = gguf_kind(header.get());
        if (kind != "model") {
            throw lm_error(LM_UNSUPPORTED, "this file is a " + kind + ", not a model with weights");
        }
        const uint64_t n_files = gguf_count(header.get(), "split.count");
        if (n_files > 1) {
            add_files(path, n_files);
        }
        for (const ggml_ptr & ctx : contexts_) {
            for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
                tensors.push_back(t);
            }
        }
        std::sort(tensors.begin(), tensors.end(), [](const ggml_tensor * a, const ggml_tensor * b) {
            const int layer_a = layer(*a);
            const int layer_b = layer(*b);
            return layer_a != layer_b ? layer_a < layer_b : std::string(a->name) < b->name;
        });
    }

    std::vector<ggml_tensor *> tensors;

  private:
    static int layer(const ggml_tensor & tensor) {
        int number = -1;
        return std::sscanf(tensor.name, "blk.%d.", &number) == 1 ? number : -1;
    }

    void add_files(const std::string & path, uint64_t n_files) {
        lm_require(n_files <= MAX_FILES, "path: the model has too many files");
        const int32_t count = static_cast<int32_t>(n_files);
        std::vector<char> prefix(path.size() + 1);
        std::vector<char> name(path.size() + 64);
        if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, count) == 0) {
            throw lm_error(LM_LOAD_FAILED, "not named as the first file of a model in several files");
        }
        for (int32_t i = 1; i < count; i++) {
            llama_split_path(name.data(), name.size(), prefix.data(), i, count);
            gguf_header(name.data(), &contexts_.emplace_back());
        }
    }

    std::vector<ggml_ptr> contexts_;
};

// What the mixtures look at: the hyperparameters, without any weights.
llama_model_ptr skeleton(const char * path) {
    lm_error_capture errors;
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = llama_model_default_params();
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    llama_model_ptr model(llama_model_load_from_file(path, params));
    if (!model) {
        const std::string why = errors.text();
        throw lm_error(LM_LOAD_FAILED, why.empty() ? "llama.cpp does not take this model" : why);
    }
    return model;
}

struct state_deleter {
    void operator()(quantize_state_impl * state) const { llama_quant_free(state); }
};

std::vector<ggml_type> types_of(const llama_model & model, const tensor_list & list, llama_ftype type) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = type;
    const std::unique_ptr<quantize_state_impl, state_deleter> state(llama_quant_init(&model, &params));
    std::vector<ggml_type> result;
    std::vector<ggml_tensor *> changeable;
    for (ggml_tensor * tensor : list.tensors) {
        if (llama_quant_tensor_allows_quantization(state.get(), tensor)) {
            changeable.push_back(tensor);
        }
    }
    std::vector<ggml_type> found(changeable.size());
    llama_quant_compute_types(state.get(), type, changeable.data(), found.data(), changeable.size());
    size_t next = 0;
    for (ggml_tensor * tensor : list.tensors) {
        const bool changes = next < changeable.size() && changeable[next] == tensor;
        result.push_back(changes ? found[next++] : tensor->type);
    }
    return result;
}

void set_text(llama_model_kv_override & entry, const std::string & key, const std::string & value) {
    entry = {};
    entry.tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    if (key.empty() || key.size() >= sizeof(entry.key) || value.size() >= sizeof(entry.val_str)) {
        lm_invalid("metadata: '" + key.substr(0, 64) + "' and its value must have fewer than 128 bytes each");
    }
    std::copy(key.begin(), key.end(), entry.key);
    std::copy(value.begin(), value.end(), entry.val_str);
}

// Ends with an entry without a key.
std::vector<llama_model_kv_override> overrides(const char * json) {
    const common_json metadata = common_json::parse(lm_checked_json(json, "metadata"));
    lm_require(metadata.is_object(), "metadata: must be an object");
    std::vector<llama_model_kv_override> entries;
    for (const auto & [key, value] : metadata.items()) {
        if (!value.is_string()) {
            lm_invalid("metadata: '" + key + "' must be a string");
        }
        set_text(entries.emplace_back(), key, value.get<std::string>());
    }
    entries.emplace_back();
    entries.back() = {};
    return entries;
}

} // namespace

lm_status lm_quantize_types(char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        common_json names = common_json::array();
        for (const auto & entry : MIXTURES) {
            names.push_back(entry.first);
        }
        *out = lm_string_copy(names.dump_safe());
    });
}

lm_status lm_quantize_plan(const char * path, char ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(path, "path: NULL");
        lm_require(out, "out: NULL");
        const tensor_list list(path);
        const llama_model_ptr model = skeleton(path);
        common_json result = common_json::object();
        for (const auto & [name, type] : MIXTURES) {
            const std::vector<ggml_type> types = types_of(*model, list, type);
            common_json tensors = common_json::object();
            for (size_t i = 0; i < types.size(); i++) {
                tensors[list.tensors[i]->name] = upper(ggml_type_name(types[i]));
            }
            result[name] = tensors;
        }
        *out = lm_string_copy(result.dump_safe());
    });
}

lm_status lm_quantize(const char * path, const char * output, const char * type, int32_t n_threads,
                      const char * metadata, const int32_t * abort) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(path, "path: NULL");
        lm_require(output, "output: NULL");
        lm_require(n_threads >= 1 && n_threads <= 512, "n_threads: must be from 1 to 512");
        const std::vector<llama_model_kv_override> entries = overrides(metadata);
        llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = mixture(type);
        params.nthread = n_threads;
        params.allow_requantize = true;
        params.kv_overrides = entries.data();
        params.max_buf_size = MAX_BUFFER_BYTES;
        const tensor_list list(path); // refuses what is no model
        lm_error_capture errors;
        const lm_log_interrupt interrupt(abort);
        const bool done = llama_model_quantize(path, output, &params) == 0;
        if (!done && interrupt.happened()) {
            throw lm_error(LM_ABORTED, "it was cancelled");
        }
        if (!done) {
            const std::string why = errors.text();
            throw lm_error(LM_INTERNAL, why.empty() ? "llama.cpp could not write the model" : why);
        }
    });
}
