// Walks over llama.cpp's parsers of answers.
#pragma once

#include "chat-peg-parser.h"

#include <functional>
#include <string>
#include <vector>

using lm_parser_test = std::function<bool(common_peg_parser_id)>;

// A saved parser; an empty one of "".
common_peg_arena lm_loaded_parser(const std::string & saved);

// The parsers that a parser consists of.
std::vector<common_peg_parser_id> lm_inner_parsers(const common_peg_arena & arena, common_peg_parser_id id);
bool lm_is_tagged(const common_peg_arena & arena, common_peg_parser_id id, const char * tag);
// Whether a parser takes texts that no unwanted part takes any of.
bool lm_can_do_without(const common_peg_arena & arena, common_peg_parser_id id, const lm_parser_test & unwanted);
