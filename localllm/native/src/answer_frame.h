// Answers that a schema or grammar of the caller's constrains, in the frame that the family puts around an answer.
#pragma once

#include "chat-peg-parser.h"
#include "chat.h"

// A thought between the marks that the template names and the white space behind it, or nothing.
common_peg_parser lm_reasoning(common_chat_peg_builder & p, const common_chat_params & params);

// An answer without calls: free, or what `inputs.json_schema` or `inputs.grammar` says.
common_chat_params lm_apply_answer(const common_chat_templates * templates,
                                   const common_chat_templates_inputs & inputs);
// The same with nothing around the answer, neither a code fence nor white space; for use beside calls.
common_chat_params lm_apply_bare_answer(const common_chat_templates * templates,
                                        const common_chat_templates_inputs & inputs);
