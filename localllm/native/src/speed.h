// What the measurements of speed.cpp and speed_layer.cpp share: backends as llama.cpp uses them on a CPU, and a clock.
#pragma once

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "gguf_file.h"

#include <cstdint>
#include <functional>
#include <vector>

constexpr int64_t SPEED_COLUMNS = 2048;
constexpr int64_t SPEED_BATCH = 512; // llama.cpp's n_ubatch
constexpr int SPEED_REPETITIONS = 5;

// The lower quartile of a few runs, in seconds: other programs, and threads that fell asleep, only ever make it longer.
// The first, in which memory is touched for the first time, does not count. `prepare` comes before each and is not
// timed.
double quartile_seconds(
    const std::function<void()> & run, int repetitions = SPEED_REPETITIONS,
    const std::function<void()> & prepare = [] {});

void require_threads(int32_t n_threads);

ggml_backend_dev_t cpu_device();

ggml_ptr new_context(size_t n_tensors, bool with_graph = false);

// Values without a pattern that a kernel could profit from, between -1 and 1.
std::vector<float> some_values(size_t n);

// The backends that llama.cpp computes with when no layer is on a GPU.
class machine {
  public:
    static constexpr size_t MAX_NODES = 2048;

    explicit machine(int32_t n_threads);
    void allocate(ggml_cgraph * graph);
    void compute(ggml_cgraph * graph);

  private:
    void add(ggml_backend_dev_t device, int32_t n_threads);

    std::vector<ggml_backend_ptr> backends_;
    ggml_backend_sched_ptr sched_;
};
