#include "byte_file.h"

#include "guard.h"

#include "ggml.h"

namespace {

bool seek(std::FILE * file, uint64_t offset, int whence) {
#ifdef _WIN32
    return _fseeki64(file, static_cast<int64_t>(offset), whence) == 0;
#else
    return fseeko(file, static_cast<off_t>(offset), whence) == 0;
#endif
}

int64_t tell(std::FILE * file) {
#ifdef _WIN32
    return _ftelli64(file);
#else
    return ftello(file);
#endif
}

} // namespace

lm_byte_file::lm_byte_file(const std::string & path) : name(path), file(ggml_fopen(path.c_str(), "rb")) {
    const int64_t end = file && seek(file.get(), 0, SEEK_END) ? tell(file.get()) : -1;
    if (end < 0) {
        throw lm_error(LM_LOAD_FAILED, path + ": cannot be read");
    }
    n_bytes = static_cast<uint64_t>(end);
}

void lm_byte_file::read(uint64_t offset, void * out, size_t size) {
    if (offset > n_bytes || size > n_bytes - offset) {
        throw lm_error(LM_LOAD_FAILED, name + ": the file ends too early");
    }
    if (!seek(file.get(), offset, SEEK_SET) || std::fread(out, 1, size, file.get()) != size) {
        throw lm_error(LM_LOAD_FAILED, name + ": cannot be read");
    }
}
