// Chat templates with tools: calls that are forced, tools together with a schema, templates that know no tools.
#pragma once

#include "chat.h"

#include <string>
#include <vector>

struct lm_applied {
    common_chat_params params;
    std::string fallback; // the saved parser for an answer that `params.parser` cannot read; "": none
};

// Renders messages and says how the answer is made and read. `inputs.tools` are what the model is shown, `callable`
// what it may call, with the schemas that its arguments have to satisfy.
lm_applied lm_apply_template(const common_chat_templates * templates, const common_chat_templates_inputs & inputs,
                             const std::vector<common_chat_tool> & callable);
