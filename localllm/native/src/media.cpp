// Pictures and sound for a model with a projector (llama.cpp's mtmd): a prompt in pieces, and what the encoder makes
// of them.
#include "fields.h"
#include "gguf_file.h"
#include "guard.h"

#include "json.h"
#include "mtmd.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace {

constexpr const char * PROJECTOR = "projector";
constexpr const char * MEDIA = "media";
constexpr int32_t MAX_PARTS = 1 << 16;
constexpr uint32_t MAX_SIDE = 1u << 16;
constexpr int32_t N_SECTIONS = 4; // positions of a row with M-RoPE: time, height, width, and one that is not used

struct projector_deleter {
    void operator()(mtmd_context * ctx) const { mtmd_free(ctx); }
};

} // namespace

struct lm_projector {
    std::unique_ptr<mtmd_context, projector_deleter> ctx;
    int32_t n_embd = 0;
    std::mutex encoding; // an mtmd_context has one graph
};

struct lm_media {
    const lm_projector * projector = nullptr;
    mtmd::input_chunks chunks{mtmd_input_chunks_init()};
    std::vector<int32_t> parts;                  // by chunk: the part it came from, -1 for text
    std::vector<std::vector<llama_pos>> places;  // by chunk: see lm_media_piece.positions
    std::vector<std::vector<char>> descriptions; // by chunk
};

