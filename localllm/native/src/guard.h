// What keeps C++ on its side of the interface: errors become status codes, dead handles are recognised.
#pragma once

#include "localllm.h"

#include "json.h"

#include <exception>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

// An error that already knows its status.
struct lm_error : std::runtime_error {
    lm_status status;
    lm_error(lm_status code, const std::string & message) : std::runtime_error(message), status(code) {}
};

[[noreturn]] inline void lm_invalid(const std::string & message) {
    throw lm_error(LM_INVALID_ARGUMENT, message);
}

inline void lm_require(bool condition, const char * message) {
    if (!condition) {
        lm_invalid(message);
    }
}

void lm_set_last_error(const std::string & message);

// While one lives, a failed assertion of llama.cpp on this thread is thrown as an exception instead of ending the
// process.
class lm_assertion_scope {
  public:
    lm_assertion_scope();
    ~lm_assertion_scope();
    lm_assertion_scope(const lm_assertion_scope &) = delete;
    lm_assertion_scope & operator=(const lm_assertion_scope &) = delete;
};

// Collects the error messages that llama.cpp logs on this thread while it lives: they hold the reason of a failed load.
class lm_error_capture {
  public:
    lm_error_capture();
    ~lm_error_capture();
    lm_error_capture(const lm_error_capture &) = delete;
    lm_error_capture & operator=(const lm_error_capture &) = delete;
    std::string text() const; // one line, "" if nothing was logged
};

// Runs `body` and turns whatever it throws into a status. `fallback` is the status of errors that have none of their
// own.
template <typename F> lm_status lm_guard(lm_status fallback, F && body) {
    try {
        lm_assertion_scope scope;
        std::forward<F>(body)();
        return LM_OK;
    } catch (const lm_error & e) {
        lm_set_last_error(e.what());
        return e.status;
    } catch (const common_json_error & e) {
        lm_set_last_error(std::string("json: ") + e.what());
        return LM_INVALID_ARGUMENT;
    } catch (const std::invalid_argument & e) {
        // llama.cpp's word for malformed input, invalid UTF-8 for one.
        lm_set_last_error(e.what());
        return fallback == LM_INTERNAL ? LM_INVALID_ARGUMENT : fallback;
    } catch (const std::bad_alloc &) {
        lm_set_last_error("out of memory");
        return LM_OUT_OF_MEMORY;
    } catch (const std::exception & e) {
        lm_set_last_error(e.what());
        return fallback;
    } catch (...) {
        lm_set_last_error("unknown exception");
        return LM_INTERNAL;
    }
}

// The handles that are alive, so that a freed or foreign pointer is refused and not followed.
void lm_handle_add(const void * handle, const char * kind);
bool lm_handle_remove(const void * handle, const char * kind);
void lm_handle_require(const void * handle, const char * kind);

// Throws what belongs to a result of llama_decode or llama_encode other than 0; `why` is what llama.cpp has logged.
void lm_require_decoded(int32_t result, const std::string & why);

// How many positions a model's table of learned positions has (GPT-2, StarCoder, BERT); INT32_MAX: it has no such
// table.
int64_t lm_n_positions(const llama_model & model);

// Refuses a batch with a position that the table does not have: llama.cpp would read beyond it, or fail an assertion on
// a thread of the computation, where it cannot be caught.
void lm_require_positions(const llama_model & model, const llama_batch & batch);

// Held by whoever changes a model's list of LoRA adapters, and by whatever has a context reserve its buffers, which
// reads that list: llama.cpp locks nothing, and the contexts of one model have a thread each.
std::mutex & lm_adapters_mutex();

// Held shared by whatever loads: fitting (lm_fit_create) puts a log function of its own in place of ours for a while,
// whose data lie on its stack, and holds it alone.
std::shared_mutex & lm_loading_mutex();

// Copies text for the caller, who frees it with lm_string_free().
char * lm_string_copy(const std::string & text);

// Text that came from outside, before llama.cpp's recursive readers see it.
void lm_check_text(const char * text, size_t size, const char * name);
std::string lm_checked_json(const char * json, const char * name);
