#include "tools.h"

#include "guard.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <sstream>

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

// ---- grammars

// The parsers that match nothing once content may not be written: content itself, and what consists of such.
class Emptied {
  public:
    explicit Emptied(common_peg_arena & arena) : arena_(arena) {
        for (bool found = true; found;) {
            found = false;
            for (common_peg_parser_id id = 0; id < arena_.size(); id++) {
                if (!ids_.count(id) && is_empty(id)) {
                    found = ids_.insert(id).second;
                }
            }
        }
        for (const auto id : ids_) {
            arena_.get(id) = common_peg_epsilon_parser{};
        }
    }

  private:
    bool all(const std::vector<common_peg_parser_id> & children) const {
        return !children.empty() &&
               std::all_of(children.begin(), children.end(), [&](auto child) { return ids_.count(child) > 0; });
    }

    bool is_empty(common_peg_parser_id id) {
        auto & parser = arena_.get(id);
        if (const auto * tag = std::get_if<common_peg_tag_parser>(&parser)) {
            return tag->tag == builder::CONTENT || ids_.count(tag->child);
        }
        if (const auto * rule = std::get_if<common_peg_rule_parser>(&parser)) {
            return ids_.count(rule->child);
        }
        if (const auto * atomic = std::get_if<common_peg_atomic_parser>(&parser)) {
            return ids_.count(atomic->child);
        }
        if (const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser)) {
            return ids_.count(repetition->child);
        }
        if (const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser)) {
            return all(sequence->children);
        }
        if (auto * choice = std::get_if<common_peg_choice_parser>(&parser)) {
            if (all(choice->children)) {
                return true;
            }
            // A repeated choice of nothing would be a grammar without end.
            auto & children = choice->children;
            children.erase(std::remove_if(children.begin(), children.end(), [&](auto c) { return ids_.count(c) > 0; }),
                           children.end());
        }
        return false;
    }

    common_peg_arena & arena_;
    std::set<common_peg_parser_id> ids_;
};

// Leaves one call where many families' parsers allow any number, whatever they were asked for.
class OneCall {
  public:
    explicit OneCall(common_peg_arena & arena) : arena_(arena), holds_(arena.size(), Answer::unknown) {
        for (common_peg_parser_id id = 0; id < arena_.size(); id++) {
            if (auto * repetition = std::get_if<common_peg_repetition_parser>(&arena_.get(id))) {
                if (holds_call(repetition->child) && repetition->max_count != 0) {
                    repetition->max_count = 1;
                    repetition->min_count = std::min(repetition->min_count, 1);
                }
            }
        }
        for (common_peg_parser_id id = 0; id < arena_.size(); id++) {
            if (auto * sequence = std::get_if<common_peg_sequence_parser>(&arena_.get(id))) {
                drop_further(sequence->children);
            }
        }
    }

  private:
    enum class Answer { unknown, asked, no, yes };

    // A repetition behind a call is one of further calls.
    void drop_further(const std::vector<common_peg_parser_id> & children) {
        bool called = false;
        for (const auto child : children) {
            if (called && holds_call(child) && std::get_if<common_peg_repetition_parser>(&arena_.get(child))) {
                arena_.get(child) = common_peg_epsilon_parser{};
            }
            called = called || holds_call(child);
        }
    }

    bool any(const std::vector<common_peg_parser_id> & children) {
        return std::any_of(children.begin(), children.end(), [&](auto child) { return holds_call(child); });
    }

    bool holds_call(common_peg_parser_id id) {
        if (holds_[id] == Answer::unknown) {
            holds_[id] = Answer::asked;
            const bool found = looks_like_call(id);
            holds_[id] = found ? Answer::yes : Answer::no;
        }
        return holds_[id] == Answer::yes;
    }

