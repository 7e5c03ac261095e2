// LoRA adapters and control vectors. llama.cpp trusts much of such a file, and some of what it does not check fails in
// the middle of a computation: everything is held against the model first.
#include "gguf_file.h"
#include "guard.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace {

[[noreturn]] void refuse(const std::string & message) {
    throw lm_error(LM_LOAD_FAILED, message);
}

[[noreturn]] void unsupported(const std::string & message) {
    throw lm_error(LM_UNSUPPORTED, message);
}

bool ends_with(const std::string & text, const std::string & suffix) {
    return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), std::string::npos, suffix) == 0;
}

std::string architecture_of(const llama_model & model) {
    char buffer[128];
    return llama_model_meta_val_str(&model, "general.architecture", buffer, sizeof(buffer)) >= 0 ? buffer : "";
}

std::string shape_of(const ggml_tensor & tensor) {
    std::string text;
    for (int i = 0; i < ggml_n_dims(&tensor); i++) {
        text += (i ? " x " : "") + std::to_string(tensor.ne[i]);
    }
    return text;
}

// ---- values of tensors

struct file_closer {
    void operator()(FILE * file) const { std::fclose(file); }
};

using file_ptr = std::unique_ptr<FILE, file_closer>;

file_ptr open_file(const char * path) {
    file_ptr file(ggml_fopen(path, "rb"));
    if (!file) {
        refuse("cannot be opened");
    }
    return file;
}

bool seek(FILE * file, uint64_t offset) {
#if defined(_WIN32)
    return _fseeki64(file, static_cast<int64_t>(offset), SEEK_SET) == 0;
#else
    return fseeko(file, static_cast<off_t>(offset), SEEK_SET) == 0;
#endif
}

uint64_t size_of(FILE * file) {
#if defined(_WIN32)
    return _fseeki64(file, 0, SEEK_END) == 0 ? static_cast<uint64_t>(_ftelli64(file)) : 0;
#else
    return fseeko(file, 0, SEEK_END) == 0 ? static_cast<uint64_t>(ftello(file)) : 0;
#endif
}

// The bytes of a tensor, which must lie within the file and be finite.
void read_tensor(FILE * file, const gguf_context * header, int64_t id, const ggml_tensor & tensor,
                 std::vector<uint8_t> & data) {
    const uint64_t offset = gguf_get_data_offset(header) + gguf_get_tensor_offset(header, id);
    const uint64_t size = ggml_nbytes(&tensor);
    const uint64_t available = size_of(file);
    if (offset > available || size > available - offset) {
        refuse(std::string("truncated: the tensor '") + tensor.name + "' ends beyond the file; download it again");
    }
    data.resize(size);
    if (!seek(file, offset) || std::fread(data.data(), 1, size, file) != size) {
        refuse(std::string("the tensor '") + tensor.name + "' cannot be read");
    }
    if (!ggml_validate_row_data(tensor.type, data.data(), size)) {
        refuse(std::string("damaged: the tensor '") + tensor.name + "' holds values that are no finite numbers");
    }
}

// ---- LoRA

struct lora_pair {
    const ggml_tensor * a = nullptr;
    const ggml_tensor * b = nullptr;
};

using lora_pairs = std::map<std::string, lora_pair>;

void check_lora_metadata(const gguf_context * header, const llama_model & model) {
    const std::string kind = gguf_kind(header);
    const std::string adapter = gguf_string(header, "adapter.type");
    if (kind != "adapter") {
        unsupported("this file is no LoRA adapter; it is a file of the kind '" + kind + "'");
    }
    if (adapter != "lora") {
        unsupported("an adapter of the type '" + adapter + "', not 'lora'");
    }
    const std::string architecture = gguf_string(header, "general.architecture");
    if (architecture != architecture_of(model)) {
        unsupported("made for the architecture '" + architecture + "', the model is '" + architecture_of(model) + "'");
    }
    const int64_t alpha = gguf_find_key(header, "adapter.lora.alpha");
    if (alpha >= 0 &&
        (gguf_get_kv_type(header, alpha) != GGUF_TYPE_FLOAT32 || !std::isfinite(gguf_get_val_f32(header, alpha)))) {
        refuse("damaged: adapter.lora.alpha is no finite number");
    }
    if (gguf_find_key(header, "adapter.alora.invocation_tokens") >= 0) {
        unsupported("an activated LoRA (aLoRA), which works only from its invocation tokens on; localllm applies "
                    "adapters to whole requests, use a plain LoRA");
    }
}

