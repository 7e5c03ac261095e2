#include "lilicorr_file.h"

#include "draft_file.h"
#include "guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

constexpr int32_t MAX_BLOCK = 1024; // as many as any drafter may draft

std::string shown(const std::vector<int64_t> & ne) {
    std::string text;
    for (const int64_t n : ne) {
        text += (text.empty() ? "" : " x ") + std::to_string(n);
    }
    return text;
}

bool is_plain(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

bool can_multiply(ggml_type type) {
    return is_plain(type) || (ggml_is_quantized(type) && ggml_get_type_traits(type)->to_float);
}

} // namespace

lilicorr_file::lilicorr_file(const std::string & path) : file(path) {
    try {
        header = gguf_header(path.c_str(), &infos);
    } catch (const lm_error & error) {
        fail(error.what());
    }
    read_shape();
    expect_all();
}

void lilicorr_file::fail(const std::string & what) const {
    throw lm_error(LM_LOAD_FAILED, file.path() + ": " + what);
}

int32_t lilicorr_file::count(const char * key, int32_t low) const {
    if (gguf_find_key(header.get(), key) < 0) {
        fail(std::string("the key ") + key + " is missing");
    }
    const uint64_t value = gguf_count(header.get(), key);
    if (value < static_cast<uint64_t>(low) || value > INT32_MAX / 4) {
        fail(std::string(key) + " is " + std::to_string(value) + ", not a number of at least " + std::to_string(low));
    }
    return static_cast<int32_t>(value);
}

float lilicorr_file::number(const char * key) const {
    const int64_t id = gguf_find_key(header.get(), key);
    if (id < 0 || gguf_get_kv_type(header.get(), id) != GGUF_TYPE_FLOAT32) {
        fail(std::string("the key ") + key + " is missing, or no 32-bit float");
    }
    const float value = gguf_get_val_f32(header.get(), id);
    if (!std::isfinite(value) || value < 0.0f) {
        fail(std::string(key) + " is no finite number of at least 0");
    }
    return value;
}

void lilicorr_file::read_shape() {
    const std::string architecture = gguf_string(header.get(), "general.architecture");
    const bool has_head = gguf_find_key(header.get(), "lilicorr.hidden_size") >= 0;
    if ((architecture != "lilicorr-head" && architecture != "dflash") || !has_head) {
        throw lm_error(LM_UNSUPPORTED, file.path() + ": this file has no LiLiCorr head (its architecture is '" +
                                           architecture + "'); one is in a file of its own, or in its draft's");
    }
    sizes.n_embd = count("dflash.embedding_length", 1);
    n_blocks = static_cast<uint64_t>(count("dflash.block_count", 1));
    const int32_t n_block = count("dflash.block_size", 2);
    if (n_block > MAX_BLOCK) {
        fail("dflash.block_size is " + std::to_string(n_block) + ", more than " + std::to_string(MAX_BLOCK));
    }
    sizes.n_slots = n_block - 1;
    sizes.n_hidden = count("lilicorr.hidden_size", 1);
    sizes.n_candidates = count("lilicorr.candidate_topk", 1);
    sizes.n_layers = count("lilicorr.num_layers", 1);
    sizes.n_heads = count("lilicorr.num_heads", 1);
    sizes.n_factors = count("lilicorr.factor_dim", 1);
    sizes.n_mlp = count("lilicorr.mlp_hidden_size", 1);
    sizes.rms_eps = number("dflash.attention.layer_norm_rms_epsilon");
    sizes.vector_eps = number("lilicorr.vector_eps");
    sizes.scale = number("lilicorr.logit_scale");
    if (sizes.n_hidden % sizes.n_heads != 0) {
        fail("lilicorr.hidden_size (" + std::to_string(sizes.n_hidden) + ") is no multiple of lilicorr.num_heads (" +
             std::to_string(sizes.n_heads) + ")");
    }
    if (sizes.vector_eps <= 0.0f || sizes.vector_eps >= 0.5f) {
        fail("lilicorr.vector_eps is not between 0 and 0.5");
    }
    if (sizes.scale <= 0.0f) {
        fail("lilicorr.logit_scale is 0");
    }
    if (static_cast<int64_t>(sizes.n_slots) * sizes.n_candidates > std::numeric_limits<int16_t>::max() ||
        sizes.n_layers > std::numeric_limits<int16_t>::max()) {
        fail("lilicorr.candidate_topk or lilicorr.num_layers is too large");
    }
}

