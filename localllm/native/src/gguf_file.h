// Headers of GGUF files: what a file is for, and single values of its metadata.
#pragma once

#include "ggml.h"
#include "gguf.h"

#include <cstdint>
#include <memory>
#include <string>

struct gguf_deleter {
    void operator()(gguf_context * ctx) const { gguf_free(ctx); }
};

using gguf_ptr = std::unique_ptr<gguf_context, gguf_deleter>;

struct ggml_deleter {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
};

using ggml_ptr = std::unique_ptr<ggml_context, ggml_deleter>;

// Throws LM_LOAD_FAILED with llama.cpp's reason. `tensors`, if given, gets the tensors without their data.
gguf_ptr gguf_header(const char * path, ggml_ptr * tensors = nullptr);

// "" if the key is missing or no text.
std::string gguf_string(const gguf_context * ctx, const char * key);

// An unsigned scalar of any width; 0 if the key is missing.
uint64_t gguf_count(const gguf_context * ctx, const std::string & key);

// What the file is for: the kinds that lm_file_info names.
std::string gguf_kind(const gguf_context * ctx);

// How the file could draft for another model: a name of llama.cpp's; "" if it cannot.
std::string gguf_draft_kind(const gguf_context * ctx);

// Throws if llama.cpp cannot be trusted with the file: metadata that would end the process, or, unless `any_kind`, a
// file that cannot stand alone.
void lm_require_model_file(const gguf_context * header, bool any_kind);
