#include "draft_file.h"

#include "byte_file.h"
#include "guard.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr const char * HEAD_KEY = "lilicorr.hidden_size";

// What a virtual file is made of: bytes of its own, a range of another file, or zeros.
struct part {
    uint64_t begin; // in the virtual file
    uint64_t size;
    const uint8_t * bytes = nullptr;
    int64_t source = -1; // offset in the other file
};

class virtual_file {
  public:
    explicit virtual_file(const std::string & path) : original(path) {}

    void add_bytes(std::vector<uint8_t> && bytes) {
        header = std::move(bytes);
        add({n_bytes, header.size(), header.data(), -1});
    }
    void add_zeros(uint64_t size) { add({n_bytes, size, nullptr, -1}); }
    void add_range(uint64_t offset, uint64_t size) { add({n_bytes, size, nullptr, static_cast<int64_t>(offset)}); }

    void require(uint64_t offset, uint64_t size) const {
        if (offset > original.size() || size > original.size() - offset) {
            throw lm_error(LM_LOAD_FAILED, "the file ends too early");
        }
    }

    uint64_t size() const { return n_bytes; }

    size_t read(uint64_t offset, uint8_t * out, size_t size) {
        const auto wanted = static_cast<size_t>(std::min<uint64_t>(size, n_bytes - std::min(offset, n_bytes)));
        auto at = std::upper_bound(parts.begin(), parts.end(), offset,
                                   [](uint64_t value, const part & other) { return value < other.begin; });
        for (size_t done = 0; done < wanted;) {
            const part & from = at++ [-1];
            const uint64_t skipped = offset + done - from.begin;
            const auto n = static_cast<size_t>(std::min<uint64_t>(wanted - done, from.size - skipped));
            if (from.bytes) {
                std::memcpy(out + done, from.bytes + skipped, n);
            } else if (from.source >= 0) {
                original.read(static_cast<uint64_t>(from.source) + skipped, out + done, n);
            } else {
                std::memset(out + done, 0, n);
            }
            done += n;
        }
        return wanted;
    }

  private:
    void add(part next) {
        if (next.size > 0) {
            n_bytes += next.size;
            parts.push_back(next);
        }
    }

    lm_byte_file original;
    std::vector<uint8_t> header;
    std::vector<part> parts;
    uint64_t n_bytes = 0;
};

struct file_closer {
    void operator()(std::FILE * file) const { std::fclose(file); }
};

using file_ptr = std::unique_ptr<std::FILE, file_closer>;

#ifdef __GLIBC__

struct stream {
    virtual_file * file;
    uint64_t position = 0;
};

ssize_t read_stream(void * cookie, char * out, size_t size) {
    auto & state = *static_cast<stream *>(cookie);
    try {
        const size_t n = state.file->read(state.position, reinterpret_cast<uint8_t *>(out), size);
        state.position += n;
        return static_cast<ssize_t>(n);
    } catch (const std::exception &) { // libc is no place for it; llama.cpp says that it could not read
        return -1;
    }
}

int seek_stream(void * cookie, off64_t * offset, int whence) {
    auto & state = *static_cast<stream *>(cookie);
    const auto base = static_cast<int64_t>(whence == SEEK_SET   ? 0
                                           : whence == SEEK_CUR ? state.position
                                                                : state.file->size());
    if (base + *offset < 0) {
        return -1;
    }
    *offset += base;
    state.position = static_cast<uint64_t>(*offset);
    return 0;
}

int close_stream(void * cookie) {
    delete static_cast<stream *>(cookie);
    return 0;
}

file_ptr open_stream(virtual_file & file) {
    cookie_io_functions_t functions = {read_stream, nullptr, seek_stream, close_stream};
    return file_ptr(fopencookie(new stream{&file}, "rb", functions));
}

#else

// Without streams of one's own, a temporary file that is gone when it is closed.
file_ptr open_stream(virtual_file & file) {
    file_ptr copy(std::tmpfile());
    std::vector<uint8_t> buffer(1 << 20);
    for (uint64_t at = 0; copy && at < file.size();) {
        const size_t n = file.read(at, buffer.data(), buffer.size());
        if (std::fwrite(buffer.data(), 1, n, copy.get()) != n) {
            copy.reset();
        }
        at += n;
    }
    if (copy) {
        std::rewind(copy.get());
    }
    return copy;
}

#endif

ggml_tensor * new_tensor(ggml_context * ctx, const char * name, int64_t ne0, int64_t ne1) {
    ggml_tensor * tensor = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, ne0, ne1);
    ggml_set_name(tensor, name);
    return tensor;
}

int64_t n_tokens(const gguf_context * header) {
    const int64_t id = gguf_find_key(header, "tokenizer.ggml.tokens");
    return id >= 0 && gguf_get_kv_type(header, id) == GGUF_TYPE_ARRAY ? static_cast<int64_t>(gguf_get_arr_n(header, id))
                                                                      : 0;
}

