// A limit on what a chat template may do: it is a program from a file that somebody else made.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define LM_LIMIT_API __declspec(dllexport)
#else
#define LM_LIMIT_API __attribute__((visibility("default")))
#endif

// While one lives, templates of this thread may take so many steps altogether, and so much of the stack.
class LM_LIMIT_API lm_template_limit {
  public:
    lm_template_limit();
    ~lm_template_limit();
    lm_template_limit(const lm_template_limit &) = delete;
    lm_template_limit & operator=(const lm_template_limit &) = delete;

    // Which limit was met, though the exception may have lost its words on the way; NULL: none.
    const char * broken() const;

  private:
    size_t outer_left_;
    uintptr_t outer_stack_;
    const char * outer_broken_;
};

// Counts `n` steps; throws std::runtime_error if there are none left, or if calls are nested too deeply. Called from
// llama.cpp's Jinja engine, see CMakeLists.txt.
LM_LIMIT_API void lm_template_step(size_t n);
