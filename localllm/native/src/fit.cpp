// What models and contexts take, and llama.cpp's choice of what goes where.
#include "gguf_file.h"
#include "guard.h"

#include "fit.h"
#include "json.h"
#include "llama-context.h"
#include "llama-cpp.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <vector>

struct lm_fit {
    llama_model_params model;
    llama_context_params context;
    std::vector<float> split;
    std::vector<llama_model_tensor_buft_override> overrides;
    bool fits = false;
};

namespace {

constexpr const char * FIT = "fit";

void require_params(const char * path, const llama_model_params * model, const llama_context_params * context) {
    lm_require(path, "path: NULL");
    lm_require(model, "model: NULL");
    lm_require(context, "context: NULL");
    lm_require(context->n_seq_max >= 1 && context->n_seq_max <= llama_max_parallel_sequences(),
               "n_seq_max: more sequences than llama.cpp supports, or none");
    lm_require(context->n_batch >= 1 && context->n_ubatch >= 1, "n_batch: no tokens");
    lm_require(!model->vocab_only, "vocab_only: a vocabulary has no context");
}

// Bytes of llama_context::output_reserve for one output of each sequence, as after the creation of a context.
uint64_t output_bytes(const llama_context & ctx) {
    const llama_model & model = ctx.get_model();
    const auto & params = ctx.get_cparams();
    const uint64_t n_vocab = model.vocab.n_tokens();
    const uint64_t n_embd = params.embeddings || model.arch == LLM_ARCH_T5 ? model.hparams.n_embd_out() : 0;
    return (n_vocab + n_embd) * params.n_seq_max * sizeof(float);
}

common_json breakdown(const llama_context & ctx) {
    common_json buffers = common_json::array();
    llama_memory_breakdown_data sum;
    for (const auto & [kind, bytes] : llama_get_memory_breakdown(&ctx)) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(kind);
        common_json entry = common_json::object();
        entry["buffer"] = std::string(ggml_backend_buft_name(kind));
        entry["device"] = std::string(device ? ggml_backend_dev_name(device) : "");
        entry["is_host"] = ggml_backend_buft_is_host(kind) ||
                           (device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU);
        entry["model_bytes"] = static_cast<uint64_t>(bytes.model);
        entry["context_bytes"] = static_cast<uint64_t>(bytes.context);
        entry["compute_bytes"] = static_cast<uint64_t>(bytes.compute);
        buffers.push_back(entry);
        sum.model += bytes.model;
        sum.context += bytes.context;
        sum.compute += bytes.compute;
    }
    common_json found = common_json::object();
    found["buffers"] = buffers;
    found["output_bytes"] = output_bytes(ctx);
    found["model_bytes"] = static_cast<uint64_t>(sum.model);
    found["context_bytes"] = static_cast<uint64_t>(sum.context);
    found["compute_bytes"] = static_cast<uint64_t>(sum.compute);
    found["n_ctx"] = llama_n_ctx(&ctx);
    return found;
}

common_json devices_of(const llama_model & model) {
    common_json devices = common_json::array();
    for (int i = 0; i < llama_model_n_devices(&model); i++) {
        ggml_backend_dev_t device = llama_model_get_device(&model, i);
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
        const auto type = ggml_backend_dev_type(device);
        common_json entry = common_json::object();
        entry["name"] = std::string(ggml_backend_dev_name(device));
        entry["is_gpu"] = type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
        entry["free_bytes"] = static_cast<uint64_t>(free_bytes);
        entry["total_bytes"] = static_cast<uint64_t>(total_bytes);
        devices.push_back(entry);
    }
    return devices;
}

[[noreturn]] void fail(const lm_error_capture & errors, const char * otherwise) {
    const std::string why = errors.text();
    throw lm_error(LM_LOAD_FAILED, why.empty() ? otherwise : why);
}

common_json measure(const char * path, llama_model_params params, const llama_context_params & context) {
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE; // the others need the weights to be there
    lm_error_capture errors;
    const llama_model_ptr model(llama_model_load_from_file(path, params));
    if (!model) {
        fail(errors, "llama.cpp could not lay out the model");
    }
    const llama_context_ptr ctx(llama_init_from_model(model.get(), context));
    if (!ctx) {
        fail(errors, "llama.cpp could not lay out a context");
    }
    common_json found = breakdown(*ctx);
    found["n_ctx_train"] = llama_model_n_ctx_train(model.get());
    found["n_layer"] = llama_model_n_layer(model.get());
    found["devices"] = devices_of(*model);
    return found;
}