// llama.cpp reads convolutions only beside the selector of a DFlash2 draft. One of zeros changes neither hidden rows
// nor logits; with it, though, the keys that scale logits would be heeded, which they are not without.
std::vector<ggml_tensor *> add_selector(ggml_context * ctx, gguf_context * header) {
    const uint64_t width = gguf_count(header, "dflash.embedding_length");
    const int64_t vocabulary = n_tokens(header);
    if (width < 2 || width > INT32_MAX || vocabulary < 1) {
        throw lm_error(LM_LOAD_FAILED, "dflash.embedding_length or tokenizer.ggml.tokens: missing, or too small");
    }
    gguf_set_val_u32(header, "dflash.selector_rank", 1);
    gguf_set_val_u32(header, "dflash.selector_top_k", 1);
    gguf_remove_key(header, "dflash.logit_scale");
    gguf_remove_key(header, "dflash.final_logit_softcapping");
    return {new_tensor(ctx, "selector_predecessor.weight", 1, vocabulary),
            new_tensor(ctx, "selector_successor.weight", 1, vocabulary),
            new_tensor(ctx, "selector_hidden.weight", static_cast<int64_t>(width), 1)};
}

std::vector<uint8_t> bytes_of(const gguf_context * header) {
    std::vector<uint8_t> bytes(gguf_get_meta_size(header));
    gguf_get_meta_data(header, bytes.data());
    return bytes;
}

// The file without its head: a header of its own before the other tensors' data where they are.
std::unique_ptr<virtual_file> without_head(const char * path, const gguf_context * header) {
    ggml_ptr tensors;
    const gguf_ptr original = gguf_header(path, &tensors);
    const gguf_ptr reduced(gguf_init_empty());
    gguf_set_kv(reduced.get(), header);
    gguf_remove_key(reduced.get(), "general.alignment"); // offsets are counted anew, by the default
    ggml_init_params params = {4 * ggml_tensor_overhead(), nullptr, true};
    const ggml_ptr added(ggml_init(params));

    const uint64_t n_blocks = gguf_count(header, "dflash.block_count");
    auto file = std::make_unique<virtual_file>(path);
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    bool convolves = false;
    for (int64_t i = 0; i < gguf_get_n_tensors(original.get()); i++) {
        const char * name = gguf_get_tensor_name(original.get(), i);
        const uint64_t begin = gguf_get_data_offset(original.get()) + gguf_get_tensor_offset(original.get(), i);
        file->require(begin, gguf_get_tensor_size(original.get(), i));
        if (lm_is_head_tensor(name, n_blocks)) {
            continue;
        }
        convolves = convolves || std::strcmp(name, "blk.0.attn_conv_base") == 0;
        gguf_add_tensor(reduced.get(), ggml_get_tensor(tensors.get(), name));
        ranges.emplace_back(begin, gguf_get_tensor_size(original.get(), i));
    }
    uint64_t n_zeros = 0;
    if (convolves && gguf_find_tensor(original.get(), "selector_hidden.weight") < 0) {
        for (const ggml_tensor * tensor : add_selector(added.get(), reduced.get())) {
            gguf_add_tensor(reduced.get(), tensor);
            n_zeros += GGML_PAD(ggml_nbytes(tensor), gguf_get_alignment(reduced.get()));
        }
    }
    file->add_bytes(bytes_of(reduced.get()));
    for (const auto & [begin, size] : ranges) {
        file->add_range(begin, size);
        file->add_zeros(GGML_PAD(size, gguf_get_alignment(reduced.get())) - size);
    }
    file->add_zeros(n_zeros);
    return file;
}

} // namespace

bool lm_is_head_tensor(const std::string & name, uint64_t n_blocks) {
    if (name.rfind("lilicorr.", 0) == 0) {
        return true;
    }
    if (name.rfind("blk.", 0) != 0) {
        return false;
    }
    const size_t n_digits = name.find_first_not_of("0123456789", 4) - 4;
    return n_digits > 0 && n_digits < 10 && std::stoul(name.substr(4, n_digits)) >= n_blocks;
}

llama_model * lm_load_model_file(const char * path, const llama_model_params & params, const gguf_context * header) {
    if (gguf_string(header, "general.architecture") != "dflash" || gguf_find_key(header, HEAD_KEY) < 0) {
        return llama_model_load_from_file(path, params);
    }
    if (gguf_count(header, "split.count") > 1) {
        throw lm_error(LM_UNSUPPORTED, "a draft with its head in it has to be one file: join its parts");
    }
    const auto file = without_head(path, header);
    const file_ptr opened = open_stream(*file);
    if (!opened) {
        throw lm_error(LM_LOAD_FAILED, "the draft could not be taken apart from its head");
    }
    // There is no file to map, only memory that can be locked.
    const bool locks = params.load_mode == LLAMA_LOAD_MODE_MLOCK || params.load_mode == LLAMA_LOAD_MODE_MMAP_MLOCK;
    llama_model_params read = params;
    read.load_mode = locks ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE;
    return llama_model_load_from_file_ptr(opened.get(), read);
}
