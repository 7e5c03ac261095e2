// How fast this machine computes what a language model is made of: products with matrices of each tensor type, where
// llama.cpp would keep them, and the rest of a layer.
#include "guard.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "gguf_file.h"
#include "llama-cpp.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using seconds_clock = std::chrono::steady_clock;

// What a file may hold and ggml can write; Q8_1 and Q8_K only exist while something is computed.
constexpr ggml_type TYPES[] = {
    GGML_TYPE_F32,    GGML_TYPE_F16,     GGML_TYPE_BF16,  GGML_TYPE_Q8_0,  GGML_TYPE_Q6_K,    GGML_TYPE_Q5_K,
    GGML_TYPE_Q5_1,   GGML_TYPE_Q5_0,    GGML_TYPE_Q4_K,  GGML_TYPE_Q4_1,  GGML_TYPE_Q4_0,    GGML_TYPE_IQ4_NL,
    GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4,   GGML_TYPE_Q3_K,  GGML_TYPE_IQ3_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_Q2_K,
    GGML_TYPE_IQ2_S,  GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ1_S, GGML_TYPE_TQ2_0, GGML_TYPE_TQ1_0,
};

constexpr int64_t COLUMNS = 2048;
constexpr int64_t ROWS = 1024;
constexpr int64_t BATCH = 512;               // llama.cpp's n_ubatch
constexpr size_t STREAMED_BYTES = 80u << 20; // for one column: more than a core's share of the caches
constexpr int64_t PATTERN_ROWS = 4;          // quantized in earnest; the other rows repeat them
constexpr int REPETITIONS = 5;
constexpr double LONG_SECONDS = 0.4; // no further repetition after so long
constexpr int32_t MAX_THREADS = 512;

double seconds_since(seconds_clock::time_point begin) {
    return std::chrono::duration<double>(seconds_clock::now() - begin).count();
}

// The median of a few runs; the first, in which memory is touched for the first time, does not count. `prepare` comes
// before each and is not timed.
double median_seconds(
    const std::function<void()> & run, int repetitions = REPETITIONS, const std::function<void()> & prepare = [] {}) {
    run();
    std::vector<double> seconds;
    double total = 0;
    for (int i = 0; i < repetitions && (i == 0 || total < LONG_SECONDS); i++) {
        prepare();
        const auto begin = seconds_clock::now();
        run();
        seconds.push_back(seconds_since(begin));
        total += seconds.back();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

// Puts other memory into the caches, as a real model's weights do between two looks at the same layer.
class eviction {
  public:
    void operator()() {
        for (size_t at = 0; at < bytes_.size(); at += 64) {
            bytes_[at]++;
        }
    }

  private:
    std::vector<uint8_t> bytes_ = std::vector<uint8_t>(STREAMED_BYTES);
};

std::string type_name(ggml_type type) {
    std::string name = ggml_type_name(type);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
    return name;
}

void require_threads(int32_t n_threads) {
    lm_require(n_threads >= 1 && n_threads <= MAX_THREADS, "n_threads: must be from 1 to 512");
}

ggml_backend_dev_t cpu_device() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) {
        throw lm_error(LM_UNSUPPORTED, "no CPU backend is loaded");
    }
    return device;
}

ggml_ptr new_context(size_t n_tensors, bool with_graph = false) {
    const size_t graph = with_graph ? ggml_graph_overhead_custom(n_tensors, false) : 0;
    ggml_ptr ctx(ggml_init({/*mem_size=*/n_tensors * ggml_tensor_overhead() + graph, nullptr, /*no_alloc=*/true}));
    if (!ctx) {
        throw std::bad_alloc();
    }
    return ctx;
}

struct place {
    ggml_backend_dev_t device;
    ggml_backend_buffer_type_t type;
    bool extra; // a layout of the CPU's own
};

// Where llama.cpp tries to put a matrix that the CPU computes with, in its order: accelerators that share the CPU's
// memory, the CPU's own layouts, then plain memory.
std::vector<place> places() {
    std::vector<place> found;
    ggml_backend_dev_t cpu = cpu_device();
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(cpu);
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_ACCEL &&
            ggml_backend_dev_buffer_type(device) != plain) {
            found.push_back({device, ggml_backend_dev_buffer_type(device), false});
        }
    }
    const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
    for (ggml_backend_buffer_type_t * type = extra ? extra(cpu) : nullptr; type && *type; type++) {
        found.push_back({cpu, *type, true});
    }
    found.push_back({cpu, plain, false});
    return found;
}

