#include "lilicorr_candidates.h"

#include "guard.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "llama-context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// A vocabulary is looked through in every slot: worth the vector units of the machine at hand, which this library is
// not compiled for.
#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_MACHINE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_MACHINE
#endif

namespace {

constexpr int32_t N_LANES = 16;
constexpr int32_t N_BLOCK = 64 * N_LANES; // values that are added up in 32 bits

// exp(x) for x <= 0, to about a unit in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Unlike
// std::exp it has no branch, and goes through vector units.
inline float exp_of(float x) {
    x = x > -87.0f ? x : -87.0f; // the smallest normal number: 1e-38 of the largest term
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts
    const float p =
        1.0f +
        r * (1.0f + r * (0.5f + r * (1.6666667e-1f + r * (4.1666668e-2f + r * (8.3333338e-3f + r * 1.3888889e-3f)))));
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

// The natural logarithm of the sum of exp(x).
FOR_EACH_MACHINE float log_sum_exp(const float * x, int32_t n, float largest) {
    double sum = 0.0;
    int32_t at = 0;
    for (; at + N_BLOCK <= n; at += N_BLOCK) {
        float lanes[N_LANES] = {};
        for (int32_t i = 0; i < N_BLOCK; i += N_LANES) {
            for (int32_t lane = 0; lane < N_LANES; lane++) {
                lanes[lane] += exp_of(x[at + i + lane] - largest);
            }
        }
        for (const float lane : lanes) {
            sum += static_cast<double>(lane);
        }
    }
    for (; at < n; at++) {
        sum += static_cast<double>(exp_of(x[at] - largest));
    }
    return largest + static_cast<float>(std::log(sum));
}

// Keeps the k largest in order. Most blocks of a vocabulary have none of them, which one look at their maximum says.
class largest_of {
  public:
    largest_of(int32_t n, llama_token * tokens, float * numbers) : k(n), ids(tokens), values(numbers) {
        std::fill_n(values, k, -std::numeric_limits<float>::infinity());
        for (int32_t i = 0; i < k; i++) {
            ids[i] = i;
        }
    }

    void look_at(const float * x, int32_t n) {
        int32_t at = 0;
        for (; at + N_LANES <= n; at += N_LANES) {
            float most = x[at];
            for (int32_t lane = 1; lane < N_LANES; lane++) {
                most = std::max(most, x[at + lane]);
            }
            if (most > values[k - 1]) {
                insert_all(x, at, at + N_LANES);
            }
        }
        insert_all(x, at, n);
    }

  private:
    void insert_all(const float * x, int32_t begin, int32_t end) {
        for (int32_t i = begin; i < end; i++) {
            if (x[i] > values[k - 1]) {
                int32_t place = k - 1;
                for (; place > 0 && x[i] > values[place - 1]; place--) {
                    values[place] = values[place - 1];
                    ids[place] = ids[place - 1];
                }
                values[place] = x[i];
                ids[place] = i;
            }
        }
    }

    int32_t k;
    llama_token * ids;
    float * values;
};

} // namespace

void lilicorr_candidates(const float * logits, int64_t n_rows, int32_t n_vocab, int32_t k, llama_token * ids,
                         float * logprobs) {
    for (int64_t i = 0; i < n_rows; i++, logits += n_vocab, ids += k, logprobs += k) {
        largest_of(k, ids, logprobs).look_at(logits, n_vocab);
        const float norm = log_sum_exp(logits, n_vocab, logprobs[0]);
        for (int32_t rank = 0; rank < k; rank++) {
            logprobs[rank] -= norm;
        }
    }
}

// ---- in the graph ---------------------------------------------------------------------------------------------------

namespace {

struct top_logprobs {
    int32_t k;
    bool * supported; // out, of backend_init
};

top_logprobs & state_of(llama_sampler * sampler) {
    return *static_cast<top_logprobs *>(sampler->ctx);
}

// log p_i = x_i - x_0 + log p_0: only the best one's probability, which is never too small for a logarithm, is needed.
void add_top_logprobs(llama_sampler * sampler, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
    const int64_t n = ggml_nelements(data->logits);
    const int32_t k = state_of(sampler).k;
    ggml_tensor * row = ggml_reshape_1d(ctx, data->logits, n);
    ggml_tensor * some = ggml_top_k(ctx, row, k); // in no order
    ggml_tensor * values = ggml_get_rows(ctx, ggml_reshape_2d(ctx, row, 1, n), some);
    ggml_tensor * order = ggml_argsort(ctx, ggml_reshape_1d(ctx, values, k), GGML_SORT_ORDER_DESC);
    ggml_tensor * sorted = ggml_get_rows(ctx, ggml_reshape_2d(ctx, values, 1, k), order);
    ggml_tensor * ids = ggml_get_rows(ctx, ggml_reshape_2d(ctx, some, 1, k), order);
    ggml_tensor * first = ggml_view_1d(ctx, ids, 1, 0);
    ggml_tensor * p = ggml_get_rows(ctx, ggml_reshape_2d(ctx, ggml_soft_max(ctx, row), 1, n), first);
    sorted = ggml_reshape_1d(ctx, sorted, k);
    ggml_tensor * norm = ggml_sub(ctx, ggml_view_1d(ctx, sorted, 1, 0), ggml_log(ctx, ggml_reshape_1d(ctx, p, 1)));
    data->logits = ggml_sub(ctx, sorted, norm);
    data->candidates = ggml_reshape_1d(ctx, ids, k);
}

bool device_can(llama_sampler * sampler, ggml_backend_dev_t device) {
    constexpr size_t N_TENSORS = 64;
    constexpr int64_t N_VOCAB = 128 * 1024;
    ggml_init_params params = {N_TENSORS * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true};
    const ggml_context_ptr ctx(ggml_init(params));
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    llama_sampler_data data = {ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, N_VOCAB), nullptr, nullptr, nullptr};
    add_top_logprobs(sampler, ctx.get(), graph, &data);
    ggml_build_forward_expand(graph, data.logits);
    ggml_build_forward_expand(graph, data.candidates);
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        if (!ggml_backend_dev_supports_op(device, ggml_graph_node(graph, i))) {
            return false;
        }
    }
    return true;
}

