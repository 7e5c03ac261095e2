#include "schema_probe.h"

#include <algorithm>
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

} // namespace

bool lm_keeps_schemas(const common_chat_templates_inputs & calling,
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