bool can_multiply(ggml_type type, const place & where) {
    const ggml_ptr ctx = new_context(4);
    ggml_tensor * weights = ggml_new_tensor_2d(ctx.get(), type, COLUMNS, ROWS);
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, COLUMNS, BATCH);
    ggml_tensor * product = ggml_mul_mat(ctx.get(), weights, input);
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(where.type, 0));
    weights->buffer = buffer.get();
    return ggml_backend_dev_supports_op(where.device, product);
}

place place_of(ggml_type type) {
    for (const place & where : places()) {
        if (can_multiply(type, where)) {
            return where;
        }
    }
    throw lm_error(LM_UNSUPPORTED, "this build multiplies no matrices of type " + type_name(type));
}

// The backends that llama.cpp computes with when no layer is on a GPU.
class machine {
  public:
    explicit machine(int32_t n_threads) {
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_dev_t device = ggml_backend_dev_get(i);
            if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_ACCEL) {
                add(device, n_threads);
            }
        }
        add(cpu_device(), n_threads);
        std::vector<ggml_backend_t> pointers;
        for (const auto & backend : backends_) {
            pointers.push_back(backend.get());
        }
        sched_.reset(ggml_backend_sched_new(pointers.data(), nullptr, static_cast<int>(pointers.size()), MAX_NODES,
                                            /*parallel=*/false, /*op_offload=*/false));
        if (!sched_) {
            throw std::bad_alloc();
        }
    }

    static constexpr size_t MAX_NODES = 2048;

    void allocate(ggml_cgraph * graph) {
        ggml_backend_sched_reset(sched_.get());
        if (!ggml_backend_sched_alloc_graph(sched_.get(), graph)) {
            throw std::bad_alloc();
        }
    }

    void compute(ggml_cgraph * graph) {
        if (ggml_backend_sched_graph_compute(sched_.get(), graph) != GGML_STATUS_SUCCESS) {
            throw lm_error(LM_DECODE_FAILED, "ggml could not compute the graph");
        }
    }

  private:
    void add(ggml_backend_dev_t device, int32_t n_threads) {
        backends_.emplace_back(ggml_backend_dev_init(device, nullptr));
        if (!backends_.back()) {
            throw lm_error(LM_INTERNAL, "a backend could not be started");
        }
        const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
        if (set_threads) {
            set_threads(backends_.back().get(), n_threads);
        }
    }

    std::vector<ggml_backend_ptr> backends_;
    ggml_backend_sched_ptr sched_;
};

// Values without a pattern that a kernel could profit from, between -1 and 1.
std::vector<float> some_values(size_t n) {
    std::vector<float> values(n);
    uint32_t state = 1;
    for (float & value : values) {
        state = state * 1664525u + 1013904223u; // the generator of Numerical Recipes
        value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
    }
    return values;
}

// The quantizers of these search in tables that take many seconds to make. Any bits are a value of theirs, but for the
// scale, a half-precision number at the start of each block.
bool is_slow_to_quantize(ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ1_S;
}

std::vector<uint8_t> some_row_bits(ggml_type type) {
    const std::vector<float> values = some_values(PATTERN_ROWS * ggml_row_size(type, COLUMNS));
    std::vector<uint8_t> bits;
    for (const float value : values) {
        bits.push_back(static_cast<uint8_t>(static_cast<int>((value + 1.0f) * 127.0f)));
    }
    const ggml_fp16_t scale = ggml_fp32_to_fp16(0.125f);
    for (size_t at = 0; at < bits.size(); at += ggml_type_size(type)) {
        std::memcpy(&bits[at], &scale, sizeof(scale));
    }
    return bits;
}

std::vector<uint8_t> some_matrix(ggml_type type) {
    const size_t row_bytes = ggml_row_size(type, COLUMNS);
    std::vector<uint8_t> data;
    if (is_slow_to_quantize(type)) {
        data = some_row_bits(type);
    } else {
        const std::vector<float> values = some_values(PATTERN_ROWS * COLUMNS);
        const std::vector<float> importance(COLUMNS, 1.0f);
        data.resize(PATTERN_ROWS * row_bytes);
        ggml_quantize_chunk(type, values.data(), data.data(), 0, PATTERN_ROWS, COLUMNS, importance.data());
    }
    data.resize(ROWS * row_bytes);
    for (size_t at = PATTERN_ROWS * row_bytes; at < data.size(); at++) {
        data[at] = data[at - PATTERN_ROWS * row_bytes];
    }
    return data;
}