const ggml_tensor & lilicorr_file::found(const std::string & name, const std::vector<int64_t> & ne) const {
    const ggml_tensor * tensor = ggml_get_tensor(infos.get(), name.c_str());
    if (!tensor) {
        fail("the tensor " + name + " is missing");
    }
    for (size_t i = 0; i < GGML_MAX_DIMS; i++) {
        if (tensor->ne[i] != (i < ne.size() ? ne[i] : 1)) {
            fail("the tensor " + name + " is " + shown({tensor->ne, tensor->ne + ggml_n_dims(tensor)}) +
                 ", by the keys of the file it is " + shown(ne));
        }
    }
    const int64_t id = gguf_find_tensor(header.get(), name.c_str());
    const uint64_t begin = gguf_get_data_offset(header.get()) + gguf_get_tensor_offset(header.get(), id);
    if (begin > file.size() || ggml_nbytes(tensor) > file.size() - begin) {
        fail("the file ends before the tensor " + name);
    }
    return *tensor;
}

// What is not a matrix is computed with in F32.
void lilicorr_file::expect(const std::string & part, const std::string & name, std::vector<int64_t> ne, bool matrix) {
    const ggml_tensor & tensor = found(name, ne);
    if (matrix ? !can_multiply(tensor.type) : !is_plain(tensor.type)) {
        throw lm_error(LM_UNSUPPORTED, file.path() + ": the tensor " + name + " has the type " +
                                           ggml_type_name(tensor.type) + ", which is not known for it");
    }
    parts[part] = {name, std::move(ne), matrix ? tensor.type : GGML_TYPE_F32};
    known[name] = true;
}

void lilicorr_file::expect_linear(const std::string & part, const std::string & name, int64_t n_in, int64_t n_out,
                                  bool scaled) {
    expect(part + ".weight", name + ".weight", {n_in, n_out}, true);
    expect(part + ".bias", name + ".bias", {n_out}, false);
    if (scaled && ggml_get_tensor(infos.get(), (name + ".scale").c_str())) {
        expect(part + ".scale", name + ".scale", {1}, false);
    }
}

// [x; a; x * a] goes through one matrix: as three, the part of the anchor is computed once for a block.
void lilicorr_file::expect_factors() {
    const int64_t n = sizes.n_hidden;
    const std::string name = "lilicorr.factor_input_proj";
    expect_linear("factor_input_proj", name, 3 * n, n, false);
    lilicorr_tensor whole = parts["factor_input_proj.weight"];
    parts.erase("factor_input_proj.weight");
    // Rows can only be cut between blocks of a quantized type.
    whole.type = n % ggml_blck_size(whole.type) == 0 ? whole.type : GGML_TYPE_F32;
    whole.ne = {n, n};
    for (const char * part : {"nodes", "anchor", "product"}) {
        parts[std::string("factor_") + part + ".weight"] = whole;
        whole.first_column += n;
    }
}

void lilicorr_file::expect_layer(int32_t layer) {
    const int64_t n = sizes.n_hidden;
    const std::string own = "layers." + std::to_string(layer);
    const std::string block = "blk." + std::to_string(n_blocks + static_cast<uint64_t>(layer));
    expect(own + ".attn_norm", block + ".attn_norm.weight", {n}, false);
    expect_linear(own + ".in_proj", "lilicorr." + own + ".attn.in_proj", n, 3 * n, false);
    expect_linear(own + ".out_proj", block + ".attn_output", n, n, true);
    expect(own + ".mlp_norm", block + ".ffn_norm.weight", {n}, false);
    expect_linear(own + ".mlp_up", block + ".ffn_up", n, sizes.n_mlp, true);
    expect_linear(own + ".mlp_down", block + ".ffn_down", sizes.n_mlp, n, true);
}

