// How fast this machine multiplies with matrices of each tensor type, where llama.cpp would keep them.
#include "speed.h"

#include "guard.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

namespace {

using seconds_clock = std::chrono::steady_clock;

// What a file may hold and ggml can write; Q8_1 and Q8_K only exist while something is computed.
constexpr ggml_type TYPES[] = {
    GGML_TYPE_F32,    GGML_TYPE_F16,     GGML_TYPE_BF16,  GGML_TYPE_Q8_0,  GGML_TYPE_Q6_K,    GGML_TYPE_Q5_K,
    GGML_TYPE_Q5_1,   GGML_TYPE_Q5_0,    GGML_TYPE_Q4_K,  GGML_TYPE_Q4_1,  GGML_TYPE_Q4_0,    GGML_TYPE_IQ4_NL,
    GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4,   GGML_TYPE_Q3_K,  GGML_TYPE_IQ3_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_Q2_K,
    GGML_TYPE_IQ2_S,  GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ1_S, GGML_TYPE_TQ2_0, GGML_TYPE_TQ1_0,
};

constexpr int64_t ROWS = 1024;
constexpr size_t STREAMED_BYTES = 80u << 20; // for one column: more than a core's share of the caches
constexpr int64_t PATTERN_ROWS = 4;          // quantized in earnest; the other rows repeat them
constexpr double LONG_SECONDS = 0.4;         // no further repetition after so long
constexpr int32_t MAX_THREADS = 512;

double seconds_since(seconds_clock::time_point begin) {
    return std::chrono::duration<double>(seconds_clock::now() - begin).count();
}

double seconds_of(const std::function<void()> & run, const std::function<void()> & prepare) {
    prepare();
    const auto begin = seconds_clock::now();
    run();
    return seconds_since(begin);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::string type_name(ggml_type type) {
    std::string name = ggml_type_name(type);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
    return name;
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
    ggml_tensor * weights = ggml_new_tensor_2d(ctx.get(), type, SPEED_COLUMNS, ROWS);
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, SPEED_COLUMNS, SPEED_BATCH);
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

// The quantizers of these search in tables that take many seconds to make. Any bits are a value of theirs, but for the
// scale, a half-precision number at the start of each block.
bool is_slow_to_quantize(ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ1_S;
}

std::vector<uint8_t> some_row_bits(ggml_type type) {
    const std::vector<float> values = some_values(PATTERN_ROWS * ggml_row_size(type, SPEED_COLUMNS));
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
    const size_t row_bytes = ggml_row_size(type, SPEED_COLUMNS);
    std::vector<uint8_t> data;
    if (is_slow_to_quantize(type)) {
        data = some_row_bits(type);
    } else {
        const std::vector<float> values = some_values(PATTERN_ROWS * SPEED_COLUMNS);
        const std::vector<float> importance(SPEED_COLUMNS, 1.0f);
        data.resize(PATTERN_ROWS * row_bytes);
        ggml_quantize_chunk(type, values.data(), data.data(), 0, PATTERN_ROWS, SPEED_COLUMNS, importance.data());
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
            tensors.push_back(ggml_new_tensor_2d(ctx.get(), type, SPEED_COLUMNS, ROWS));
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
    ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, SPEED_COLUMNS, n_columns);
    ggml_set_input(input);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 2 * weights.size() + 8, false);
    for (ggml_tensor * matrix : weights) {
        ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), matrix, input));
    }
    cpu.allocate(graph);
    const std::vector<float> values = some_values(static_cast<size_t>(SPEED_COLUMNS * n_columns));
    ggml_backend_tensor_set(input, values.data(), 0, values.size() * sizeof(float));
    return median_seconds([&] { cpu.compute(graph); });
}

} // namespace

double median_seconds(const std::function<void()> & run, int repetitions, const std::function<void()> & prepare) {
    run();
    std::vector<double> seconds;
    double total = 0;
    for (int i = 0; i < repetitions && (i == 0 || total < LONG_SECONDS); i++) {
        seconds.push_back(seconds_of(run, prepare));
        total += seconds.back();
    }
    return median(seconds);
}

double difference_seconds(const std::function<void()> & more, const std::function<void()> & less, int repetitions,
                          const std::function<void()> & prepare) {
    more();
    less();
    std::vector<double> longer;
    std::vector<double> differences;
    double total = 0;
    for (int i = 0; i < repetitions && (i == 0 || total < LONG_SECONDS); i++) {
        longer.push_back(seconds_of(more, prepare));
        differences.push_back(longer.back() - seconds_of(less, prepare));
        total += 2 * longer.back();
    }
    return std::max(median(differences), 0.01 * median(longer));
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

ggml_ptr new_context(size_t n_tensors, bool with_graph) {
    const size_t graph = with_graph ? ggml_graph_overhead_custom(n_tensors, false) : 0;
    ggml_ptr ctx(ggml_init({/*mem_size=*/n_tensors * ggml_tensor_overhead() + graph, nullptr, /*no_alloc=*/true}));
    if (!ctx) {
        throw std::bad_alloc();
    }
    return ctx;
}

std::vector<float> some_values(size_t n) {
    std::vector<float> values(n);
    uint32_t state = 1;
    for (float & value : values) {
        state = state * 1664525u + 1013904223u; // the generator of Numerical Recipes
        value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
    }
    return values;
}

machine::machine(int32_t n_threads) {
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

void machine::allocate(ggml_cgraph * graph) {
    ggml_backend_sched_reset(sched_.get());
    if (!ggml_backend_sched_alloc_graph(sched_.get(), graph)) {
        throw std::bad_alloc();
    }
}

void machine::compute(ggml_cgraph * graph) {
    if (ggml_backend_sched_graph_compute(sched_.get(), graph) != GGML_STATUS_SUCCESS) {
        throw lm_error(LM_DECODE_FAILED, "ggml could not compute the graph");
    }
}

void machine::add(ggml_backend_dev_t device, int32_t n_threads) {
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
        const double batch = product_seconds(cpu, {weights.tensors.front()}, SPEED_BATCH);
        const auto n_bytes = static_cast<double>(weights.tensors.size() * ROWS * ggml_row_size(*found, SPEED_COLUMNS));
        common_json result = common_json::object();
        result["type"] = type_name(*found);
        result["repacked"] = where.extra;
        result["buffer"] = std::string(ggml_backend_buft_name(where.type));
        result["flops_per_second"] = 2.0 * ROWS * SPEED_COLUMNS * SPEED_BATCH / batch;
        result["bytes_per_second"] = n_bytes / one;
        *out = lm_string_copy(result.dump_safe());
    });
}
