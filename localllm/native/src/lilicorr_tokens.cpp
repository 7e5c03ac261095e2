#include "lilicorr_tokens.h"

#include <algorithm>
#include <utility>

namespace {

constexpr size_t GENERATION_BYTES = 16u << 20;

} // namespace

lilicorr_tokens::lilicorr_tokens(const ggml_tensor & embedding, lilicorr_head & projecting)
    : table(embedding), head(projecting), n_hidden(static_cast<size_t>(projecting.shape().n_hidden)),
      capacity(std::max<size_t>(1, GENERATION_BYTES / (n_hidden * sizeof(float)))) {}

void lilicorr_tokens::gather(const llama_token * ids, size_t n, float * out) {
    std::vector<llama_token> missing;
    std::unordered_map<llama_token, size_t> places;
    std::vector<std::pair<size_t, size_t>> later; // row of `out`, row of what is computed
    for (size_t i = 0; i < n; i++) {
        if (!copy_known(ids[i], out + i * n_hidden)) {
            const auto [at, fresh] = places.try_emplace(ids[i], missing.size());
            if (fresh) {
                missing.push_back(ids[i]);
            }
            later.emplace_back(i, at->second);
        }
    }
    compute(missing);
    for (const auto & [row, place] : later) {
        std::copy_n(computed.data() + place * n_hidden, n_hidden, out + row * n_hidden);
    }
    for (size_t i = 0; i < missing.size(); i++) {
        keep(missing[i], computed.data() + i * n_hidden);
    }
}

bool lilicorr_tokens::copy_known(llama_token id, float * out) {
    auto at = young.places.find(id);
    if (at != young.places.end()) {
        std::copy_n(young.rows.data() + at->second * n_hidden, n_hidden, out);
        return true;
    }
    at = old.places.find(id);
    if (at == old.places.end()) {
        return false;
    }
    std::copy_n(old.rows.data() + at->second * n_hidden, n_hidden, out);
    keep(id, out);
    return true;
}

void lilicorr_tokens::keep(llama_token id, const float * row) {
    if (young.places.size() >= capacity) {
        std::swap(young, old);
        young.places.clear();
        young.rows.clear();
    }
    young.places[id] = young.places.size();
    young.rows.insert(young.rows.end(), row, row + n_hidden);
}

void lilicorr_tokens::read(llama_token id, float * out) {
    const size_t size = ggml_row_size(table.type, table.ne[0]);
    const size_t offset = static_cast<size_t>(id) * table.nb[1];
    const uint8_t * from = static_cast<const uint8_t *>(table.data) + offset;
    if (!ggml_backend_buffer_is_host(table.buffer)) {
        quantized.resize(size);
        ggml_backend_tensor_get(&table, quantized.data(), offset, size);
        from = quantized.data();
    }
    if (table.type == GGML_TYPE_F32) {
        std::copy_n(from, size, reinterpret_cast<uint8_t *>(out));
    } else {
        ggml_get_type_traits(table.type)->to_float(from, out, table.ne[0]);
    }
}

void lilicorr_tokens::compute(const std::vector<llama_token> & ids) {
    const auto n_embd = static_cast<size_t>(table.ne[0]);
    raw.resize(ids.size() * n_embd);
    computed.resize(ids.size() * n_hidden);
    for (size_t i = 0; i < ids.size(); i++) {
        read(ids[i], raw.data() + i * n_embd);
    }
    head.project(raw.data(), static_cast<int32_t>(ids.size()), computed.data());
}
