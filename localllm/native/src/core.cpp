// Version, errors, assertions, handles, log and devices.
#include "guard.h"

#include "../src/unicode.h" // not common/unicode.h
#include "build-info.h"
#include "common.h"
#include "ggml-backend.h"
#include "json.h"
#include "log.h"
#include "mtmd-helper.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#endif

namespace {

constexpr size_t MAX_LOG_MESSAGES = 4096;
constexpr size_t MAX_JSON_DEPTH = 256;

thread_local std::string last_error;
thread_local int assertion_depth = 0;

std::mutex handles_mutex;
std::map<const void *, const char *> handles;

struct message {
    int32_t level;
    std::string text;
    std::thread::id thread;
};

std::mutex log_mutex;
std::deque<message> log_messages;
std::atomic<int32_t> log_count{0};
std::atomic<int32_t> log_level{GGML_LOG_LEVEL_INFO};
thread_local int32_t last_level = GGML_LOG_LEVEL_INFO;
thread_local int capture_depth = 0;
thread_local std::string captured_errors;
thread_local const volatile int32_t * interrupt_flag = nullptr;
thread_local bool interrupt_happened = false;

// Held for as long as something is loaded, see guard.h.
std::mutex * adapters_mutex = new std::mutex;
std::shared_mutex * loading_mutex = new std::shared_mutex;

#ifndef _WIN32
// When the process forks, only the thread that forks is in the child. What the short locks guard is whole there, as
// they are taken before; the long ones, which others may hold for seconds, are new there.
void before_fork() {
    handles_mutex.lock();
    log_mutex.lock();
}

void after_fork() {
    log_mutex.unlock();
    handles_mutex.unlock();
}

void after_fork_in_child() {
    after_fork();
    adapters_mutex = new std::mutex;
    loading_mutex = new std::shared_mutex;
}

[[maybe_unused]] const int at_fork = pthread_atfork(before_fork, after_fork, after_fork_in_child);
#endif

void on_log(ggml_log_level level, const char * text, void *) {
    if (!text) {
        return;
    }
    // "[ 12/ 272] blk.0.attn_q.weight ...": no other threads of the quantization run at that moment.
    if (interrupt_flag && *interrupt_flag != 0 && level == GGML_LOG_LEVEL_INFO && text[0] == '[') {
        interrupt_happened = true;
        throw std::runtime_error("it was cancelled");
    }
    if (level == GGML_LOG_LEVEL_CONT) {
        level = static_cast<ggml_log_level>(last_level);
    } else {
        last_level = level;
    }
    if (capture_depth > 0 && level >= GGML_LOG_LEVEL_ERROR) {
        captured_errors += text;
    }
    if (level < log_level.load(std::memory_order_relaxed)) {
        return;
    }
    std::lock_guard<std::mutex> lock(log_mutex);
    if (log_messages.size() >= MAX_LOG_MESSAGES) {
        log_messages.pop_front();
    }
    log_messages.push_back({level, text, std::this_thread::get_id()});
    log_count.store(static_cast<int32_t>(log_messages.size()), std::memory_order_relaxed);
}

// ggml calls this instead of printing; it ends the process when we return.
void on_assertion(const char * message) {
    if (assertion_depth > 0) {
        throw lm_error(LM_INTERNAL, std::string("llama.cpp: ") + message);
    }
    std::fprintf(stderr, "localllm: fatal error in llama.cpp: %s\n", message);
}

// Tables that llama.cpp makes when a vocabulary needs them first. A process that forks while a thread makes one would
// leave its child waiting for that thread for ever, in __cxa_guard_acquire: they are made before there are threads that
// load.
void make_tables() {
    unicode_cpt_flags_from_cpt(0);
    unicode_byte_to_utf8(0);
    unicode_utf8_to_byte(unicode_byte_to_utf8(0));
    unicode_regex_split("a1", {"\\p{L}"}, false);
}

std::once_flag init_flag;

} // namespace

void lm_set_last_error(const std::string & message) {
    last_error = message;
}

lm_assertion_scope::lm_assertion_scope() {
    assertion_depth++;
}
lm_assertion_scope::~lm_assertion_scope() {
    assertion_depth--;
}

lm_error_capture::lm_error_capture() {
    if (capture_depth++ == 0) {
        captured_errors.clear();
    }
}

lm_error_capture::~lm_error_capture() {
    capture_depth--;
}

std::string lm_error_capture::text() const {
    std::string line;
    for (const char c : captured_errors) {
        if (c != '\n') {
            line += c;
        } else if (!line.empty() && line.back() != ' ') {
            line += "; ";
        }
    }
    while (!line.empty() && (line.back() == ' ' || line.back() == ';')) {
        line.pop_back();
    }
    return line;
}

lm_log_interrupt::lm_log_interrupt(const int32_t * flag) {
    interrupt_flag = flag;
    interrupt_happened = false;
}

lm_log_interrupt::~lm_log_interrupt() {
    interrupt_flag = nullptr;
}

bool lm_log_interrupt::happened() const {
    return interrupt_happened;
}

std::mutex & lm_adapters_mutex() {
    return *adapters_mutex;
}