// Several matrices of one type, in the memory where they belong.
struct matrices {
    ggml_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor *> tensors;

    matrices(ggml_type type, const place & where) {
        const std::vector<uint8_t> data = some_matrix(type);
        const size_t n = std::min(machine::MAX_NODES / 2, STREAMED_BYTES / data.size() + 1);
        ctx = new_context(n);
        for (size_t i = 0; i < n; i++) {
            tensors.push_back(ggml_new_tensor_2d(ctx.get(), type, COLUMNS, ROWS));
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), where.type));
        if (!buffer) {
            throw std::bad_alloc();
        }
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        for (ggml_tensor * tensor : tensors) {
            ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
        }
    }
};

// Seconds to multiply `n_columns` columns by each of the matrices.
double product_seconds(machine & cpu, const std::vector<ggml_tensor *> & weights, int64_t n_columns) {
    const ggml_ptr ctx = new_context(2 * weights.size() + 8, true);
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, COLUMNS, n_columns);
    ggml_set_input(input);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 2 * weights.size() + 8, false);
    for (ggml_tensor * matrix : weights) {
        ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), matrix, input));
    }
    cpu.allocate(graph);
    const std::vector<float> values = some_values(static_cast<size_t>(COLUMNS * n_columns));
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    return median_seconds([&] { cpu.compute(graph); });
}

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
// Hardly any matrices, so that the attention is nearly all there is.
constexpr shape MANY_HEADS = {/*n_layer=*/4, /*n_embd=*/64, /*n_head=*/12, /*n_head_kv=*/4, /*n_ff=*/64};
constexpr int32_t FAR_TOKENS = 1024; // how far back attention looks when its cost is measured
constexpr int32_t NEAR_TOKENS = 8;
constexpr int STEPS = 17; // of one token each

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
    layers(const shape & model, int32_t n_threads, const std::function<void()> & evict) : evict_(evict) {
        lm_error_capture errors;
        const gguf_ptr keys = metadata_of(model);
        ggml_backend_dev_t no_devices[] = {nullptr};
        llama_model_params params = llama_model_default_params();
        params.devices = no_devices;
        params.n_gpu_layers = 0;
        model_.reset(llama_model_init_from_user(keys.get(), set_some_values, nullptr, params));
        llama_context_params options = llama_context_default_params();
        options.n_ctx = 2 * FAR_TOKENS;
        options.n_batch = BATCH;
        options.n_ubatch = BATCH;
        options.n_threads = n_threads;
        options.n_threads_batch = n_threads;
        options.offload_kqv = false;
        options.op_offload = false;
        options.no_perf = true;
        ctx_.reset(model_ ? llama_init_from_model(model_.get(), options) : nullptr);
        if (!ctx_) {
            throw lm_error(LM_INTERNAL, "no model to measure with: " + errors.text());
        }
    }

    // Seconds of one call for `n_tokens` that come after `n_past` others.
    double seconds(int32_t n_tokens, int32_t n_past) {
        llama_memory_clear(llama_get_memory(ctx_.get()), true);
        for (int32_t at = 0; at < n_past; at += BATCH) {
            decode(std::min<int32_t>(BATCH, n_past - at));
        }
        const auto run = [&] {
            decode(n_tokens);
            llama_memory_seq_rm(llama_get_memory(ctx_.get()), 0, n_past, -1);
        };
        return n_tokens == 1 ? median_seconds(run, STEPS, evict_) : median_seconds(run);
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
    std::function<void()> evict_;
};

// Seconds of the matrix products that one token takes in a model, and of nothing else.
double bare_seconds(machine & cpu, const shape & model, const std::function<void()> & evict) {
    const int32_t heads = model.n_head * HEAD_WIDTH, heads_kv = model.n_head_kv * HEAD_WIDTH;
    const std::pair<int32_t, int32_t> matrices_of_layer[] = {
        {model.n_embd, heads},      {model.n_embd, heads_kv},   {model.n_embd, heads_kv},   {heads, model.n_embd},
        {model.n_embd, model.n_ff}, {model.n_embd, model.n_ff}, {model.n_ff, model.n_embd},
    };
    const size_t n = std::size(matrices_of_layer) * static_cast<size_t>(model.n_layer);
    const ggml_ptr weights = new_context(n);
    const ggml_ptr ctx = new_context(3 * n, true);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 3 * n, false);
    std::vector<ggml_tensor *> inputs;
    for (int32_t layer = 0; layer < model.n_layer; layer++) {
        for (const auto & [columns, rows] : matrices_of_layer) {
            ggml_tensor * matrix = ggml_new_tensor_2d(weights.get(), GGML_TYPE_F32, columns, rows);
            inputs.push_back(ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, columns));
            ggml_set_input(inputs.back());
            ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), matrix, inputs.back()));
        }
    }
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), ggml_backend_dev_buffer_type(cpu_device())));
    if (!buffer) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    cpu.allocate(graph);
    for (ggml_tensor * tensor = ggml_get_first_tensor(weights.get()); tensor;
         tensor = ggml_get_next_tensor(weights.get(), tensor)) {
        set_some_values(tensor, nullptr);
    }
    for (ggml_tensor * input : inputs) {
        set_some_values(input, nullptr);
    }
    return median_seconds([&] { cpu.compute(graph); }, STEPS, evict);
}

