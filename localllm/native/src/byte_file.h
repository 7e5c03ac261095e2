// A file that is read in ranges, from anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

class lm_byte_file {
  public:
    // Throws LM_LOAD_FAILED if it cannot be opened.
    explicit lm_byte_file(const std::string & path);

    uint64_t size() const { return n_bytes; }
    const std::string & path() const { return name; }
    // Throws LM_LOAD_FAILED if the file ends before, or cannot be read.
    void read(uint64_t offset, void * out, size_t size);

  private:
    struct closer {
        void operator()(std::FILE * file) const { std::fclose(file); }
    };

    std::string name;
    std::unique_ptr<std::FILE, closer> file;
    uint64_t n_bytes = 0;
};
