// Chat templates with tools: calls that are forced, tools together with a schema, templates that know no tools.
#pragma once

#include "chat.h"

#include <set>
#include <string>
#include <vector>

// Whether a template's own format for calls is one that llama.cpp knows, whatever the tools are. Takes milliseconds.
bool lm_knows_calls(const common_chat_templates * templates, const common_chat_templates_inputs & with_tools);

struct lm_applied {
    common_chat_params params;
    std::string fallback; // the saved parser for an answer that `params.parser` cannot read; "": none
};

// What the model may call, with the schemas that its arguments have to satisfy.
struct lm_callable {
    std::vector<common_chat_tool> tools;
    std::set<std::string> strict; // names of those whose arguments have to satisfy them in a free call as well
};

// Renders messages and says how the answer is made and read. `inputs.tools` are what the model is shown; `native` is
// what lm_knows_calls says.
lm_applied lm_apply_template(const common_chat_templates * templates, const common_chat_templates_inputs & inputs,
                             const lm_callable & callable, bool native);