lora_pairs collect_pairs(ggml_context * tensors) {
    lora_pairs pairs;
    for (ggml_tensor * cur = ggml_get_first_tensor(tensors); cur; cur = ggml_get_next_tensor(tensors, cur)) {
        const std::string name = cur->name;
        if (ends_with(name, ".lora_a")) {
            pairs[name.substr(0, name.size() - 7)].a = cur;
        } else if (ends_with(name, ".lora_b")) {
            pairs[name.substr(0, name.size() - 7)].b = cur;
        } else if (ends_with(name, "_norm.weight")) {
            unsupported("it replaces '" + name + "'; llama.cpp applies only low-rank pairs and would leave that out");
        } else {
            refuse("the tensor '" + name + "' is no part of a LoRA adapter");
        }
    }
    if (pairs.empty()) {
        refuse("it holds no LoRA tensors");
    }
    return pairs;
}

void check_type(const ggml_tensor & tensor) {
    const bool plain = tensor.type == GGML_TYPE_F32 || tensor.type == GGML_TYPE_F16 || tensor.type == GGML_TYPE_BF16;
    if (!plain && !(ggml_is_quantized(tensor.type) && ggml_get_type_traits(tensor.type)->to_float)) {
        refuse(std::string("the tensor '") + tensor.name + "' is of the type " + ggml_type_name(tensor.type) +
               ", with which nothing can be multiplied");
    }
}

// Weights with which llama.cpp fails an assertion once the adapter is used.
void check_target(const std::string & name, const ggml_tensor & weight, const llama_model & model) {
    if (ggml_n_dims(&weight) < 2) {
        unsupported("it changes '" + name + "', which is no matrix");
    }
    if (ends_with(name, "token_embd.weight") && (name != "token_embd.weight" || !model.get_tensor("output.weight"))) {
        unsupported("it changes '" + name + "', " +
                    (name == "token_embd.weight" ? "which this model uses as its output, too; llama.cpp cannot do that"
                                                 : "which llama.cpp cannot adapt"));
    }
    if (weight.type == GGML_TYPE_NVFP4 && name.find(".ffn_") != std::string::npos) {
        unsupported("it changes '" + name + "', whose type NVFP4 llama.cpp cannot adapt");
    }
}

void check_pair(const std::string & name, const lora_pair & pair, const llama_model & model) {
    if (!pair.a || !pair.b) {
        refuse("'" + name + "' has only one of lora_a and lora_b");
    }
    const ggml_tensor * weight = model.get_tensor(name.c_str());
    if (!weight) {
        refuse("it changes '" + name + "', which the model does not have; it was made for another model");
    }
    check_target(name, *weight, model);
    check_type(*pair.a);
    check_type(*pair.b);
    const ggml_tensor & a = *pair.a;
    const ggml_tensor & b = *pair.b;
    // The embedding is looked up and not multiplied: there A is transposed.
    const bool lookup = name == "token_embd.weight";
    const int64_t n_in = lookup ? b.ne[1] : a.ne[0];
    const int64_t n_out = lookup ? a.ne[1] : b.ne[1];
    const int64_t rank_a = lookup ? a.ne[0] : a.ne[1];
    const bool same_experts = a.ne[2] == weight->ne[2] && b.ne[2] == weight->ne[2] && a.ne[3] == 1 && b.ne[3] == 1;
    if (n_in != weight->ne[0] || n_out != weight->ne[1] || !same_experts) {
        refuse("'" + name + "' is " + shape_of(*weight) + " in the model, which A of " + shape_of(a) + " and B of " +
               shape_of(b) + " do not fit; it was made for another model");
    }
    if (rank_a != b.ne[0]) {
        refuse("the ranks of '" + name + "' differ: " + std::to_string(rank_a) + " in A, " + std::to_string(b.ne[0]) +
               " in B");
    }
}