    bool looks_like_call(common_peg_parser_id id) {
        const auto & parser = arena_.get(id);
        if (const auto * tag = std::get_if<common_peg_tag_parser>(&parser)) {
            return tag->tag == builder::TOOL_NAME || holds_call(tag->child);
        }
        if (const auto * rule = std::get_if<common_peg_rule_parser>(&parser)) {
            return holds_call(rule->child);
        }
        if (const auto * ref = std::get_if<common_peg_ref_parser>(&parser)) {
            return holds_call(arena_.get_rule(ref->name));
        }
        if (const auto * atomic = std::get_if<common_peg_atomic_parser>(&parser)) {
            return holds_call(atomic->child);
        }
        if (const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser)) {
            return holds_call(repetition->child);
        }
        if (const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser)) {
            return any(sequence->children);
        }
        const auto * choice = std::get_if<common_peg_choice_parser>(&parser);
        return choice && any(choice->children);
    }

    common_peg_arena & arena_;
    std::vector<Answer> holds_;
};

std::string grammar_of(const common_peg_arena & arena) {
    return build_grammar([&](const common_grammar_builder & grammar) { arena.build_grammar(grammar, false); });
}

std::map<std::string, std::string> rules_of(const std::string & grammar) {
    std::map<std::string, std::string> rules;
    std::istringstream lines(grammar);
    for (std::string line; std::getline(lines, line);) {
        const size_t at = line.find(" ::= ");
        if (at != std::string::npos) {
            rules[line.substr(0, at)] = line.substr(at + 5);
        }
    }
    return rules;
}

// The grammar of an answer after a change of its parser. A saved parser has lost its schemas, so only the rules that
// the change concerns are taken from it, and these have none in them.
template <typename F> std::string regrammared(const common_chat_params & params, F && change) {
    auto arena = lm_loaded_parser(params.parser);
    const auto before = rules_of(grammar_of(arena));
    change(arena);
    auto rules = rules_of(params.grammar);
    for (const auto & [name, rule] : rules_of(grammar_of(arena))) {
        const auto found = before.find(name);
        if (found != before.end() && found->second == rule) {
            continue;
        }
        if (params.grammar_lazy && !rules.count(name)) {
            continue; // what comes before a call is free there
        }
        if (found == before.end() || rules[name] != found->second) {
            throw lm_error(LM_TEMPLATE,
                           "the answers of this model's template cannot be constrained as asked (rule '" + name + "')");
        }
        rules[name] = rule;
    }
    std::string grammar;
    for (const auto & [name, rule] : rules) {
        grammar += name + " ::= " + rule + "\n";
    }
    return grammar;
}

// llama.cpp's own grammar for required calls lets any amount of text go before them, and a model that would rather
// talk never calls. In this one only the reasoning may.
std::string calls_only(const common_chat_params & params, bool parallel) {
    return regrammared(params, [&](common_peg_arena & arena) {
        Emptied emptied(arena);
        if (!parallel) {
            OneCall one(arena);
        }
    });
}

std::string one_call_at_most(const common_chat_params & params) {
    return regrammared(params, [](common_peg_arena & arena) { OneCall one(arena); });
}