// Seconds for each value that is normalized, scaled and added, in a batch.
double pass_seconds(machine & cpu) {
    constexpr int PASSES = 8;
    const ggml_ptr ctx = new_context(4 * PASSES + 8, true);
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, COLUMNS, BATCH);
    ggml_tensor * scale = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, COLUMNS);
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
    const std::vector<float> values = some_values(COLUMNS * BATCH);
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    ggml_backend_tensor_set(scale, values.data(), 0, COLUMNS * sizeof(float));
    return median_seconds([&] { cpu.compute(graph); }) / (PASSES * COLUMNS * BATCH);
}

} // namespace

lm_status lm_speed_types(char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        common_json found = common_json::array();
        for (const ggml_type type : TYPES) {
            const place where = place_of(type);
            common_json entry = common_json::object();
            entry["type"] = type_name(type);
            entry["repacked"] = where.extra;
            entry["buffer"] = std::string(ggml_backend_buft_name(where.type));
            found.push_back(entry);
        }
        *out = lm_string_copy(found.dump_safe());
    });
}

lm_status lm_speed_matrix(const char * type, int32_t n_threads, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(type, "type: NULL");
        lm_require(out, "out: NULL");
        require_threads(n_threads);
        const auto * found =
            std::find_if(std::begin(TYPES), std::end(TYPES), [&](ggml_type known) { return type_name(known) == type; });
        if (found == std::end(TYPES)) {
            lm_invalid("type: '" + std::string(type) + "' is none of those that lm_speed_types lists");
        }
        const place where = place_of(*found);
        const matrices weights(*found, where);
        machine cpu(n_threads);
        const double one = product_seconds(cpu, weights.tensors, 1);
        const double batch = product_seconds(cpu, {weights.tensors.front()}, BATCH);
        const auto n_bytes = static_cast<double>(weights.tensors.size() * ROWS * ggml_row_size(*found, COLUMNS));
        common_json result = common_json::object();
        result["type"] = type_name(*found);
        result["repacked"] = where.extra;
        result["buffer"] = std::string(ggml_backend_buft_name(where.type));
        result["flops_per_second"] = 2.0 * ROWS * COLUMNS * BATCH / batch;
        result["bytes_per_second"] = n_bytes / one;
        *out = lm_string_copy(result.dump_safe());
    });
}

lm_status lm_speed_layer(int32_t n_threads, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        require_threads(n_threads);
        machine cpu(n_threads);
        eviction other_memory;
        const std::function<void()> evict = [&] { other_memory(); };
        layers small(SMALL, n_threads, evict);
        const double step = small.seconds(1, NEAR_TOKENS);
        const double bare = bare_seconds(cpu, SMALL, evict);
        layers heads(MANY_HEADS, n_threads, evict);
        const double near = heads.seconds(1, NEAR_TOKENS);
        const double far = heads.seconds(1, FAR_TOKENS);
        const double batch = heads.seconds(BATCH, 0);
        const double far_batch = heads.seconds(BATCH, FAR_TOKENS);
        const double values = MANY_HEADS.n_layer * MANY_HEADS.n_head * HEAD_WIDTH; // of all queries of one token
        // Noise can make the smaller of two times the larger one; nothing takes no time at all.
        const auto difference = [](double more, double less) { return std::max(more - less, 0.01 * more); };
        common_json result = common_json::object();
        result["layer_seconds"] = difference(step, bare) / SMALL.n_layer;
        result["attention_seconds"] = difference(far, near) / (values * (FAR_TOKENS - NEAR_TOKENS));
        result["batch_attention_seconds"] = difference(far_batch, batch) / (values * FAR_TOKENS * BATCH);
        result["pass_seconds"] = pass_seconds(cpu);
        *out = lm_string_copy(result.dump_safe());
    });
}
