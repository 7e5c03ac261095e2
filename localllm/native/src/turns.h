// Messages as a template is given them.
#pragma once

#include "chat.h"

#include <string>
#include <vector>

using lm_turns = std::vector<common_chat_msg>;

// What `from` says behind what `to` says.
void lm_append_message(common_chat_msg & to, const common_chat_msg & from);
void lm_add_to_system(lm_turns & all, const std::string & text);

// Renders messages; where the template refuses them as they are, those in a row of one speaker as one.
common_chat_params lm_apply_turns(const common_chat_templates * templates, const common_chat_templates_inputs & inputs);