std::shared_mutex & lm_loading_mutex() {
    return *loading_mutex;
}

void lm_handle_add(const void * handle, const char * kind) {
    std::lock_guard<std::mutex> lock(handles_mutex);
    handles[handle] = kind;
}

bool lm_handle_remove(const void * handle, const char * kind) {
    std::lock_guard<std::mutex> lock(handles_mutex);
    auto it = handles.find(handle);
    if (it == handles.end() || std::strcmp(it->second, kind) != 0) {
        return false;
    }
    handles.erase(it);
    return true;
}

void lm_handle_require(const void * handle, const char * kind) {
    std::lock_guard<std::mutex> lock(handles_mutex);
    auto it = handles.find(handle);
    if (it == handles.end() || std::strcmp(it->second, kind) != 0) {
        lm_invalid(std::string(kind) + ": not a live handle");
    }
}

char * lm_string_copy(const std::string & text) {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (!copy) {
        throw std::bad_alloc();
    }
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

void lm_check_text(const char * text, size_t size, const char * name) {
    if (!text && size > 0) {
        lm_invalid(std::string(name) + ": NULL");
    }
    if (size > INT32_MAX) {
        lm_invalid(std::string(name) + ": longer than 2 GiB");
    }
}

std::string lm_checked_json(const char * json, const char * name) {
    if (!json) {
        lm_invalid(std::string(name) + ": NULL");
    }
    size_t depth = 0;
    bool in_string = false;
    for (const char * c = json; *c; c++) {
        if (in_string) {
            if (*c == '\\' && c[1]) {
                c++;
            } else if (*c == '"') {
                in_string = false;
            }
        } else if (*c == '"') {
            in_string = true;
        } else if (*c == '[' || *c == '{') {
            if (++depth > MAX_JSON_DEPTH) {
                lm_invalid(std::string(name) + ": nested deeper than 256 levels");
            }
        } else if ((*c == ']' || *c == '}') && depth > 0) {
            depth--;
        }
    }
    return json;
}

int32_t lm_abi_version(void) {
    return LM_ABI_VERSION;
}

const char * lm_last_error(void) {
    return last_error.c_str();
}

void lm_string_free(char * text) {
    std::free(text);
}

lm_status lm_init(const char * backend_dir) {
    return lm_guard(LM_INTERNAL, [&] {
        const std::string dir = backend_dir ? backend_dir : "";
        std::call_once(init_flag, [&] {
            llama_log_set(on_log, nullptr);
            mtmd_helper_log_set(on_log, nullptr);
            // llama-common writes to the terminal by a thread of its own; its errors reach the caller as exceptions.
            common_log_set_verbosity_thold(-1);
            common_log_pause(common_log_main());
            ggml_set_abort_callback(on_assertion);
#ifdef GGML_BACKEND_DL
            ggml_backend_load_all_from_path(dir.c_str());
#endif
            llama_backend_init();
            make_tables();
        });
    });
}

lm_status lm_build_info(char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        common_json info = common_json::object();
        info["abi"] = LM_ABI_VERSION;
        info["llama_commit"] = std::string(llama_commit());
        info["llama_version"] = std::string(llama_version());
        info["compiler"] = std::string(llama_compiler());
#ifdef GGML_BACKEND_DL
        info["backend_dl"] = true;
#else
        info["backend_dl"] = false;
#endif
        info["system_info"] = std::string(llama_print_system_info());
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_devices(char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        static const char * const TYPES[] = {"cpu", "gpu", "igpu", "accelerator", "meta"};
        common_json devices = common_json::array();
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_dev_t device = ggml_backend_dev_get(i);
            size_t free_bytes = 0;
            size_t total_bytes = 0;
            ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
            const auto type = static_cast<size_t>(ggml_backend_dev_type(device));
            common_json entry = common_json::object();
            entry["name"] = std::string(ggml_backend_dev_name(device));
            entry["description"] = std::string(ggml_backend_dev_description(device));
            entry["type"] = std::string(type < sizeof(TYPES) / sizeof(TYPES[0]) ? TYPES[type] : "other");
            entry["backend"] = std::string(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
            entry["memory_free_bytes"] = static_cast<uint64_t>(free_bytes);
            entry["memory_total_bytes"] = static_cast<uint64_t>(total_bytes);
            devices.push_back(entry);
        }
        *out = lm_string_copy(devices.dump_safe());
    });
}

int32_t lm_log_pending(void) {
    return log_count.load(std::memory_order_relaxed);
}

void lm_log_set_level(int32_t level) {
    log_level.store(level, std::memory_order_relaxed);
}

lm_status lm_log_take(char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(out, "out: NULL");
        std::deque<message> taken;
        {
            std::lock_guard<std::mutex> lock(log_mutex);
            taken.swap(log_messages);
            log_count.store(0, std::memory_order_relaxed);
        }
        const auto self = std::this_thread::get_id();
        common_json messages = common_json::array();
        for (const auto & m : taken) {
            common_json entry = common_json::object();
            entry["level"] = m.level;
            entry["text"] = m.text;
            entry["thread"] = m.thread == self;
            messages.push_back(entry);
        }
        *out = lm_string_copy(messages.dump_safe());
    });
}