namespace {

lm_projector & require_projector(const lm_projector * handle) {
    lm_handle_require(handle, PROJECTOR);
    return *const_cast<lm_projector *>(handle);
}

const lm_media & require_media(const lm_media * handle) {
    lm_handle_require(handle, MEDIA);
    return *handle;
}

mtmd_context_params parse(const common_json & options) {
    lm_require(options.is_object(), "json: not an object");
    mtmd_context_params params = mtmd_context_params_default();
    params.print_timings = false;
    params.warmup = false;
    for (const auto & [key, value] : options.items()) {
        if (key == "use_gpu") {
            lm_require(value.is_boolean(), "use_gpu: neither true nor false");
            params.use_gpu = value.get<bool>();
        } else if (key == "device") {
            params.device = ggml_backend_dev_by_name(value.get<std::string>().c_str());
            lm_require(params.device != nullptr, "device: there is none of this name");
        } else if (key == "n_threads") {
            params.n_threads = lm_whole(value, key, 1, 512);
        } else if (key == "flash_attn") {
            params.flash_attn_type = static_cast<llama_flash_attn_type>(lm_whole(value, key, -1, 1));
        } else if (key == "image_min_tokens") {
            params.image_min_tokens = lm_whole(value, key, 1, 1 << 20);
        } else if (key == "image_max_tokens") {
            params.image_max_tokens = lm_whole(value, key, 1, 1 << 20);
        } else if (key == "batch_max_tokens") {
            params.batch_max_tokens = lm_whole(value, key, 1, 1 << 20);
        } else {
            lm_invalid(key + ": unknown field");
        }
    }
    return params;
}

// What each part goes by while it is taken to pieces: always of the same length, so that a description without it is
// the same for the same picture in another place.
std::string part_name(int32_t at) {
    char text[32];
    std::snprintf(text, sizeof(text), "localllm-part-%08x", static_cast<unsigned>(at));
    return text;
}

int32_t part_of(const mtmd_input_chunk * chunk) {
    const char * name = mtmd_input_chunk_get_id(chunk);
    lm_require(name && std::strlen(name) == part_name(0).size(), "parts: a piece does not say where it came from");
    return static_cast<int32_t>(std::strtoul(name + std::strlen(name) - 8, nullptr, 16));
}

// How the encoder is going to see it (sizes after scaling, padding, place among tiles): everything but the pixels.
std::vector<char> describe(const mtmd_input_chunk * chunk) {
    size_t size = 0;
    lm_require(mtmd_input_chunk_save(chunk, nullptr, 0, &size) == 0, "parts: a piece cannot be described");
    std::vector<char> bytes(size);
    lm_require(mtmd_input_chunk_save(chunk, bytes.data(), size, &size) == 0, "parts: a piece cannot be described");
    const std::string name = mtmd_input_chunk_get_id(chunk);
    const auto at = std::search(bytes.begin(), bytes.end(), name.begin(), name.end());
    if (at != bytes.end()) {
        std::fill_n(at, name.size(), '-');
    }
    return bytes;
}

// Positions of rows, section by section, of a chunk that begins at `begin`.
void add_places(const mtmd_context * ctx, const mtmd_input_chunk * chunk, llama_pos begin,
                std::vector<llama_pos> & places) {
    const auto n = static_cast<int32_t>(mtmd_input_chunk_get_n_tokens(chunk));
    const mtmd_image_tokens * image = mtmd_input_chunk_get_tokens_image(chunk);
    const int32_t n_sections = mtmd_decode_use_mrope(ctx) ? N_SECTIONS : 1;
    const size_t first = places.size();
    places.resize(first + static_cast<size_t>(n) * static_cast<size_t>(n_sections));
    for (int32_t i = 0; i < n; i++) {
        const auto at = static_cast<uint32_t>(begin + i);
        mtmd_decoder_pos pos = {at, at, at, at};
        if (n_sections > 1 && image) {
            pos = mtmd_image_tokens_get_decoder_pos(image, begin, static_cast<size_t>(i));
        }
        const uint32_t sections[N_SECTIONS] = {pos.t, pos.y, pos.x, pos.z};
        for (int32_t s = 0; s < n_sections; s++) {
            places[first + static_cast<size_t>(s * n + i)] = static_cast<llama_pos>(sections[s]);
        }
    }
}

// At 0 and at 1, since some sections count from where the chunk begins, and others do not.
std::vector<llama_pos> places_of(const mtmd_context * ctx, const mtmd_input_chunk * chunk) {
    std::vector<llama_pos> places;
    add_places(ctx, chunk, 0, places);
    add_places(ctx, chunk, 1, places);
    return places;
}

void check_part(const lm_part & part, const lm_projector & projector) {
    switch (part.kind) {
    case LM_PART_TEXT:
        lm_check_text(part.text, part.size, "parts: text");
        return;
    case LM_PART_IMAGE:
        lm_require(part.width >= 1 && part.height >= 1 && part.width <= MAX_SIDE && part.height <= MAX_SIDE,
                   "parts: a picture without pixels, or wider or higher than 65536");
        lm_require(mtmd_support_vision(projector.ctx.get()), "parts: this projector takes no pictures");
        return;
    case LM_PART_AUDIO:
        lm_require(part.n_samples >= 2 && part.n_samples <= INT32_MAX,
                   "parts: sound of fewer than two samples, or too many");
        lm_require(mtmd_support_audio(projector.ctx.get()), "parts: this projector takes no sound");
        return;
    default:
        lm_invalid("parts: of an unknown kind");
    }
}

mtmd::bitmap bitmap_of(const lm_part & part, int32_t at) {
    mtmd::bitmap bitmap;
    bitmap.ptr.reset(part.kind == LM_PART_IMAGE ? mtmd_bitmap_init(part.width, part.height, part.pixels)
                                                : mtmd_bitmap_init_from_audio(part.n_samples, part.samples));
    bitmap.set_id(part_name(at).c_str());
    mtmd_bitmap_set_mergeable(bitmap.ptr.get(), part.frame);
    return bitmap;
}

// Texts and pictures in the form that mtmd takes; they have to outlive what is made of them.
struct input {
    std::vector<mtmd_input_text> texts;
    std::vector<mtmd::bitmap> bitmaps;
    std::vector<mtmd_input_part> parts;
    std::vector<const mtmd_input_part *> pointers;