bool is_name_char(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

// What opens a part of a grammar that has no names in it, and what closes it.
char closing_of(char c) {
    switch (c) {
    case '"':
        return '"';
    case '[':
        return ']';
    case '{': // a number of repetitions
        return '}';
    case '<': // a token
        return '>';
    case '#':
        return '\n';
    default:
        return 0;
    }
}

// A grammar whose rules all have a prefix, so that two can be put together.
std::string with_prefix(const std::string & grammar, const std::string & prefix) {
    std::string result;
    char closing = 0;
    for (size_t i = 0; i < grammar.size(); i++) {
        const char c = grammar[i];
        if (closing && c == '\\' && i + 1 < grammar.size()) {
            result += c;
            result += grammar[++i];
            continue;
        }
        if (closing) {
            closing = c == closing ? 0 : closing;
        } else if (closing_of(c)) {
            closing = closing_of(c);
        } else if (is_name_char(c) && (i == 0 || !is_name_char(grammar[i - 1]))) {
            result += prefix;
        }
        result += c;
    }
    return result;
}

std::string either(const std::string & one, const std::string & other) {
    return with_prefix(one, "calls-") + "\n" + with_prefix(other, "answer-") + "\nroot ::= calls-root | answer-root\n";
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
    params.grammar = grammar_of(arena);
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
        params.grammar = regrammared(params, strip);
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
    params.grammar += with_prefix(inputs.grammar, "user-");
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

// ---- which families' grammars keep to the schemas

bool is_free_text(const common_json & schema) {
    static const std::set<std::string> SAYS_NOTHING = {"type", "title", "description", "default", "examples"};
    bool free = schema.is_object() && schema.contains("type") && schema.at("type").is_string() &&
                schema.at("type").get<std::string>() == "string";
    for (const auto & [key, value] : schema.is_object() ? schema.items() : common_json::object().items()) {
        free = free && SAYS_NOTHING.count(key) > 0;
    }
    return free;
}

// A value of the same type that only a grammar which keeps to the schema has in it.
common_json probe_value(const common_json & schema, std::vector<std::string> & marks) {
    common_json value = common_json::object();
    if (schema.is_object() && schema.contains("type")) {
        value["type"] = schema.at("type");
    }
    const std::string type =
        value.contains("type") && value.at("type").is_string() ? value.at("type").get<std::string>() : "";
    if (type == "boolean" || is_free_text(schema)) {
        return value; // every format has these as they are
    }
    std::string mark = "lmvalue" + std::to_string(marks.size());
    if (type == "integer" || type == "number") {
        const int64_t number = 4300710000000 + static_cast<int64_t>(marks.size());
        mark = std::to_string(number);
        value["const"] = number;
    } else if (type == "array") {
        value["const"] = common_json::array();
        value["const"].push_back(mark);
    } else if (type == "object") {
        value["const"] = common_json::object();
        value["const"][mark] = 1;
    } else {
        value["const"] = mark;
    }
    marks.push_back(mark);
    return value;
}

// A tool whose properties have names and values that show up in any grammar that keeps to them.
common_chat_tool probe_of(const common_chat_tool & tool, std::vector<std::string> & marks) {
    auto probe = tool;
    const common_json parameters = common_json::parse(tool.parameters);
    common_json properties = common_json::object();
    common_json required = common_json::array();
    if (parameters.is_object() && parameters.contains("properties")) {
        for (const auto & [name, schema] : parameters.at("properties").items()) {
            const std::string mark = "lmprobe" + std::to_string(marks.size());
            properties[mark] = probe_value(schema, marks);
            required.push_back(mark);
            marks.push_back(mark);
        }
    }
    common_json object = common_json::object();
    object["type"] = std::string("object");
    object["properties"] = properties;
    object["required"] = required;
    object["additionalProperties"] = false;
    probe.parameters = object.dump();
    return probe;
}

// Whether a grammar for calls of these tools holds their arguments to their schemas: formats with texts between tags
// do so for what is no text, and some not at all.
bool keeps_schemas(const common_chat_templates_inputs & calling,
                   const std::function<common_chat_params(const common_chat_templates_inputs &)> & make) {
    auto probing = calling;
    std::vector<std::string> marks;
    for (auto & tool : probing.tools) {
        tool = probe_of(tool, marks);
    }
    probing.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const std::string grammar = make(probing).grammar;
    return std::all_of(marks.begin(), marks.end(),
                       [&](const auto & mark) { return grammar.find(mark) != std::string::npos; });
}

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
    if (native && (forced || !inputs.json_schema.empty() || !inputs.grammar.empty()) && !keeps_schemas(calling, make)) {
        // Ours is not the format that the model has learned, but in that one its calls need not be valid.
        return apply_tools(templates, inputs, callable, false);
    }
    lm_applied result{make(calling), ""};
    // For its prompt alone: what may be called is none of its matter.
    shown.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    result.params.prompt = make(shown).prompt;
    if (forced) {
        result.params.grammar = calls_only(result.params, inputs.parallel_tool_calls);
    } else if (!inputs.json_schema.empty() || !inputs.grammar.empty()) {
        auto answering = inputs;
        answering.messages = in_plain_text(inputs.messages);
        answering.tools.clear();
        const auto answer =
            inputs.grammar.empty() ? apply_bare(templates, answering) : apply_grammar(templates, answering);
        auto required = calling;
        required.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        result.params.grammar = either(calls_only(make(required), inputs.parallel_tool_calls), answer.grammar);
        result.fallback = answer.parser;
    } else {
        if (!result.params.grammar.empty() && !inputs.parallel_tool_calls) {
            result.params.grammar = one_call_at_most(result.params);
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
