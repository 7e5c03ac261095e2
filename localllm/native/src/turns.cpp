#include "turns.h"

#include <exception>

namespace {

bool same_speaker(const common_chat_msg & a, const common_chat_msg & b) {
    return a.role == b.role && a.role != "tool" && a.tool_calls.empty() && b.tool_calls.empty();
}

std::vector<common_chat_msg_content_part> parts_of(const common_chat_msg & message) {
    auto parts = message.content_parts;
    if (!message.content.empty()) {
        parts.insert(parts.begin(), {"text", message.content});
    }
    return parts;
}

} // namespace

void lm_append_message(common_chat_msg & to, const common_chat_msg & from) {
    if (to.content_parts.empty() && from.content_parts.empty()) {
        to.content += (to.content.empty() || from.content.empty() ? "" : "\n\n") + from.content;
    } else {
        auto parts = parts_of(to);
        const auto more = parts_of(from);
        parts.insert(parts.end(), more.begin(), more.end());
        to.content.clear();
        to.content_parts = std::move(parts);
    }
    to.reasoning_content +=
        (to.reasoning_content.empty() || from.reasoning_content.empty() ? "" : "\n\n") + from.reasoning_content;
}

namespace {

// Messages in a row of one speaker as one.
lm_turns merged(const lm_turns & all) {
    lm_turns result;
    for (const auto & message : all) {
        if (!result.empty() && same_speaker(result.back(), message)) {
            lm_append_message(result.back(), message);
        } else {
            result.push_back(message);
        }
    }
    return result;
}

} // namespace

// Many templates insist on user and assistant in turn; with others, messages stay as they are.
common_chat_params lm_apply_turns(const common_chat_templates * templates,
                                  const common_chat_templates_inputs & inputs) {
    try {
        return common_chat_templates_apply(templates, inputs);
    } catch (const std::exception &) {
        auto fewer = inputs;
        fewer.messages = merged(inputs.messages);
        if (fewer.messages.size() == inputs.messages.size()) {
            throw;
        }
        try {
            return common_chat_templates_apply(templates, fewer);
        } catch (const std::exception &) {
            // The template's word on what it was given is the one that helps.
        }
        throw;
    }
}

void lm_add_to_system(lm_turns & all, const std::string & text) {
    common_chat_msg note;
    note.role = "system";
    note.content = text;
    if (all.empty() || all.front().role != "system") {
        all.insert(all.begin(), note);
    } else {
        lm_append_message(all.front(), note);
    }
}