    input(const lm_part * from, int32_t n) : parts(static_cast<size_t>(n)) {
        texts.reserve(static_cast<size_t>(n));
        bitmaps.reserve(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; i++) {
            const lm_part & part = from[i];
            mtmd_input_part & to = parts[static_cast<size_t>(i)];
            if (part.kind == LM_PART_TEXT) {
                texts.push_back({part.text ? part.text : "", part.size, false, part.parse_special});
                to.text = &texts.back();
            } else {
                bitmaps.push_back(bitmap_of(part, i));
                to.bitmap = bitmaps.back().ptr.get();
            }
            pointers.push_back(&to);
        }
    }
};

int32_t n_chunks(const lm_media & media) {
    return static_cast<int32_t>(media.chunks.size());
}

} // namespace

lm_status lm_projector_open(const llama_model * model, const char * path, const char * json, lm_projector ** out) {
    return lm_guard(LM_LOAD_FAILED, [&] {
        lm_require(model, "model: NULL");
        lm_require(path, "path: NULL");
        lm_require(out, "out: NULL");
        const gguf_ptr header = gguf_header(path);
        if (gguf_kind(header.get()) != "projector") {
            throw lm_error(LM_UNSUPPORTED, "this file is a " + gguf_kind(header.get()) + ", not a projector (mmproj)");
        }
        lm_require_model_file(header.get(), true);
        const mtmd_context_params params = parse(common_json::parse(lm_checked_json(json, "json")));
        const std::shared_lock<std::shared_mutex> gate(lm_loading_mutex());
        lm_error_capture errors;
        auto projector = std::make_unique<lm_projector>();
        projector->ctx.reset(mtmd_init_from_file(path, model, params));
        if (!projector->ctx) {
            const std::string why = errors.text();
            throw lm_error(LM_LOAD_FAILED, why.empty() ? "llama.cpp could not load the projector" : why);
        }
        projector->n_embd = llama_model_n_embd_inp(model);
        lm_handle_add(projector.get(), PROJECTOR);
        *out = projector.release();
    });
}

lm_status lm_projector_free(lm_projector * projector) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(projector, PROJECTOR)) {
            lm_invalid("projector: not a live handle");
        }
        delete projector;
    });
}

lm_status lm_projector_info(const lm_projector * handle, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_projector & projector = require_projector(handle);
        lm_require(out, "out: NULL");
        common_json info = common_json::object();
        info["image"] = mtmd_support_vision(projector.ctx.get());
        info["audio"] = mtmd_support_audio(projector.ctx.get());
        info["samples_per_second"] = mtmd_get_audio_sample_rate(projector.ctx.get());
        info["n_sections"] = mtmd_decode_use_mrope(projector.ctx.get()) ? N_SECTIONS : 1;
        info["n_embd"] = projector.n_embd;
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_media_split(const lm_projector * handle, const lm_part * parts, int32_t n, bool add_special,
                         lm_media ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_projector & projector = require_projector(handle);
        lm_require(n >= 1 && n <= MAX_PARTS && parts, "parts: NULL, none, or too many");
        lm_require(out, "out: NULL");
        for (int32_t i = 0; i < n; i++) {
            check_part(parts[i], projector);
        }
        const input from(parts, n);
        auto media = std::make_unique<lm_media>();
        media->projector = &projector;
        const mtmd_context * ctx = projector.ctx.get();
        lm_error_capture errors;
        if (mtmd_tokenize_from_parts(ctx, media->chunks.ptr.get(), from.pointers.data(), from.pointers.size(),
                                     add_special) != 0) {
            lm_invalid("parts: llama.cpp cannot prepare them: " + errors.text());
        }
        for (int32_t i = 0; i < n_chunks(*media); i++) {
            const mtmd_input_chunk * chunk = media->chunks[static_cast<size_t>(i)];
            const bool text = mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT;
            media->parts.push_back(text ? -1 : part_of(chunk));
            media->places.push_back(text ? std::vector<llama_pos>() : places_of(ctx, chunk));
            media->descriptions.push_back(text ? std::vector<char>() : describe(chunk));
        }
        lm_handle_add(media.get(), MEDIA);
        *out = media.release();
    });
}

