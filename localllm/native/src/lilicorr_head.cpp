#include "lilicorr_head.h"

#include "guard.h"

#include <algorithm>
#include <cmath>

namespace {

constexpr int32_t N_FEATURES = 5;
constexpr float FEATURE_EPS = 1e-5f;  // of torch's LayerNorm, which the head is trained with
constexpr int32_t ROWS_AT_ONCE = 128; // of token embeddings

// More tensors than a computation has.
size_t tensors_of(const lilicorr_shape & shape) {
    return 128 + 64 * static_cast<size_t>(shape.n_layers);
}

ggml_context_ptr new_context(size_t n_tensors) {
    const size_t graph = ggml_graph_overhead_custom(n_tensors, false);
    ggml_init_params params = {n_tensors * ggml_tensor_overhead() + graph, nullptr, true};
    ggml_context_ptr ctx(ggml_init(params));
    if (!ctx) {
        throw std::bad_alloc();
    }
    return ctx;
}

ggml_tensor * input(ggml_context * ctx, const std::vector<int64_t> & ne) {
    ggml_tensor * tensor = ggml_new_tensor(ctx, GGML_TYPE_F32, static_cast<int>(ne.size()), ne.data());
    ggml_set_input(tensor);
    return tensor;
}

ggml_tensor * product(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b) {
    ggml_tensor * result = ggml_mul_mat(ctx, a, b);
    ggml_prec_set_acc(result, GGML_PREC_F32);
    return result;
}

// A matrix for all rows of a tensor of any shape, as one product: llama.cpp would make one for each of the further
// dimensions.
ggml_tensor * product_of_rows(ggml_context * ctx, ggml_tensor * matrix, ggml_tensor * x) {
    ggml_tensor * result = product(ctx, matrix, ggml_reshape_2d(ctx, x, x->ne[0], ggml_nrows(x)));
    return ggml_reshape_4d(ctx, result, matrix->ne[1], x->ne[1], x->ne[2], x->ne[3]);
}

// With zeros at the end of each row, up to what the fast kernels for products want.
ggml_tensor * padded(ggml_context * ctx, ggml_tensor * x) {
    constexpr int64_t STEP = 16;
    const auto missing = static_cast<int>(GGML_PAD(x->ne[0], STEP) - x->ne[0]);
    return missing == 0 ? x : ggml_pad(ctx, x, missing, 0, 0, 0);
}

void set_threads(ggml_backend_t backend, int32_t n_threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
    if (set) {
        set(backend, n_threads);
    }
}

// Of each candidate: log-probability, probability, distance from the best, rank from 0 to 1, whether it is the best.
void write_features(const lilicorr_shape & shape, const float * logprobs, float * out) {
    const int32_t n = shape.n_candidates;
    for (int32_t slot = 0; slot < shape.n_slots; slot++, logprobs += n) {
        const float best = *std::max_element(logprobs, logprobs + n);
        for (int32_t rank = 0; rank < n; rank++, out += N_FEATURES) {
            out[0] = logprobs[rank];
            out[1] = std::exp(logprobs[rank]);
            out[2] = logprobs[rank] - best;
            out[3] = n == 1 ? 0.0f : static_cast<float>(rank) / static_cast<float>(n - 1);
            out[4] = rank == 0 ? 1.0f : 0.0f;
        }
    }
}

} // namespace

lilicorr_head::lilicorr_head(lilicorr_file & file, ggml_backend_dev_t device, int32_t n_threads, int32_t max_blocks)
    : sizes(file.shape()), n_blocks_max(max_blocks) {
    describe_weights(file);
    if (!device || !choose(device, n_threads)) {
        if (!choose(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), n_threads)) {
            throw lm_error(LM_UNSUPPORTED, file.path() + ": no device of this build can compute the head");
        }
    }
    load(file);
    memory.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.get())));
    // The largest first: its buffer then is the one of all.
    ready(score_plans, max_blocks, &lilicorr_head::score_plan);
}

void lilicorr_head::describe_weights(const lilicorr_file & file) {
    weights = new_context(tensors_of(sizes));
    for (const auto & [name, tensor] : file.tensors()) {
        const int n_dims = static_cast<int>(tensor.ne.size());
        by_name[name] = ggml_new_tensor(weights.get(), tensor.type, n_dims, tensor.ne.data());
        ggml_set_name(by_name[name], name.c_str());
    }
}

bool lilicorr_head::choose(ggml_backend_dev_t device, int32_t n_threads) {
    backend.reset(device ? ggml_backend_dev_init(device, nullptr) : nullptr);
    if (!backend) {
        return false;
    }
    set_threads(backend.get(), n_threads);
    return supported(score_plan(n_blocks_max)) && supported(project_plan(ROWS_AT_ONCE));
}