bool init_on(llama_sampler * sampler, ggml_backend_buffer_type_t buffers, uint32_t) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buffers);
    if (!device) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    const bool can = device && device_can(sampler, device);
    *state_of(sampler).supported = can;
    return can;
}

const char * name_of(const llama_sampler *) {
    return "lilicorr-candidates";
}

// Only its part in the graph is used.
void leave_alone(llama_sampler *, llama_token_data_array *) {}

void free_state(llama_sampler * sampler) {
    delete &state_of(sampler);
}

llama_sampler * new_chain(int32_t k, bool * supported) {
    static llama_sampler_i functions = [] {
        llama_sampler_i table = {};
        table.name = name_of;
        table.apply = leave_alone;
        table.free = free_state;
        table.backend_init = init_on;
        table.backend_apply = add_top_logprobs;
        return table;
    }();
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init(&functions, new top_logprobs{k, supported}));
    return chain;
}

} // namespace

lilicorr_graph_candidates::lilicorr_graph_candidates(llama_context * context, int32_t n_slots, int32_t n_outputs,
                                                     int32_t k)
    : draft(context) {
    const uint32_t room = draft->get_cparams().n_outputs_max_per_seq;
    if (room < static_cast<uint32_t>(n_outputs)) {
        throw lm_error(LM_UNSUPPORTED,
                       "candidates: 'graph' needs a draft context with n_outputs_max_per_seq of at least " +
                           std::to_string(n_outputs) + ", the block; it has " + std::to_string(room));
    }
    bool supported = true;
    for (int32_t slot = 0; slot < n_slots && supported; slot++) {
        chains.push_back(new_chain(k, &supported));
        supported = llama_set_sampler(draft, slot, chains.back()) && supported;
    }
    if (!supported) {
        detach();
        throw lm_error(LM_UNSUPPORTED, "candidates: the draft's device cannot choose them in the graph");
    }
}

lilicorr_graph_candidates::~lilicorr_graph_candidates() {
    detach();
}

void lilicorr_graph_candidates::detach() {
    for (size_t slot = 0; slot < chains.size(); slot++) {
        llama_set_sampler(draft, static_cast<llama_seq_id>(slot), nullptr);
        llama_sampler_free(chains[slot]);
    }
    chains.clear();
}
