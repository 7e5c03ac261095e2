// How fast this machine computes what a layer consists of beside its matrices.
#include "speed.h"

#include "guard.h"
#include "llama-cpp.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

// A model of the llama architecture, with weights that mean nothing. Both have 64 values in a head.
struct shape {
    int32_t n_layer;
    int32_t n_embd;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_ff;
};

constexpr int32_t HEAD_WIDTH = 64;
constexpr int32_t N_VOCAB = 32;
// Matrices as those of small models, so that the threads of a step wait for one another as long as they do there.
constexpr shape SMALL = {/*n_layer=*/6, /*n_embd=*/256, /*n_head=*/4, /*n_head_kv=*/2, /*n_ff=*/768};
// Many heads for their width, so that a long look back is most of what it costs.
constexpr shape MANY_HEADS = {/*n_layer=*/2, /*n_embd=*/256, /*n_head=*/12, /*n_head_kv=*/4, /*n_ff=*/1024};
constexpr int32_t FAR_TOKENS = 1024; // how far back attention looks when its cost is measured
constexpr int32_t NEAR_TOKENS = 8;
constexpr size_t OTHER_MATRICES = 6; // of 8 MB
constexpr int STEPS = 41;            // of one token each
constexpr int BATCHES = 9;

gguf_ptr metadata_of(const shape & model) {
    gguf_ptr keys(gguf_init_empty());
    gguf_set_val_str(keys.get(), "general.architecture", "llama");
    gguf_set_val_str(keys.get(), "tokenizer.ggml.model", "none");
    const std::pair<const char *, int32_t> numbers[] = {
        {"llama.vocab_size", N_VOCAB},
        {"llama.block_count", model.n_layer},
        {"llama.context_length", 2 * FAR_TOKENS},
        {"llama.embedding_length", model.n_embd},
        {"llama.feed_forward_length", model.n_ff},
        {"llama.attention.head_count", model.n_head},
        {"llama.attention.head_count_kv", model.n_head_kv},
        {"llama.attention.key_length", HEAD_WIDTH},
        {"llama.attention.value_length", HEAD_WIDTH},
        {"llama.rope.dimension_count", HEAD_WIDTH},
    };
    for (const auto & [key, value] : numbers) {
        gguf_set_val_u32(keys.get(), key, static_cast<uint32_t>(value));
    }
    gguf_set_val_f32(keys.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    return keys;
}

void set_some_values(ggml_tensor * tensor, void *) {
    std::vector<float> values = some_values(static_cast<size_t>(ggml_nelements(tensor)));
    for (float & value : values) {
        value *= 0.25f;
    }
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

// Runs an invented model on the CPU, as llama.cpp runs any.
class layers {
  public:
    // The model has seen `n_past` tokens before those that are measured.
    layers(const shape & model, int32_t n_threads, int32_t n_past) : n_past_(n_past) {
        lm_error_capture errors;
        const gguf_ptr keys = metadata_of(model);
        ggml_backend_dev_t no_devices[] = {nullptr};
        llama_model_params params = llama_model_default_params();
        params.devices = no_devices;
        params.n_gpu_layers = 0;
        model_.reset(llama_model_init_from_user(keys.get(), set_some_values, nullptr, params));
        llama_context_params options = llama_context_default_params();
        options.n_ctx = 2 * FAR_TOKENS;
        options.n_batch = SPEED_BATCH;
        options.n_ubatch = SPEED_BATCH;
        options.n_threads = n_threads;
        options.n_threads_batch = n_threads;
        options.offload_kqv = false;
        options.op_offload = false;
        options.no_perf = true;
        ctx_.reset(model_ ? llama_init_from_model(model_.get(), options) : nullptr);
        if (!ctx_) {
            throw lm_error(LM_INTERNAL, "no model to measure with: " + errors.text());
        }
        for (int32_t at = 0; at < n_past; at += SPEED_BATCH) {
            decode(std::min<int32_t>(SPEED_BATCH, n_past - at));
        }
    }

    // Takes so many tokens in, and forgets them again.
    void step(int32_t n_tokens) {
        decode(n_tokens);
        llama_memory_seq_rm(llama_get_memory(ctx_.get()), 0, n_past_, -1);
    }

  private:
    void decode(int32_t n_tokens) {
        std::vector<llama_token> tokens(static_cast<size_t>(n_tokens), 1);
        if (llama_decode(ctx_.get(), llama_batch_get_one(tokens.data(), n_tokens)) != 0) {
            throw lm_error(LM_DECODE_FAILED, "llama_decode failed");
        }
    }

    llama_model_ptr model_;
    llama_context_ptr ctx_;
    int32_t n_past_;
};

// Products with matrices for one token, and nothing else.
class products {
  public:
    // `shapes`: columns and rows.
    products(const std::vector<std::pair<int64_t, int64_t>> & shapes, int32_t n_threads)
        : cpu_(n_threads), weights_(new_context(shapes.size())), ctx_(new_context(3 * shapes.size(), true)) {
        graph_ = ggml_new_graph_custom(ctx_.get(), 3 * shapes.size(), false);
        std::vector<ggml_tensor *> filled;
        for (const auto & [columns, rows] : shapes) {
            filled.push_back(ggml_new_tensor_2d(weights_.get(), GGML_TYPE_F32, columns, rows));
            ggml_tensor * input = ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_F32, columns);
            ggml_set_input(input);
            ggml_build_forward_expand(graph_, ggml_mul_mat(ctx_.get(), filled.back(), input));
            filled.push_back(input);
        }
        buffer_.reset(
            ggml_backend_alloc_ctx_tensors_from_buft(weights_.get(), ggml_backend_dev_buffer_type(cpu_device())));
        if (!buffer_) {
            throw std::bad_alloc();
        }
        ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        cpu_.allocate(graph_);
        for (ggml_tensor * tensor : filled) {
            set_some_values(tensor, nullptr);
        }
    }

    void compute() { cpu_.compute(graph_); }

  private:
    machine cpu_;
    ggml_ptr weights_;
    ggml_ptr ctx_;
    ggml_backend_buffer_ptr buffer_;
    ggml_cgraph * graph_;
};

// How many weights the matrices of a model have.
int64_t n_weights_of(const shape & model) {
    const int64_t heads = model.n_head * HEAD_WIDTH;
    const int64_t heads_kv = model.n_head_kv * HEAD_WIDTH;
    return model.n_layer * model.n_embd * (2 * heads + 2 * heads_kv + 3 * model.n_ff);
}

// Seconds for each value that is normalized, scaled and added, in a batch.
double pass_seconds(machine & cpu) {
    constexpr int PASSES = 8;
    const ggml_ptr ctx = new_context(4 * PASSES + 8, true);
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, SPEED_COLUMNS, SPEED_BATCH);
    ggml_tensor * scale = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, SPEED_COLUMNS);
    ggml_set_input(input);
    ggml_set_input(scale);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 4 * PASSES + 8, false);
    ggml_tensor * sum = input;
    for (int i = 0; i < PASSES; i++) {
        ggml_tensor * scaled = ggml_mul(ctx.get(), ggml_rms_norm(ctx.get(), sum, 1e-5f), scale);
        sum = ggml_add(ctx.get(), scaled, sum);
    }
    ggml_build_forward_expand(graph, sum);
    cpu.allocate(graph);
    const std::vector<float> values = some_values(SPEED_COLUMNS * SPEED_BATCH);
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    ggml_backend_tensor_set(scale, values.data(), 0, SPEED_COLUMNS * sizeof(float));
    return median_seconds([&] { cpu.compute(graph); }) / (PASSES * SPEED_COLUMNS * SPEED_BATCH);
}

} // namespace