bool lilicorr_head::supported(const plan & one) const {
    for (int i = 0; i < ggml_graph_n_nodes(one.graph); i++) {
        if (!ggml_backend_supports_op(backend.get(), ggml_graph_node(one.graph, i))) {
            return false;
        }
    }
    return true;
}

void lilicorr_head::load(lilicorr_file & file) {
    buffer.reset(ggml_backend_alloc_ctx_tensors(weights.get(), backend.get()));
    if (!buffer) {
        throw lm_error(LM_OUT_OF_MEMORY, file.path() + ": no memory for the head's weights");
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto & [name, tensor] : file.tensors()) {
        const std::vector<uint8_t> data = file.data(tensor);
        ggml_backend_tensor_set(by_name.at(name), data.data(), 0, data.size());
    }
}

// All plans lie in one buffer. When it has to grow, those that were laid out in the old one are made again.
const lilicorr_head::plan & lilicorr_head::ready(std::map<int32_t, plan> & plans, int32_t n, builder build) {
    plan & one = plans[n];
    if (one.graph && one.buffer == n_buffers) {
        return one;
    }
    one = (this->*build)(n);
    const size_t before = ggml_gallocr_get_buffer_size(memory.get(), 0);
    if (!ggml_gallocr_alloc_graph(memory.get(), one.graph)) {
        n_buffers++;
        throw lm_error(LM_OUT_OF_MEMORY, "no memory to compute the LiLiCorr head");
    }
    n_buffers += ggml_gallocr_get_buffer_size(memory.get(), 0) != before;
    one.buffer = n_buffers;
    return one;
}

void lilicorr_head::compute(const plan & one) {
    if (ggml_backend_graph_compute(backend.get(), one.graph) != GGML_STATUS_SUCCESS) {
        throw lm_error(LM_DECODE_FAILED, "the LiLiCorr head could not be computed");
    }
}

// ---- the computation ------------------------------------------------------------------------------------------------

ggml_tensor * lilicorr_head::weight(const std::string & name) const {
    return by_name.at(name);
}

ggml_tensor * lilicorr_head::linear(ggml_context * ctx, const std::string & name, ggml_tensor * x) const {
    x = product_of_rows(ctx, weight(name + ".weight"), x);
    const auto scale = by_name.find(name + ".scale");
    if (scale != by_name.end()) {
        x = ggml_mul(ctx, x, scale->second);
    }
    return ggml_add(ctx, x, weight(name + ".bias"));
}

ggml_tensor * lilicorr_head::normed(ggml_context * ctx, const std::string & name, ggml_tensor * x) const {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, sizes.rms_eps), weight(name));
}

ggml_tensor * lilicorr_head::features(ggml_context * ctx, ggml_tensor * x) const {
    x = ggml_mul(ctx, ggml_norm(ctx, x, FEATURE_EPS), weight("feature_norm.weight"));
    x = ggml_add(ctx, x, weight("feature_norm.bias"));
    return linear(ctx, "feature_down", ggml_silu(ctx, linear(ctx, "feature_up", x)));
}

// Between all nodes of a block, without a mask; the bias says how far apart their slots are.
ggml_tensor * lilicorr_head::attention(ggml_context * ctx, const std::string & layer, ggml_tensor * x,
                                       int64_t n) const {
    const int64_t n_nodes = sizes.n_nodes();
    const int64_t n_head = sizes.n_hidden / sizes.n_heads;
    ggml_tensor * all = linear(ctx, layer + ".in_proj", normed(ctx, layer + ".attn_norm", x));
    ggml_tensor * parts[3];
    for (size_t i = 0; i < 3; i++) {
        parts[i] = ggml_view_4d(ctx, all, n_head, sizes.n_heads, n_nodes, n, static_cast<size_t>(n_head) * all->nb[0],
                                all->nb[1], all->nb[2], i * static_cast<size_t>(sizes.n_hidden) * all->nb[0]);
    }
    ggml_tensor * q = ggml_cont(ctx, ggml_permute(ctx, parts[0], 0, 2, 1, 3));
    ggml_tensor * k = ggml_cont(ctx, ggml_permute(ctx, parts[1], 0, 2, 1, 3));
    ggml_tensor * v = ggml_cont(ctx, ggml_permute(ctx, parts[2], 1, 2, 0, 3));
    ggml_tensor * share = ggml_soft_max_ext(ctx, product(ctx, k, q), weight("attention_bias"),
                                            1.0f / std::sqrt(static_cast<float>(n_head)), 0.0f);
    x = ggml_cont(ctx, ggml_permute(ctx, product(ctx, padded(ctx, v), padded(ctx, share)), 0, 2, 1, 3));
    return linear(ctx, layer + ".out_proj", ggml_reshape_3d(ctx, x, sizes.n_hidden, n_nodes, n));
}