void check_lora_header(const gguf_context * header, ggml_context * tensors, const llama_model & model) {
    check_lora_metadata(header, model);
    for (const auto & [name, pair] : collect_pairs(tensors)) {
        check_pair(name, pair, model);
    }
}

// ---- what a computation uses

struct context_deleter {
    void operator()(llama_context * ctx) const { llama_free(ctx); }
};

using context_ptr = std::unique_ptr<llama_context, context_deleter>;

// A small context to look at graphs with; the one that computes stays as it is.
context_ptr probe_context(llama_model & model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = 8;
    params.n_ubatch = 8;
    params.n_seq_max = 1;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.no_perf = true;
    lm_error_capture errors;
    context_ptr ctx(llama_init_from_model(&model, params));
    if (!ctx) {
        refuse("no context for a look at what the model uses: " + errors.text());
    }
    return ctx;
}

// The graph for so many tokens; it lives until the next call.
ggml_cgraph & probe_graph(llama_context & ctx, uint32_t n_tokens) {
    ggml_cgraph * graph = llama_graph_reserve(&ctx, n_tokens, 1, 1);
    if (!graph) {
        throw lm_error(LM_OUT_OF_MEMORY, "no memory for a look at what the model uses");
    }
    return *graph;
}

void add_sources(ggml_cgraph & graph, std::set<const ggml_tensor *> & used) {
    for (int i = 0; i < ggml_graph_n_nodes(&graph); i++) {
        const ggml_tensor * node = ggml_graph_node(&graph, i);
        used.insert(std::begin(node->src), std::end(node->src));
    }
}

// llama.cpp passes over what a model's graph does not look up adapters for. Layers that only predict ahead are not part
// of the answer.
void check_use(llama_model & model, llama_adapter_lora & adapter) {
    const context_ptr ctx = probe_context(model);
    llama_adapter_lora * one = &adapter;
    float scale = 1.0f;
    llama_set_adapters_lora(ctx.get(), &one, 1, &scale);
    std::set<const ggml_tensor *> used;
    for (const uint32_t n_tokens : {1u, 8u}) {
        add_sources(probe_graph(*ctx, n_tokens), used);
    }
    for (const auto & [name, pair] : adapter.ab_map) {
        int layer = -1;
        const bool ahead = std::sscanf(name.c_str(), "blk.%d.", &layer) == 1 && layer >= llama_model_n_layer(&model);
        if (!ahead && (!used.count(pair.a) || !used.count(pair.b))) {
            unsupported("it changes '" + name +
                        "', to which llama.cpp applies no adapters in models of the architecture '" +
                        architecture_of(model) + "'");
        }
    }
}

// ---- control vectors

// The layer of "direction.12"; 0 if the name is something else.
int32_t layer_of(const std::string & name) {
    const std::string prefix = "direction.";
    const std::string digits = name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : "";
    const bool number = !digits.empty() && digits.size() <= 6 &&
                        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    return number ? static_cast<int32_t>(std::strtol(digits.c_str(), nullptr, 10)) : 0;
}

void check_direction(const ggml_tensor & tensor, const llama_model & model) {
    const std::string name = tensor.name;
    const int32_t layer = layer_of(name);
    const int32_t n_layer = llama_model_n_layer(&model);
    if (layer < 1) {
        unsupported("this file is no control vector: it has a tensor '" + name + "'");
    }
    if (layer >= n_layer) {
        refuse("'" + name + "' is beyond the model's " + std::to_string(n_layer) +
               " layers; it was made for another model");
    }
    if (tensor.type != GGML_TYPE_F32 || ggml_n_dims(&tensor) != 1 || tensor.ne[0] != llama_model_n_embd(&model)) {
        refuse("'" + name + "' has the shape " + shape_of(tensor) + " and the type " + ggml_type_name(tensor.type) +
               ", the model needs " + std::to_string(llama_model_n_embd(&model)) + " values of the type f32");
    }
}