// Whatever becomes of fitting: an exception out of it would leave a log function behind whose data are gone.
class log_keeper {
  public:
    log_keeper() { llama_log_get(&callback, &data); }
    ~log_keeper() { llama_log_set(callback, data); }
    log_keeper(const log_keeper &) = delete;
    log_keeper & operator=(const log_keeper &) = delete;

  private:
    ggml_log_callback callback = nullptr;
    void * data = nullptr;
};

} // namespace

lm_status lm_memory_of(const llama_context * ctx, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(ctx, "ctx: NULL");
        lm_require(out, "out: NULL");
        *out = lm_string_copy(breakdown(*ctx).dump_safe());
    });
}

lm_status lm_memory_measure(const char * path, const llama_model_params * model, const llama_context_params * context,
                            char ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        require_params(path, model, context);
        lm_require(out, "out: NULL");
        lm_require_model_file(gguf_header(path).get(), false);
        const std::shared_lock<std::shared_mutex> gate(lm_loading_mutex());
        *out = lm_string_copy(measure(path, *model, *context).dump_safe());
    });
}

lm_status lm_fit_create(const char * path, const llama_model_params * model, const llama_context_params * context,
                        uint64_t margin_bytes, uint32_t n_ctx_min, lm_fit ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        require_params(path, model, context);
        lm_require(out, "out: NULL");
        lm_require(margin_bytes <= static_cast<uint64_t>(INT64_MAX), "margin_bytes: does not fit in 63 bits");
        lm_require(!model->tensor_buft_overrides, "model: has tensor_buft_overrides already");
        lm_require_model_file(gguf_header(path).get(), false);
        const std::unique_lock<std::shared_mutex> gate(lm_loading_mutex());
        // What cannot be laid out at all is an error with a reason here; of fitting there would only be the failure.
        const auto trained = measure(path, *model, *context)["n_ctx_train"].get<uint32_t>();
        auto fit = std::make_unique<lm_fit>();
        fit->model = *model;
        fit->context = *context;
        fit->split.assign(llama_max_devices(), 0.0f);
        fit->overrides.assign(llama_max_tensor_buft_overrides(), llama_model_tensor_buft_override{nullptr, nullptr});
        std::vector<size_t> margins(llama_max_devices(), static_cast<size_t>(margin_bytes));
        {
            const log_keeper keeper;
            fit->fits = common_fit_params(path, &fit->model, &fit->context, fit->split.data(), fit->overrides.data(),
                                          margins.data(), n_ctx_min, nullptr,
                                          GGML_LOG_LEVEL_ERROR) == COMMON_PARAMS_FIT_STATUS_SUCCESS;
        }
        if (!fit->fits) {
            // It may have given up half-way.
            fit->model = *model;
            fit->context = *context;
        }
        if (fit->context.n_ctx == 0) {
            fit->context.n_ctx = fit->fits ? trained : std::min(trained, n_ctx_min);
        }
        lm_handle_add(fit.get(), FIT);
        *out = fit.release();
    });
}

lm_status lm_fit_free(lm_fit * fit) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(fit, FIT)) {
            lm_invalid("fit: not a live handle");
        }
        delete fit;
    });
}

lm_status lm_fit_info(const lm_fit * fit, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_handle_require(fit, FIT);
        lm_require(out, "out: NULL");
        common_json info = common_json::object();
        info["fits"] = fit->fits;
        info["n_ctx"] = fit->context.n_ctx;
        info["n_gpu_layers"] = fit->model.n_gpu_layers;
        common_json split = common_json::array();
        for (size_t i = 0; fit->model.tensor_split && i < fit->split.size(); i++) {
            split.push_back(fit->model.tensor_split[i]);
        }
        info["tensor_split"] = split;
        common_json overrides = common_json::array();
        for (auto it = fit->model.tensor_buft_overrides; it && it->pattern; it++) {
            common_json entry = common_json::array();
            entry.push_back(std::string(it->pattern));
            entry.push_back(std::string(ggml_backend_buft_name(it->buft)));
            overrides.push_back(entry);
        }
        info["overrides"] = overrides;
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_fit_apply(const lm_fit * fit, llama_model_params * model, llama_context_params * context) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_handle_require(fit, FIT);
        lm_require(model, "model: NULL");
        lm_require(context, "context: NULL");
        model->n_gpu_layers = fit->model.n_gpu_layers;
        model->tensor_split = fit->model.tensor_split;
        model->tensor_buft_overrides = fit->model.tensor_buft_overrides;
        context->n_ctx = fit->context.n_ctx;
    });
}
