// A format for calls in templates that have none, or none that keeps to schemas: JSON between tags.
#pragma once

#include "chat.h"
#include "turns.h"

#include <string>
#include <vector>

// The tools as a system message tells of them.
std::string lm_described_tools(const std::vector<common_chat_tool> & tools);
// Calls and results of earlier turns as the text that they are in this format.
lm_turns lm_in_plain_text(const lm_turns & all);

common_chat_params lm_apply_own_format(const common_chat_templates * templates,
                                       const common_chat_templates_inputs & inputs);
