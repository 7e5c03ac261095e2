// Changes of the grammars that llama.cpp makes for answers with calls.
#pragma once

#include "chat.h"

#include <functional>
#include <string>

// The whole grammar of a parser.
std::string lm_grammar_of(const common_peg_arena & arena);

// The grammar of an answer after a change of its parser. Throws if the change cannot be made in the grammar.
std::string lm_regrammared(const common_chat_params & params, const std::function<void(common_peg_arena &)> & change);

// Nothing but calls, and reasoning before them; one call unless `parallel`.
std::string lm_calls_only(const common_chat_params & params, bool parallel);
// What the grammar allows, with one call at most.
std::string lm_one_call_at_most(const common_chat_params & params);

// The grammar of the whole answer in the place of one that only begins where a call does; "" if there is none that
// holds in every call and leaves the model free to make none.
std::string lm_from_the_beginning(const common_chat_params & params);

// A grammar whose rules all have a prefix, so that two can be put together.
std::string lm_with_prefix(const std::string & grammar, const std::string & prefix);
std::string lm_either(const std::string & calls, const std::string & answer);
