// DFlash drafts with a LiLiCorr head in the same file, which llama.cpp refuses: the head's tensors are left out while
// it loads the rest.
#pragma once

#include "gguf_file.h"

#include "llama.h"

#include <string>

// Of the head and not of the draft: tensors of its own, and the blocks behind the draft's.
bool lm_is_head_tensor(const std::string & name, uint64_t n_blocks);

// llama_model_load_from_file, also for such a draft. NULL and a logged reason, as there. `header` is that of the file.
llama_model * lm_load_model_file(const char * path, const llama_model_params & params, const gguf_context * header);
