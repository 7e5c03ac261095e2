// Grammars before they are used: where they are wrong, and what they take.
#pragma once

#include "llama.h"

#include <string>

// Throws LM_GRAMMAR with line and column where `grammar` is no GBNF. `vocab` is for grammars that name tokens, or NULL.
void lm_require_grammar(const std::string & grammar, const llama_vocab * vocab);