// All nodes of all blocks, after the last norm: [n_hidden, n_nodes, n].
ggml_tensor * lilicorr_head::lattice(plan & one, int64_t n) const {
    ggml_context * ctx = one.ctx.get();
    const int64_t n_candidates = sizes.n_candidates;
    const int64_t n_slots = sizes.n_slots;
    one.inputs["tokens"] = input(ctx, {sizes.n_hidden, n_candidates, n_slots, n});
    one.inputs["features"] = input(ctx, {N_FEATURES, n_candidates, n_slots, n});
    one.inputs["hidden"] = input(ctx, {sizes.n_embd, 1, n_slots, n});
    ggml_tensor * slots = ggml_reshape_3d(ctx, weight("slot_embedding"), sizes.n_hidden, 1, n_slots);
    ggml_tensor * x = ggml_add(ctx, one.inputs["tokens"], features(ctx, one.inputs["features"]));
    x = ggml_add(ctx, x, ggml_add(ctx, linear(ctx, "pass_hidden_proj", one.inputs["hidden"]), slots));
    x = ggml_add(ctx, x, weight("rank_embedding"));
    x = ggml_reshape_3d(ctx, x, sizes.n_hidden, sizes.n_nodes(), n);
    for (int32_t i = 0; i < sizes.n_layers; i++) {
        const std::string layer = "layers." + std::to_string(i);
        x = ggml_add(ctx, x, attention(ctx, layer, x, n));
        ggml_tensor * inner = linear(ctx, layer + ".mlp_up", normed(ctx, layer + ".mlp_norm", x));
        x = ggml_add(ctx, x, linear(ctx, layer + ".mlp_down", ggml_silu(ctx, inner)));
    }
    return normed(ctx, "output_norm", x);
}

// SiLU(W [x; a; x * a] + b), where the part of the anchor `a` is one vector for a block.
ggml_tensor * lilicorr_head::factors(ggml_context * ctx, ggml_tensor * x, ggml_tensor * anchor) const {
    ggml_tensor * once = product_of_rows(ctx, weight("factor_anchor.weight"), anchor);
    once = ggml_add(ctx, once, weight("factor_input_proj.bias"));
    ggml_tensor * both = product_of_rows(ctx, weight("factor_product.weight"), ggml_mul(ctx, x, anchor));
    both = ggml_add(ctx, product_of_rows(ctx, weight("factor_nodes.weight"), x), both);
    return ggml_silu(ctx, ggml_add(ctx, both, once));
}

lilicorr_head::plan lilicorr_head::score_plan(int32_t n) const {
    plan one;
    one.ctx = new_context(tensors_of(sizes));
    ggml_context * ctx = one.ctx.get();
    one.graph = ggml_new_graph_custom(ctx, tensors_of(sizes), false);
    const int64_t n_candidates = sizes.n_candidates;
    const int64_t n_slots = sizes.n_slots;
    const int64_t n_factors = sizes.n_factors;
    ggml_tensor * x = lattice(one, n);
    one.inputs["anchor"] = input(ctx, {sizes.n_embd, 1, n});
    ggml_tensor * anchor = normed(ctx, "anchor_norm", linear(ctx, "context_proj", one.inputs["anchor"]));
    ggml_tensor * f = factors(ctx, x, anchor);

    ggml_tensor * into = ggml_l2_norm(ctx, linear(ctx, "in_head", f), sizes.vector_eps);
    into = ggml_reshape_4d(ctx, into, n_factors, n_candidates, n_slots, n);
    ggml_tensor * from = ggml_l2_norm(ctx, linear(ctx, "anchor_out_head", anchor), sizes.vector_eps);
    from = ggml_reshape_4d(ctx, from, n_factors, 1, 1, n);
    const auto slots_of = [&](ggml_tensor * all, int64_t first, int64_t count) {
        return ggml_cont(ctx, ggml_view_4d(ctx, all, all->ne[0], n_candidates, count, n, all->nb[1], all->nb[2],
                                           all->nb[3], static_cast<size_t>(first) * all->nb[2]));
    };
    one.start = ggml_scale(ctx, product(ctx, slots_of(into, 0, 1), from), sizes.scale);
    ggml_set_output(one.start);
    ggml_build_forward_expand(one.graph, one.start);
    if (n_slots > 1) {
        ggml_tensor * before = ggml_reshape_4d(ctx, f, sizes.n_hidden, n_candidates, n_slots, n);
        before = ggml_l2_norm(ctx, linear(ctx, "out_head", slots_of(before, 0, n_slots - 1)), sizes.vector_eps);
        one.pair = ggml_scale(ctx, product(ctx, slots_of(into, 1, n_slots - 1), before), sizes.scale);
        ggml_set_output(one.pair);
        ggml_build_forward_expand(one.graph, one.pair);
    }
    return one;
}

