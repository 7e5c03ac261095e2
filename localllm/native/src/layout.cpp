// lm_layout_json: how this compiler lays out every structure that the Python tables describe. See layout.inc.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wshadow" // llama.cpp's own headers
#endif

#include "localllm.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-opt.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"
#include "mtmd-helper.h"
#include "mtmd.h"

#include <cstddef>
#include <string>

namespace {

// Writes {"struct": {"size", "align", "fields": {"name": [offset, size]}}}.
class layout_writer {
  public:
    void structure(const char * name, size_t size, size_t align) {
        end_structure();
        json += json.empty() ? "{" : ", ";
        json += quoted(name) + ": {\"size\": " + std::to_string(size) + ", \"align\": " + std::to_string(align) +
                ", \"fields\": {";
        first_field = true;
    }

    void field(const char * name, size_t offset, size_t size) {
        json += first_field ? "" : ", ";
        json += quoted(name) + ": [" + std::to_string(offset) + ", " + std::to_string(size) + "]";
        first_field = false;
    }

    std::string finish() {
        end_structure();
        return json + "}";
    }

  private:
    static std::string quoted(const char * name) { return std::string("\"") + name + "\""; }

    void end_structure() {
        if (!json.empty()) {
            json += "}}";
        }
    }

    std::string json;
    bool first_field = true;
};

std::string layout() {
    layout_writer writer;
#define LM_STRUCT(name, type) writer.structure(#name, sizeof(type), alignof(type));
#define LM_FIELD(type, path) writer.field(#path, offsetof(type, path), sizeof(static_cast<type *>(nullptr)->path));
#include "layout.inc"
#undef LM_STRUCT
#undef LM_FIELD
    return writer.finish();
}

} // namespace

extern "C" LM_API const char * lm_layout_json(void) {
    try {
        static const std::string json = layout();
        return json.c_str();
    } catch (...) { // out of memory; the reader of an empty table reports every structure as missing
        return "{}";
    }
}