size_t n_control_values(const llama_model & model) {
    return static_cast<size_t>(std::max(0, llama_model_n_layer(&model) - 1)) *
           static_cast<size_t>(llama_model_n_embd(&model));
}

std::vector<float> read_control(const llama_model & model, const char * path) {
    ggml_ptr tensors;
    const gguf_ptr header = gguf_header(path, &tensors);
    const std::string architecture = gguf_string(header.get(), "general.architecture");
    const std::string hint = gguf_string(header.get(), "controlvector.model_hint");
    if (!architecture.empty() && architecture != "controlvector") {
        unsupported("this file is no control vector; its architecture is '" + architecture + "'");
    }
    if (!hint.empty() && hint != architecture_of(model)) {
        unsupported("made for the architecture '" + hint + "', the model is '" + architecture_of(model) + "'");
    }
    if (gguf_get_n_tensors(header.get()) == 0) {
        refuse("it holds no directions");
    }
    std::vector<float> values(n_control_values(model), 0.0f);
    std::vector<uint8_t> data;
    const file_ptr file = open_file(path);
    const size_t n_embd = static_cast<size_t>(llama_model_n_embd(&model));
    for (int64_t id = 0; id < gguf_get_n_tensors(header.get()); id++) {
        const ggml_tensor * tensor = ggml_get_tensor(tensors.get(), gguf_get_tensor_name(header.get(), id));
        check_direction(*tensor, model);
        read_tensor(file.get(), header.get(), id, *tensor, data);
        const size_t layer = static_cast<size_t>(layer_of(tensor->name));
        std::memcpy(values.data() + (layer - 1) * n_embd, data.data(), data.size());
    }
    return values;
}

// ---- a context

void check_controls(const llama_model & model, const lm_control * controls, int32_t n_controls) {
    for (int32_t i = 0; i < n_controls; i++) {
        lm_require(controls[i].data, "controls: data is NULL");
        lm_require(std::isfinite(controls[i].scale), "controls: a scale is no finite number");
        lm_require(controls[i].layer_first >= 1 && controls[i].layer_first <= controls[i].layer_last &&
                       controls[i].layer_last < llama_model_n_layer(&model),
                   "controls: the model has no such layers");
    }
}

std::vector<float> sum_of(const llama_model & model, const lm_control * controls, int32_t n_controls) {
    const size_t n_embd = static_cast<size_t>(llama_model_n_embd(&model));
    std::vector<float> sum(n_control_values(model), 0.0f);
    for (int32_t i = 0; i < n_controls; i++) {
        const lm_control & control = controls[i];
        const size_t end = static_cast<size_t>(control.layer_last) * n_embd;
        for (size_t at = static_cast<size_t>(control.layer_first - 1) * n_embd; at < end; at++) {
            sum[at] += control.scale * control.data[at];
        }
    }
    return sum;
}

} // namespace

lm_status lm_lora_check(const llama_model * model, const char * path) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        lm_require(path, "path: NULL");
        ggml_ptr tensors;
        const gguf_ptr header = gguf_header(path, &tensors);
        check_lora_header(header.get(), tensors.get(), *model);
        const file_ptr file = open_file(path);
        std::vector<uint8_t> data;
        for (int64_t id = 0; id < gguf_get_n_tensors(header.get()); id++) {
            const ggml_tensor * tensor = ggml_get_tensor(tensors.get(), gguf_get_tensor_name(header.get(), id));
            read_tensor(file.get(), header.get(), id, *tensor, data);
        }
    });
}