lilicorr_head::plan lilicorr_head::project_plan(int32_t n) const {
    plan one;
    one.ctx = new_context(tensors_of(sizes));
    one.graph = ggml_new_graph_custom(one.ctx.get(), tensors_of(sizes), false);
    if (sizes.projects_tokens()) {
        one.inputs["rows"] = input(one.ctx.get(), {sizes.n_embd, n});
        one.start = linear(one.ctx.get(), "token_proj", one.inputs["rows"]);
        ggml_set_output(one.start);
        ggml_build_forward_expand(one.graph, one.start);
    }
    return one;
}

// ---- use ------------------------------------------------------------------------------------------------------------

void lilicorr_head::project(const float * rows, int32_t n, float * out) {
    const auto n_embd = static_cast<size_t>(sizes.n_embd);
    const auto n_hidden = static_cast<size_t>(sizes.n_hidden);
    if (!sizes.projects_tokens()) {
        std::copy_n(rows, n_embd * static_cast<size_t>(n), out);
        return;
    }
    while (n > 0) {
        // Few sizes, so that there are few plans: all rows that fit, or a power of two of them.
        int32_t count = ROWS_AT_ONCE;
        while (count / 2 >= n) {
            count /= 2;
        }
        const auto used = static_cast<size_t>(std::min(n, count));
        const plan & one = ready(project_plans, count, &lilicorr_head::project_plan);
        scratch.assign(n_embd * static_cast<size_t>(count), 0.0f);
        std::copy_n(rows, n_embd * used, scratch.begin());
        ggml_backend_tensor_set(one.inputs.at("rows"), scratch.data(), 0, scratch.size() * sizeof(float));
        compute(one);
        ggml_backend_tensor_get(one.start, out, 0, n_hidden * used * sizeof(float));
        rows += n_embd * used;
        out += n_hidden * used;
        n -= static_cast<int32_t>(used);
    }
}

void lilicorr_head::score(const lilicorr_inputs * blocks, int32_t n, lilicorr_scores * out) {
    const plan & one = ready(score_plans, n, &lilicorr_head::score_plan);
    scratch.resize(static_cast<size_t>(N_FEATURES) * static_cast<size_t>(sizes.n_nodes()));
    for (int32_t i = 0; i < n; i++) {
        const lilicorr_inputs & block = blocks[i];
        write_features(sizes, block.logprobs, scratch.data());
        for (const auto & [name, data] : {std::pair{"tokens", block.tokens},
                                          {"features", scratch.data()},
                                          {"hidden", block.hidden},
                                          {"anchor", block.anchor}}) {
            ggml_tensor * tensor = one.inputs.at(name);
            const size_t size = ggml_nbytes(tensor) / static_cast<size_t>(n);
            ggml_backend_tensor_set(tensor, data, size * static_cast<size_t>(i), size);
        }
    }
    compute(one);
    for (int32_t i = 0; i < n; i++) {
        const auto n_candidates = static_cast<size_t>(sizes.n_candidates);
        out[i].start.resize(n_candidates);
        out[i].pair.resize(static_cast<size_t>(sizes.n_slots - 1) * n_candidates * n_candidates);
        const size_t start_size = out[i].start.size() * sizeof(float);
        const size_t pair_size = out[i].pair.size() * sizeof(float);
        ggml_backend_tensor_get(one.start, out[i].start.data(), start_size * static_cast<size_t>(i), start_size);
        if (one.pair) {
            ggml_backend_tensor_get(one.pair, out[i].pair.data(), pair_size * static_cast<size_t>(i), pair_size);
        }
    }
}

int32_t lilicorr_walk(const lilicorr_shape & shape, const lilicorr_scores & scores, float p_min, int32_t * path) {
    const auto n = static_cast<size_t>(shape.n_candidates);
    const float * row = scores.start.data();
    for (int32_t slot = 0; slot < shape.n_slots; slot++) {
        // Of equal ones the first, which the draft finds more likely.
        const float * best = std::max_element(row, row + n);
        float sum = 0.0f;
        for (size_t i = 0; i < n; i++) {
            sum += std::exp(row[i] - *best);
        }
        if (1.0f / sum < p_min) {
            return slot;
        }
        path[slot] = static_cast<int32_t>(best - row);
        if (slot + 1 < shape.n_slots) {
            row = scores.pair.data() + (static_cast<size_t>(slot) * n + static_cast<size_t>(path[slot])) * n;
        }
    }
    return shape.n_slots;
}
