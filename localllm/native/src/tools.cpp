#include "tools.h"

#include "call_grammar.h"
#include "guard.h"
#include "schema_probe.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <functional>

namespace {

using builder = common_chat_peg_builder;
using messages = std::vector<common_chat_msg>;

// ---- messages

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

void append(common_chat_msg & to, const common_chat_msg & from) {
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

// Messages in a row of one speaker as one.
messages merged(const messages & all) {
    messages result;
    for (const auto & message : all) {
        if (!result.empty() && same_speaker(result.back(), message)) {
            append(result.back(), message);
        } else {
            result.push_back(message);
        }
    }
    return result;
}

// Many templates insist on user and assistant in turn; with others, messages stay as they are.
common_chat_params apply(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
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

void add_to_system(messages & all, const std::string & text) {
    common_chat_msg note;
    note.role = "system";
    note.content = text;
    if (all.empty() || all.front().role != "system") {
        all.insert(all.begin(), note);
    } else {
        append(all.front(), note);
    }
}

common_peg_parser reasoning(builder & p, const common_chat_params & params) {
    if (params.thinking_end_tags.empty()) {
        return p.eps();
    }
    const std::string & end = params.thinking_end_tags.front();
    return p.optional(p.optspace(params.thinking_start_tag) + p.reasoning(p.until(end)) + p.optspace(end));
}

// ---- answers that a grammar of the caller's constrains

// Stands in a schema for the whole answer.
constexpr const char * ANSWER_MARK = "localllm-answer";

bool is_fence(const common_peg_arena & arena, common_peg_parser_id id) {
    const auto * literal = std::get_if<common_peg_literal_parser>(&arena.get(id));
    return literal && literal->literal.compare(0, 3, "```") == 0;
}

bool begins_with_fence(const common_peg_arena & arena, common_peg_parser_id id) {
    const auto * sequence = std::get_if<common_peg_sequence_parser>(&arena.get(id));
    return sequence && !sequence->children.empty() ? begins_with_fence(arena, sequence->children.front())
                                                   : is_fence(arena, id);
}

void remove_if(std::vector<common_peg_parser_id> & ids, const std::function<bool(common_peg_parser_id)> & unwanted) {
    ids.erase(std::remove_if(ids.begin(), ids.end(), unwanted), ids.end());
}

// Leaves nothing around an answer: no code fence, and no white space behind it.
void strip(common_peg_arena & arena) {
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        if (auto * choice = std::get_if<common_peg_choice_parser>(&arena.get(id))) {
            remove_if(choice->children, [&](auto child) { return begins_with_fence(arena, child); });
        } else if (auto * sequence = std::get_if<common_peg_sequence_parser>(&arena.get(id))) {
            auto & children = sequence->children;
            remove_if(children, [&](auto child) { return is_fence(arena, child); });
            bool answered = false;
            remove_if(children, [&](auto child) {
                const auto & parser = arena.get(child);
                const bool space = std::holds_alternative<common_peg_space_parser>(parser);
                answered = answered || !(space || std::holds_alternative<common_peg_literal_parser>(parser));
                return space && answered;
            });
        }
    }
}

void take_any_text(common_peg_arena & arena) {
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        if (std::holds_alternative<common_peg_schema_parser>(arena.get(id))) {
            arena.get(id) = common_peg_until_parser{};
        }
    }
}

common_peg_arena answer_parser(const common_chat_params & params, const std::string & schema) {
    return build_chat_peg_parser([&](builder & p) {
        const auto answer = p.schema(p.json(), "response-format-schema", common_json::parse(schema));
        return p.prefix(params.generation_prompt, params.thinking_start_tag)
               << reasoning(p, params) + p.space() + p.content(answer) + p.end();
    });
}

// An answer in a frame of ours: behind the reasoning there is what the schema says, and nothing else.
common_chat_params in_plain_frame(const common_chat_templates * templates,
                                  const common_chat_templates_inputs & inputs) {
    auto free = inputs;
    free.json_schema.clear();
    auto params = apply(templates, free);
    const auto arena = answer_parser(params, inputs.json_schema);
    params.parser = arena.save();
    params.grammar = lm_grammar_of(arena);
    params.grammar_lazy = false;
    params.grammar_triggers.clear();
    return params;
}

common_chat_params apply_schema(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto params = apply(templates, inputs);
    // Some families' parsers pass over a schema.
    return params.grammar.empty() ? in_plain_frame(templates, inputs) : params;
}

// The family's frame around an answer (reasoning, channels), or ours, with nothing but the answer in it.
common_chat_params apply_bare(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto params = apply_schema(templates, inputs);
    try {
        params.grammar = lm_regrammared(params, strip);
    } catch (const lm_error &) {
        return in_plain_frame(templates, inputs);
    }
    auto arena = lm_loaded_parser(params.parser);
    strip(arena);
    params.parser = arena.save();
    return params;
}

// The caller's grammar in the place of the answer.
common_chat_params apply_grammar(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto marked = inputs;
    marked.grammar.clear();
    marked.json_schema = std::string("{\"const\": \"") + ANSWER_MARK + "\"}";
    auto params = apply_bare(templates, marked);
    const std::string mark = std::string("\"\\\"") + ANSWER_MARK + "\\\"\"";
    size_t at = params.grammar.find(mark);
    if (at == std::string::npos) {
        throw lm_error(LM_TEMPLATE, "grammar: the answers of this model's template cannot be constrained by one");
    }
    for (; at != std::string::npos; at = params.grammar.find(mark, at)) {
        params.grammar.replace(at, mark.size(), "user-root");
    }
    params.grammar += lm_with_prefix(inputs.grammar, "user-");
    auto arena = lm_loaded_parser(params.parser);
    take_any_text(arena);
    params.parser = arena.save();
    return params;
}

common_chat_params apply_answer(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    return !inputs.grammar.empty()       ? apply_grammar(templates, inputs)
           : !inputs.json_schema.empty() ? apply_schema(templates, inputs)
                                         : apply(templates, inputs);
}

// ---- a format for templates that have none

constexpr const char * CALL_START = "<tool_call>";
constexpr const char * CALL_END = "</tool_call>";

std::string tool_lines(const std::vector<common_chat_tool> & tools) {
    std::string lines;
    for (const auto & tool : common_chat_tools_to_json_oaicompat(tools)) {
        lines += tool.at("function").dump() + "\n";
    }
    return lines;
}

std::string described(const std::vector<common_chat_tool> & tools) {
    return "You can call these functions:\n" + tool_lines(tools);
}

std::string instructions(const common_chat_templates_inputs & inputs) {
    std::string text = described(inputs.tools) +
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

// Calls and results of earlier turns as plain text.
messages in_plain_text(const messages & all) {
    messages result;
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
            append(plain, text);
        }
        plain.tool_calls.clear();
        const bool after_result = !result.empty() && message.role == "tool" && result.back().role == "user";
        if (after_result) {
            append(result.back(), plain);
        } else {
            result.push_back(plain);
        }
    }
    return result;
}