lm_status lm_lora_load(llama_model * model, const char * path, llama_adapter_lora ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        lm_require(path, "path: NULL");
        lm_require(out, "out: NULL");
        {
            ggml_ptr tensors;
            const gguf_ptr header = gguf_header(path, &tensors);
            check_lora_header(header.get(), tensors.get(), *model);
        }
        lm_error_capture errors;
        const std::lock_guard<std::mutex> lock(lm_adapters_mutex());
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, path);
        if (!adapter) {
            const std::string why = errors.text();
            refuse(why.empty() ? "llama.cpp could not load the adapter" : why);
        }
        try {
            check_use(*model, *adapter);
        } catch (...) {
            llama_adapter_lora_free(adapter);
            throw;
        }
        *out = adapter;
    });
}

lm_status lm_lora_free(llama_model * model, llama_adapter_lora * adapter) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        const std::lock_guard<std::mutex> lock(lm_adapters_mutex());
        lm_require(model->loras.count(adapter), "adapter: it is not loaded for this model");
        llama_adapter_lora_free(adapter);
    });
}

lm_status lm_control_check(llama_model * model) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        const size_t n = n_control_values(*model);
        const std::lock_guard<std::mutex> lock(lm_adapters_mutex());
        const context_ptr ctx = probe_context(*model);
        const int without = ggml_graph_n_nodes(&probe_graph(*ctx, 1));
        const std::vector<float> zeros(n, 0.0f);
        const int status = n == 0 ? 0
                                  : llama_set_adapter_cvec(ctx.get(), zeros.data(), n, llama_model_n_embd(model), 1,
                                                           llama_model_n_layer(model) - 1);
        if (status != 0) {
            throw lm_error(LM_OUT_OF_MEMORY, "no memory for a control vector");
        }
        if (ggml_graph_n_nodes(&probe_graph(*ctx, 1)) == without) {
            unsupported("llama.cpp applies no control vectors to this model, of the architecture '" +
                        architecture_of(*model) + "'");
        }
    });
}

lm_status lm_control_load(const llama_model * model, const char * path, float * data, size_t * n) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        lm_require(path, "path: NULL");
        lm_require(n && (data || *n == 0), "n: NULL");
        if (!data) {
            *n = n_control_values(*model);
            return;
        }
        lm_require(*n >= n_control_values(*model), "data: too small");
        const std::vector<float> values = read_control(*model, path);
        std::copy(values.begin(), values.end(), data);
        *n = values.size();
    });
}

lm_status lm_steer(llama_context * ctx, llama_adapter_lora ** loras, const float * scales, int32_t n_loras,
                   const lm_control * controls, int32_t n_controls) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(n_loras >= 0 && ((loras && scales) || n_loras == 0), "loras: NULL, or a negative number");
        lm_require(n_controls >= 0 && (controls || n_controls == 0), "controls: NULL, or a negative number");
        const llama_model & model = *llama_get_model(ctx);
        const std::lock_guard<std::mutex> lock(lm_adapters_mutex());
        for (int32_t i = 0; i < n_loras; i++) {
            lm_require(model.loras.count(loras[i]), "loras: one of them is not loaded for this model");
            lm_require(std::isfinite(scales[i]), "loras: a scale is no finite number");
        }
        check_controls(model, controls, n_controls);
        const std::vector<float> sum = sum_of(model, controls, n_controls);
        const int32_t status = n_controls
                                   ? llama_set_adapter_cvec(ctx, sum.data(), sum.size(), llama_model_n_embd(&model), 1,
                                                            llama_model_n_layer(&model) - 1)
                                   : llama_set_adapter_cvec(ctx, nullptr, 0, 0, 0, 0);
        if (status != 0) {
            throw lm_error(LM_OUT_OF_MEMORY, "no memory for the control vector");
        }
        std::vector<float> copy(scales, scales + n_loras);
        llama_set_adapters_lora(ctx, loras, static_cast<size_t>(n_loras), copy.data());
        // The next llama_decode would do it otherwise, without the lock.
        ctx->sched_reserve();
    });
}