lm_status lm_speed_layer(int32_t n_threads, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        require_threads(n_threads);
        machine cpu(n_threads);
        // Between two looks at a layer, the weights of the others have been through the caches, and no thread slept.
        products others(std::vector<std::pair<int64_t, int64_t>>(OTHER_MATRICES, {SPEED_COLUMNS, SPEED_COLUMNS / 2}),
                        n_threads);
        const std::function<void()> evict = [&] { others.compute(); };
        const std::function<void()> nothing = [] {};
        layers small(SMALL, n_threads, NEAR_TOKENS);
        // As one matrix: that a model has many small ones, for each of which threads wait for one another, is part of a
        // layer.
        products matrices({{SPEED_COLUMNS, n_weights_of(SMALL) / SPEED_COLUMNS}}, n_threads);
        layers near(MANY_HEADS, n_threads, NEAR_TOKENS);
        layers far(MANY_HEADS, n_threads, FAR_TOKENS);
        const double values = MANY_HEADS.n_layer * MANY_HEADS.n_head * HEAD_WIDTH; // of all queries of one token
        const double cells = values * (FAR_TOKENS - NEAR_TOKENS);
        // llama.cpp deals the cells of the cache, in whole 256s, among the threads (ops.cpp, use_split_kv_path).
        const int32_t padded = 256 * (FAR_TOKENS / 256 + 1);
        const int32_t share = std::min(FAR_TOKENS, (padded + n_threads - 1) / n_threads);
        common_json result = common_json::object();
        result["layer_seconds"] =
            difference_seconds([&] { small.step(1); }, [&] { matrices.compute(); }, STEPS, evict) / SMALL.n_layer;
        result["attention_seconds"] = difference_seconds([&] { far.step(1); }, [&] { near.step(1); }, STEPS, evict) /
                                      (values * (share - static_cast<double>(NEAR_TOKENS) / n_threads));
        result["batch_attention_seconds"] =
            difference_seconds([&] { far.step(SPEED_BATCH); }, [&] { near.step(SPEED_BATCH); }, BATCHES, nothing) /
            (cells * SPEED_BATCH);
        result["pass_seconds"] = pass_seconds(cpu);
        *out = lm_string_copy(result.dump_safe());
    });
}