common_peg_arena generic_parser(const common_chat_params & params, const common_chat_templates_inputs & inputs) {
    return build_chat_peg_parser([&](builder & p) {
        auto call =
            p.standard_json_tools(CALL_START, CALL_END, common_chat_tools_to_json_oaicompat(inputs.tools), false, true);
        const auto calls =
            inputs.parallel_tool_calls ? p.trigger_rule("tool-calls", call + p.zero_or_more(p.space() + call)) : call;
        auto content = p.optional(p.content(p.until(CALL_START)));
        auto answer =
            inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED ? content + calls : content + p.optional(calls);
        const std::string & before = params.generation_prompt;
        return p.prefix(before, params.thinking_start_tag) << reasoning(p, params) + answer + p.space() + p.end();
    });
}

common_chat_params apply_generic(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto plain = inputs;
    plain.messages = in_plain_text(inputs.messages);
    add_to_system(plain.messages, instructions(inputs));
    plain.tools.clear();
    plain.json_schema.clear();
    auto params = apply(templates, plain);
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

} // namespace

common_peg_arena lm_loaded_parser(const std::string & saved) {
    common_peg_arena arena;
    if (!saved.empty()) {
        arena.load(saved);
    }
    return arena;
}

bool lm_knows_calls(const common_chat_templates * templates, const common_chat_templates_inputs & with_tools) {
    auto required = with_tools;
    required.json_schema.clear();
    required.grammar.clear();
    required.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const auto arena = lm_loaded_parser(apply(templates, required).parser);
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        const auto * tag = std::get_if<common_peg_tag_parser>(&arena.get(id));
        if (tag && tag->tag == builder::TOOL_NAME) {
            return true;
        }
    }
    return false;
}

