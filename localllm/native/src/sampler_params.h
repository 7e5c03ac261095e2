// SamplingParams as JSON to llama.cpp's parameters.
#pragma once

#include "common.h"

#include <string>

common_params_sampling lm_parse_sampling(const llama_vocab * vocab, const std::string & json);