lm_status lm_media_free(lm_media * media) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(media, MEDIA)) {
            lm_invalid("media: not a live handle");
        }
        delete media;
    });
}

lm_status lm_media_size(const lm_media * handle, int32_t * out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_media & media = require_media(handle);
        lm_require(out, "out: NULL");
        *out = n_chunks(media);
    });
}

lm_status lm_media_get(const lm_media * handle, int32_t index, lm_media_piece * out) {
    return lm_guard(LM_INTERNAL, [&] {
        const lm_media & media = require_media(handle);
        lm_require(index >= 0 && index < n_chunks(media), "index: there is no such piece");
        lm_require(out, "out: NULL");
        const auto at = static_cast<size_t>(index);
        const mtmd_input_chunk * chunk = media.chunks[at];
        lm_media_piece piece = {};
        piece.part = media.parts[at];
        piece.n_tokens = static_cast<int32_t>(mtmd_input_chunk_get_n_tokens(chunk));
        piece.n_positions = mtmd_input_chunk_get_n_pos(chunk);
        piece.causal = true;
        if (piece.part < 0) {
            size_t n = 0;
            piece.tokens = mtmd_input_chunk_get_tokens_text(chunk, &n);
        } else {
            piece.causal = !mtmd_decode_use_non_causal(media.projector->ctx.get(), chunk);
            piece.positions = media.places[at].data();
            piece.description = reinterpret_cast<const uint8_t *>(media.descriptions[at].data());
            piece.size = media.descriptions[at].size();
        }
        *out = piece;
    });
}

lm_status lm_media_encode(lm_projector * handle, const lm_media_ref * pieces, int32_t n, float * rows, size_t n_floats,
                          int32_t * n_passes) {
    return lm_guard(LM_DECODE_FAILED, [&] {
        lm_projector & projector = require_projector(handle);
        lm_require(n >= 1 && pieces, "pieces: NULL, or none");
        lm_require(rows && n_passes, "rows, n_passes: NULL");
        std::vector<const mtmd_input_chunk *> chunks;
        std::vector<size_t> sizes;
        size_t needed = 0;
        for (int32_t i = 0; i < n; i++) {
            const lm_media & media = require_media(pieces[i].media);
            lm_require(media.projector == &projector, "pieces: of another projector");
            lm_require(pieces[i].index >= 0 && pieces[i].index < n_chunks(media), "pieces: there is no such piece");
            lm_require(media.parts[static_cast<size_t>(pieces[i].index)] >= 0, "pieces: text needs no encoder");
            chunks.push_back(media.chunks[static_cast<size_t>(pieces[i].index)]);
            sizes.push_back(mtmd_input_chunk_get_n_tokens(chunks.back()) * static_cast<size_t>(projector.n_embd));
            needed += sizes.back();
        }
        lm_require(n_floats >= needed, "n_floats: too small");
        const std::lock_guard<std::mutex> lock(projector.encoding);
        lm_error_capture errors;
        int32_t passes = 0;
        for (size_t first = 0; first < chunks.size(); passes++) {
            const mtmd::batch_ptr batch(mtmd_batch_init(projector.ctx.get()));
            size_t end = first;
            while (end < chunks.size() && mtmd_batch_add_chunk(batch.get(), chunks[end]) == 0) {
                end++;
            }
            if (end == first || mtmd_batch_encode(batch.get()) != 0) {
                throw lm_error(LM_DECODE_FAILED, "llama.cpp could not encode a picture or sound: " + errors.text());
            }
            for (; first < end; first++) {
                const float * from = mtmd_batch_get_output_embd(batch.get(), chunks[first]);
                lm_require(from != nullptr, "pieces: one of them was not encoded");
                std::memcpy(rows, from, sizes[first] * sizeof(float));
                rows += sizes[first];
            }
        }
        *n_passes = passes;
    });
}