namespace {

lm_applied apply_tools(const common_chat_templates * templates, const common_chat_templates_inputs & inputs,
                       const std::vector<common_chat_tool> & callable, bool native) {
    if (inputs.tools.empty() || inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE) {
        return {apply_answer(templates, inputs), ""};
    }
    auto shown = inputs;
    shown.json_schema.clear();
    shown.grammar.clear();
    auto calling = shown;
    calling.tools = callable;
    const auto make = [&](const common_chat_templates_inputs & which) {
        if (!native) {
            return apply_generic(templates, which);
        }
        auto told = which;
        const auto caps = common_chat_templates_get_caps(templates);
        if (!caps.at("supports_tool_calls")) {
            told.messages = in_plain_text(which.messages);
        }
        if (!caps.at("supports_tools")) {
            add_to_system(told.messages, described(which.tools));
        }
        return apply(templates, told);
    };
    const bool forced = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    if (native && (forced || !inputs.json_schema.empty() || !inputs.grammar.empty()) &&
        !lm_keeps_schemas(calling, make)) {
        // Ours is not the format that the model has learned, but in that one its calls need not be valid.
        return apply_tools(templates, inputs, callable, false);
    }
    lm_applied result{make(calling), ""};
    // For its prompt alone: what may be called is none of its matter.
    shown.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    result.params.prompt = make(shown).prompt;
    if (forced) {
        result.params.grammar = lm_calls_only(result.params, inputs.parallel_tool_calls);
    } else if (!inputs.json_schema.empty() || !inputs.grammar.empty()) {
        auto answering = inputs;
        answering.messages = in_plain_text(inputs.messages);
        answering.tools.clear();
        const auto answer =
            inputs.grammar.empty() ? apply_bare(templates, answering) : apply_grammar(templates, answering);
        auto required = calling;
        required.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        result.params.grammar = lm_either(lm_calls_only(make(required), inputs.parallel_tool_calls), answer.grammar);
        result.fallback = answer.parser;
    } else {
        if (!result.params.grammar.empty() && !inputs.parallel_tool_calls) {
            result.params.grammar = lm_one_call_at_most(result.params);
        }
        return result;
    }
    result.params.grammar_lazy = false;
    result.params.grammar_triggers.clear();
    return result;
}

} // namespace

lm_applied lm_apply_template(const common_chat_templates * templates, const common_chat_templates_inputs & inputs,
                             const std::vector<common_chat_tool> & callable, bool native) {
    try {
        return apply_tools(templates, inputs, callable, native);
    } catch (const std::exception &) {
        if (!native || inputs.tools.empty()) {
            throw;
        }
        try {
            // Some templates stumble over parameters that have no "type", say; ours is not the model's own format, but
            // better than none.
            return apply_tools(templates, inputs, callable, false);
        } catch (const std::exception &) {
            // The template's word on what it was given is the one that helps.
        }
        throw;
    }
}