void lilicorr_file::expect_all() {
    const int64_t n = sizes.n_hidden;
    const int64_t n_nodes = sizes.n_nodes();
    const std::string features = "blk." + std::to_string(n_blocks + static_cast<uint64_t>(sizes.n_layers));
    if (sizes.projects_tokens()) {
        expect_linear("token_proj", "lilicorr.token_proj", sizes.n_embd, n, true);
    }
    expect_linear("pass_hidden_proj", "lilicorr.pass_hidden_proj", sizes.n_embd, n, true);
    expect_linear("context_proj", "lilicorr.context_proj", sizes.n_embd, n, true);
    expect("feature_norm.weight", features + ".ffn_norm.weight", {5}, false);
    expect("feature_norm.bias", features + ".ffn_norm.bias", {5}, false);
    expect_linear("feature_up", features + ".ffn_up", 5, n, false);
    expect_linear("feature_down", features + ".ffn_down", n, n, false);
    expect("slot_embedding", "lilicorr.slot_embedding.weight", {n, sizes.n_slots}, false);
    expect("rank_embedding", "lilicorr.rank_embedding.weight", {n, sizes.n_candidates}, false);
    expect("attention_bias", "lilicorr.attention_bias.bias", {n_nodes, n_nodes, sizes.n_heads}, false);
    for (int32_t layer = 0; layer < sizes.n_layers; layer++) {
        expect_layer(layer);
    }
    expect("output_norm", "lilicorr.output_norm.weight", {n}, false);
    expect("anchor_norm", "lilicorr.anchor_norm.weight", {n}, false);
    expect_factors();
    for (const char * name : {"out_head", "in_head", "anchor_out_head"}) {
        expect_linear(name, std::string("lilicorr.") + name, n, sizes.n_factors, false);
    }
    for (int64_t i = 0; i < gguf_get_n_tensors(header.get()); i++) {
        const std::string name = gguf_get_tensor_name(header.get(), i);
        const bool own =
            lm_is_head_tensor(name, n_blocks) || gguf_string(header.get(), "general.architecture") != "dflash";
        if (own && !known.count(name)) {
            throw lm_error(LM_UNSUPPORTED, file.path() + ": the tensor " + name + " is not known for a LiLiCorr head");
        }
    }
}

std::vector<uint8_t> lilicorr_file::data(const lilicorr_tensor & tensor) {
    const ggml_tensor & whole = *ggml_get_tensor(infos.get(), tensor.file_name.c_str());
    const int64_t id = gguf_find_tensor(header.get(), tensor.file_name.c_str());
    const uint64_t begin = gguf_get_data_offset(header.get()) + gguf_get_tensor_offset(header.get(), id);
    const int64_t n_rows = ggml_nrows(&whole);
    const int64_t n_columns = tensor.ne[0];
    const size_t whole_row = ggml_row_size(whole.type, whole.ne[0]);
    const size_t row = ggml_row_size(tensor.type, n_columns);
    const bool converts = tensor.type != whole.type;
    std::vector<uint8_t> result(row * static_cast<size_t>(n_rows));
    if (!converts && row == whole_row) {
        file.read(begin, result.data(), result.size());
        return result;
    }
    std::vector<uint8_t> buffer(whole_row);
    std::vector<float> numbers(static_cast<size_t>(whole.ne[0]));
    for (int64_t i = 0; i < n_rows; i++) {
        file.read(begin + static_cast<uint64_t>(i) * whole_row, buffer.data(), whole_row);
        const uint8_t * from = buffer.data();
        if (converts) {
            ggml_get_type_traits(whole.type)->to_float(buffer.data(), numbers.data(), whole.ne[0]);
            from = reinterpret_cast<const uint8_t *>(numbers.data());
        }
        from += ggml_row_size(tensor.type, tensor.first_column);
        std::copy(from, from + row, result.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(i)));
    }
    return result;
}
