// SamplingParams as JSON to llama.cpp's parameters.
#pragma once

#include "common.h"
#include "thought.h"

#include <string>

struct lm_sampling {
    common_params_sampling common;
    lm_thought_params thought;
};

lm_sampling lm_parse_sampling(const llama_vocab * vocab, const std::string & json);
