#include "template_limit.h"

#include <stdexcept>

namespace {

// A thousand messages take about a hundred thousand steps, and this many some seconds.
constexpr size_t STEPS = 8000000;
// A thread has 512 KiB or more, and no template that llama.cpp comes with uses a tenth of this.
constexpr uintptr_t STACK_BYTES = 320 * 1024;

thread_local size_t left = SIZE_MAX;
thread_local uintptr_t stack = 0; // where it was when the limit began; 0: there is none
thread_local const char * broken_limit = nullptr;

[[noreturn]] void fail(const char * reason) {
    broken_limit = reason;
    left = 0;
    throw std::runtime_error(reason);
}

} // namespace

lm_template_limit::lm_template_limit() : outer_left_(left), outer_stack_(stack), outer_broken_(broken_limit) {
    const char here = 0;
    left = STEPS;
    stack = reinterpret_cast<uintptr_t>(&here);
    broken_limit = nullptr;
}

lm_template_limit::~lm_template_limit() {
    left = outer_left_;
    stack = outer_stack_;
    broken_limit = outer_broken_;
}

const char * lm_template_limit::broken() const {
    return broken_limit;
}

void lm_template_step(size_t n) {
    if (!stack) {
        return;
    }
    const char here = 0;
    const auto now = reinterpret_cast<uintptr_t>(&here);
    if ((now > stack ? now - stack : stack - now) > STACK_BYTES) {
        fail("the chat template is nested too deeply, or calls itself without end");
    }
    if (n > left) {
        fail(broken_limit ? broken_limit : "the chat template takes more than 8,000,000 steps");
    }
    left -= n;
}
