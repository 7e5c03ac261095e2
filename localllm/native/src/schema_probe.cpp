#include "schema_probe.h"

#include "parser_walk.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

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

// The names that stand for the arguments that a call of one tool must have.
struct probe_names {
    std::vector<std::string> required;
};

bool says_more_than_properties(const common_json & parameters) {
    static const std::set<std::string> KNOWN = {"type",        "properties", "required", "additionalProperties",
                                                "title",       "$schema",    "$defs",    "default",
                                                "definitions", "examples",   "$id",      "description"};
    for (const auto & [key, value] : parameters.items()) {
        if (!KNOWN.count(key)) {
            return true;
        }
    }
    return false;
}

// A tool whose properties have names and values that show up in any grammar that keeps to them.
common_chat_tool probe_of(const common_chat_tool & tool, std::vector<std::string> & marks, probe_names & names) {
    auto probe = tool;
    const common_json parameters = common_json::parse(tool.parameters);
    std::set<std::string> needed;
    if (parameters.contains("required")) {
        const auto listed = parameters.at("required").get<std::vector<std::string>>();
        needed.insert(listed.begin(), listed.end());
    }
    common_json properties = common_json::object();
    common_json required = common_json::array();
    const auto add = [&](const std::string & name, const common_json & schema) {
        const std::string mark = "lmprobe" + std::to_string(marks.size());
        properties[mark] = probe_value(schema, marks);
        marks.push_back(mark);
        if (needed.count(name)) {
            required.push_back(mark);
            names.required.push_back(mark);
        }
    };
    if (parameters.contains("properties")) {
        for (const auto & [name, schema] : parameters.at("properties").items()) {
            add(name, schema);
        }
    }
    common_json object = common_json::object();
    object["type"] = std::string("object");
    object["properties"] = properties;
    object["required"] = required;
    object["additionalProperties"] = false;
    if (says_more_than_properties(parameters)) {
        add("", common_json::object());
        object["properties"] = properties;
        common_json whole = common_json::object();
        whole["anyOf"] = common_json::array();
        whole["anyOf"].push_back(object);
        object = whole;
    }
    probe.parameters = object.dump();
    return probe;
}

// Whether a parser of required calls takes none that lacks one of these arguments. Formats that have the arguments as
// one JSON object have no names in their parsers, and their grammars keep to the schema as a whole.
bool requires_arguments(const common_peg_arena & arena, const std::vector<probe_names> & tools) {
    std::map<std::string, std::set<common_peg_parser_id>> places;
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        if (lm_is_tagged(arena, id, common_chat_peg_builder::TOOL_ARG_NAME)) {
            for (const auto child : lm_inner_parsers(arena, id)) {
                const auto * literal = std::get_if<common_peg_literal_parser>(&arena.get(child));
                if (literal) {
                    places[literal->literal].insert(id);
                }
            }
        }
    }
    if (places.empty()) {
        return true;
    }
    size_t most = 0;
    for (const auto & names : tools) {
        most = std::max(most, names.required.size());
    }
    for (size_t nth = 0; nth < most; nth++) {
        std::set<common_peg_parser_id> unwanted; // one argument of each tool: no call can do without all of them
        for (const auto & names : tools) {
            const auto & found = places[names.required[std::min(nth, names.required.size() - 1)]];
            unwanted.insert(found.begin(), found.end());
        }
        if (lm_can_do_without(arena, arena.root(), [&](common_peg_parser_id id) { return unwanted.count(id) > 0; })) {
            return false;
        }
    }
    return true;
}

} // namespace

bool lm_keeps_schemas(const common_chat_templates_inputs & calling,
                      const std::function<common_chat_params(const common_chat_templates_inputs &)> & make) {
    auto probing = calling;
    auto needing = calling;
    needing.tools.clear();
    needing.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    std::vector<std::string> marks;
    std::vector<probe_names> needed;
    for (auto & tool : probing.tools) {
        probe_names names;
        tool = probe_of(tool, marks, names);
        if (!names.required.empty()) {
            needing.tools.push_back(tool);
            needed.push_back(names);
        }
    }
    const std::string grammar = make(probing).grammar;
    const auto is_kept = [&](const std::string & mark) { return grammar.find(mark) != std::string::npos; };
    if (grammar.empty() || !std::all_of(marks.begin(), marks.end(), is_kept)) {
        return false;
    }
    return needed.empty() || requires_arguments(lm_loaded_parser(make(needing).parser), needed);
}
