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

// The median of a few runs, in seconds: what a model meets, too, of other programs and of threads that fell asleep.
// The first, in which memory is touched for the first time, does not count. `prepare` comes before each and is not
// timed.
double median_seconds(
    const std::function<void()> & run, int repetitions = SPEED_REPETITIONS,
    const std::function<void()> & prepare = [] {});

// By how much `more` takes longer than `less`, in seconds: the median of what they differ by when they run in turn, so
// that both have met the same state of the machine. At least a hundredth of `more`: nothing takes no time at all.
double difference_seconds(const std::function<void()> & more, const std::function<void()> & less, int repetitions,
                          const std::function<void()> & prepare);

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
