#include "own_format.h"

#include "answer_frame.h"

#include "json-schema-to-grammar.h"

namespace {

constexpr const char * CALL_START = "<tool_call>";
constexpr const char * CALL_END = "</tool_call>";

std::string tool_lines(const std::vector<common_chat_tool> & tools) {
    std::string lines;
    for (const auto & tool : common_chat_tools_to_json_oaicompat(tools)) {
        lines += tool.at("function").dump() + "\n";
    }
    return lines;
}

} // namespace

std::string lm_described_tools(const std::vector<common_chat_tool> & tools) {
    return "You can call these functions:\n" + tool_lines(tools);
}

namespace {

std::string instructions(const common_chat_templates_inputs & inputs) {
    std::string text = lm_described_tools(inputs.tools) +
                       "\nA call is a JSON object between tags, its arguments as the function's parameters say:\n" +
                       CALL_START + "\n{\"name\": \"FUNCTION\", \"arguments\": {...}}\n" + CALL_END + "\n";
    if (inputs.parallel_tool_calls) {
        text += "Several calls may follow each other.\n";
    }
    return text + "What a function gives back comes between <tool_response> and </tool_response>.";
}

std::string written(const common_chat_tool_call & call) {
    common_json arguments;
    try {
        arguments = common_json::parse(call.arguments.empty() ? "{}" : call.arguments);
    } catch (const std::exception &) {
        arguments = call.arguments;
    }
    common_json entry = common_json::object();
    entry["name"] = call.name;
    entry["arguments"] = arguments;
    return std::string(CALL_START) + "\n" + entry.dump() + "\n" + CALL_END;
}

common_peg_arena generic_parser(const common_chat_params & params, const common_chat_templates_inputs & inputs) {
    return build_chat_peg_parser([&](common_chat_peg_builder & p) {
        auto call =
            p.standard_json_tools(CALL_START, CALL_END, common_chat_tools_to_json_oaicompat(inputs.tools), false, true);
        const auto calls =
            inputs.parallel_tool_calls ? p.trigger_rule("tool-calls", call + p.zero_or_more(p.space() + call)) : call;
        auto content = p.optional(p.content(p.until(CALL_START)));
        auto answer =
            inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED ? content + calls : content + p.optional(calls);
        const std::string & before = params.generation_prompt;
        return p.prefix(before, params.thinking_start_tag) << lm_reasoning(p, params) + answer + p.space() + p.end();
    });
}

} // namespace

lm_turns lm_in_plain_text(const lm_turns & all) {
    lm_turns result;
    for (const auto & message : all) {
        common_chat_msg plain = message;
        if (message.role == "tool") {
            plain = common_chat_msg();
            plain.role = "user";
            plain.content = "<tool_response>\n" + message.render_content() + "\n</tool_response>";
        }
        for (const auto & call : message.tool_calls) {
            common_chat_msg text;
            text.content = written(call);
            lm_append_message(plain, text);
        }
        plain.tool_calls.clear();
        const bool after_result = !result.empty() && message.role == "tool" && result.back().role == "user";
        if (after_result) {
            lm_append_message(result.back(), plain);
        } else {
            result.push_back(plain);
        }
    }
    return result;
}

common_chat_params lm_apply_own_format(const common_chat_templates * templates,
                                       const common_chat_templates_inputs & inputs) {
    auto plain = inputs;
    plain.messages = lm_in_plain_text(inputs.messages);
    lm_add_to_system(plain.messages, instructions(inputs));
    plain.tools.clear();
    plain.json_schema.clear();
    auto params = lm_apply_turns(templates, plain);
    if (inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE) {
        return params;
    }
    const auto parser = generic_parser(params, inputs);
    params.parser = parser.save();
    params.grammar_lazy = inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    params.grammar = build_grammar(
        [&](const common_grammar_builder & grammar) { parser.build_grammar(grammar, params.grammar_lazy); });
    params.grammar_triggers = {{COMMON_GRAMMAR_TRIGGER_TYPE_WORD, CALL_START, LLAMA_TOKEN_NULL}};
    for (const char * mark : {CALL_START, CALL_END}) {
        params.preserved_tokens.push_back(mark);
    }
    return params;
}
