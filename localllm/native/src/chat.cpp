// Chat templates: messages to a prompt, an answer back to a message.
#include "grammar.h"
#include "guard.h"
#include "parser_walk.h"
#include "template_limit.h"
#include "tools.h"

#include "chat.h"
#include "jinja/lexer.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <chrono>

struct lm_chat {
    common_chat_templates_ptr templates;
    const llama_model * model = nullptr;
    mutable std::once_flag looked;
    mutable bool knows_calls = false; // lm_knows_calls, after a look
};

struct lm_parser {
    common_chat_parser_params params;
    common_peg_arena fallback; // reads what `params` cannot; empty: there is none
};

namespace {

constexpr const char * CHAT_KIND = "chat";
constexpr const char * PARSER_KIND = "parser";

constexpr size_t MAX_TEMPLATE_BYTES = 1 << 20;
// Within one pair of braces; a long chain of operators is a deep tree.
constexpr size_t MAX_TAG_TOKENS = 4096;

void check_size(const std::string & source) {
    if (source.size() > MAX_TEMPLATE_BYTES) {
        throw lm_error(LM_TEMPLATE, "the template has more than " + std::to_string(MAX_TEMPLATE_BYTES) + " bytes");
    }
    size_t in_tag = 0;
    for (const auto & token : jinja::lexer().tokenize(source).tokens) {
        const bool opens = token.t == jinja::token::open_statement || token.t == jinja::token::open_expression;
        in_tag = opens ? 0 : in_tag + 1;
        if (in_tag > MAX_TAG_TOKENS) {
            throw lm_error(LM_TEMPLATE,
                           "the template has an expression of more than " + std::to_string(MAX_TAG_TOKENS) + " words");
        }
    }
}

// Runs what runs a template.
template <typename F> void within_limits(F && body) {
    const lm_template_limit limit;
    try {
        body();
    } catch (const std::exception &) {
        if (limit.broken()) {
            throw lm_error(LM_TEMPLATE, limit.broken());
        }
        throw;
    }
}

bool knows_calls(const lm_chat & chat, const common_chat_templates_inputs & inputs) {
    try {
        std::call_once(chat.looked, [&] { chat.knows_calls = lm_knows_calls(chat.templates.get(), inputs); });
    } catch (const std::exception &) {
        // These tools are too much for the template: lm_apply_template finds a way, or says why not.
        return true;
    }
    return chat.knows_calls;
}

void require_parsable(const std::string & source) {
    check_size(source);
    common_chat_template(source, "", "");
}

// llama.cpp loses the reason on its way out of a template that it cannot parse; this asks the parser itself.
void require_parsable(const llama_model * model, const char * source) {
    if (source && *source) {
        require_parsable(std::string(source));
        return;
    }
    for (const char * name : {static_cast<const char *>(nullptr), "tool_use"}) {
        const char * own = llama_model_chat_template(model, name);
        if (own) {
            require_parsable(std::string(own));
        }
    }
}

const char * trigger_name(common_grammar_trigger_type type) {
    switch (type) {
    case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
        return "pattern";
    case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
        return "pattern_full";
    default:
        return "word";
    }
}

common_chat_continuation read_continuation(const common_json & value) {
    const auto continuation = common_chat_continuation_parse(value);
    if (continuation == COMMON_CHAT_CONTINUATION_NONE && !(value.is_boolean() && !value.get<bool>()) &&
        !value.is_null()) {
        lm_invalid("continue_final_message: true, false, \"content\" or \"reasoning_content\"");
    }
    return continuation;
}

std::map<std::string, std::string> read_kwargs(const common_json & value) {
    std::map<std::string, std::string> kwargs;
    for (const auto & [key, entry] : value.items()) {
        kwargs[key] = entry.dump();
    }
    return kwargs;
}

common_chat_templates_inputs read_inputs(const common_json & request, lm_callable & callable) {
    common_chat_templates_inputs inputs;
    for (const auto & [key, value] : request.items()) {
        if (key == "messages") {
            inputs.messages = common_chat_msgs_parse_oaicompat(value);
        } else if (key == "tools") {
            inputs.tools = common_chat_tools_parse_oaicompat(value);
        } else if (key == "tool_choice") {
            inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(value.get<std::string>());
        } else if (key == "callable_tools") {
            callable.tools = common_chat_tools_parse_oaicompat(value);
        } else if (key == "strict_tools") {
            for (const auto & name : value.get<std::vector<std::string>>()) {
                callable.strict.insert(name);
            }
        } else if (key == "parallel_tool_calls") {
            inputs.parallel_tool_calls = value.get<bool>();
        } else if (key == "json_schema") {
            inputs.json_schema = value.dump();
        } else if (key == "grammar") {
            inputs.grammar = value.get<std::string>();
        } else if (key == "add_generation_prompt") {
            inputs.add_generation_prompt = value.get<bool>();
        } else if (key == "continue_final_message") {
            inputs.continue_final_message = read_continuation(value);
        } else if (key == "reasoning_format") {
            inputs.reasoning_format = common_reasoning_format_from_name(value.get<std::string>());
        } else if (key == "enable_thinking") {
            inputs.enable_thinking = value.get<bool>();
        } else if (key == "template_kwargs") {
            inputs.chat_template_kwargs = read_kwargs(value);
        } else if (key == "now") {
            inputs.now = std::chrono::system_clock::time_point(std::chrono::seconds(value.get<int64_t>()));
        } else {
            lm_invalid(key + ": unknown field");
        }
    }
    lm_require(!inputs.messages.empty(), "messages: missing or empty");
    lm_require(inputs.json_schema.empty() || inputs.grammar.empty(), "grammar: not together with json_schema");
    return inputs;
}

// The characters with which anything begins that ends a running text.
std::string first_characters(const std::string & saved) {
    const auto arena = lm_loaded_parser(saved);
    std::string found;
    const auto add = [&](const std::string & text) {
        if (!text.empty() && found.find(text.front()) == std::string::npos) {
            found += text.front();
        }
    };
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        if (const auto * until = std::get_if<common_peg_until_parser>(&arena.get(id))) {
            std::for_each(until->delimiters.begin(), until->delimiters.end(), add);
        } else if (const auto * including = std::get_if<common_peg_ac_parser>(&arena.get(id))) {
            std::for_each(including->delimiters.begin(), including->delimiters.end(), add);
        } else if (const auto * literal = std::get_if<common_peg_literal_parser>(&arena.get(id))) {
            add(literal->literal);
        }
    }
    return found;
}

common_json to_json(const lm_applied & applied, const common_chat_templates_inputs & inputs) {
    const auto & params = applied.params;
    common_json result = common_json::object();
    result["prompt"] = params.prompt;
    result["format"] = std::string(common_chat_format_name(params.format));
    result["grammar"] = params.grammar;
    const bool tools = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    result["grammar_kind"] = std::string(tools ? "tool_calls" : "output_format");
    result["grammar_lazy"] = params.grammar_lazy;
    common_json triggers = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        common_json entry = common_json::object();
        entry["type"] = std::string(trigger_name(trigger.type));
        entry["value"] = trigger.value;
        triggers.push_back(entry);
    }
    result["grammar_triggers"] = triggers;
    result["preserved_tokens"] = params.preserved_tokens;
    result["stops"] = params.additional_stops;
    result["generation_prompt"] = params.generation_prompt;
    result["supports_thinking"] = params.supports_thinking;
    result["thinking_start"] = params.thinking_start_tag;
    result["thinking_ends"] = params.thinking_end_tags;
    result["delimiters"] = params.message_delimiters.to_json();
    // Leads of UTF-8 sequences do not go into JSON one by one; whoever reads this treats all that is not ASCII as one.
    common_json marks = common_json::array();
    for (const char mark : first_characters(params.parser)) {
        marks.push_back(static_cast<int>(static_cast<unsigned char>(mark)));
    }
    result["marks"] = marks;

    common_json parser = common_json::object();
    parser["format"] = static_cast<int>(params.format);
    parser["generation_prompt"] = params.generation_prompt;
    parser["reasoning_format"] = std::string(common_reasoning_format_name(inputs.reasoning_format));
    parser["parse_tool_calls"] = tools;
    parser["is_continuation"] = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    parser["arena"] = params.parser;
    parser["fallback"] = applied.fallback;
    result["parser"] = parser;
    return result;
}

common_json to_json(const common_chat_msg & message) {
    common_json result = common_json::object();
    result["role"] = message.role;
    result["content"] = message.render_content();
    result["reasoning_content"] = message.reasoning_content;
    common_json calls = common_json::array();
    for (const auto & call : message.tool_calls) {
        common_json entry = common_json::object();
        entry["id"] = call.id;
        entry["name"] = call.name;
        entry["arguments"] = call.arguments;
        calls.push_back(entry);
    }
    result["tool_calls"] = calls;
    return result;
}

bool can_read(const lm_parser & parser, const std::string & answer) {
    common_peg_parse_context context(parser.params.generation_prompt + answer, COMMON_PEG_PARSE_FLAG_LENIENT);
    return !parser.params.parser.parse(context).fail();
}

} // namespace

lm_status lm_chat_create(const llama_model * model, const char * source, lm_chat ** out) {
    return lm_guard(LM_TEMPLATE, [&] {
        lm_require(model || (source && *source), "model: NULL, and no template text");
        lm_require(out, "out: NULL");
        auto chat = std::make_unique<lm_chat>();
        chat->model = model;
        within_limits([&] {
            require_parsable(model, source);
            chat->templates = common_chat_templates_init(model, source ? source : "");
        });
        lm_handle_add(chat.get(), CHAT_KIND);
        *out = chat.release();
    });
}

lm_status lm_chat_free(lm_chat * chat) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(chat, CHAT_KIND)) {
            lm_invalid("chat: not a live handle");
        }
        delete chat;
    });
}

lm_status lm_chat_info(const lm_chat * chat, char ** out) {
    return lm_guard(LM_TEMPLATE, [&] {
        lm_handle_require(chat, CHAT_KIND);
        lm_require(out, "out: NULL");
        common_json info = common_json::object();
        info["source"] = common_chat_templates_source(chat->templates.get());
        info["source_tool_use"] = common_chat_templates_source(chat->templates.get(), "tool_use");
        info["explicit"] = common_chat_templates_was_explicit(chat->templates.get());
        common_json caps = common_json::object();
        for (const auto & [name, value] : common_chat_templates_get_caps(chat->templates.get())) {
            caps[name] = value;
        }
        info["caps"] = caps;
        *out = lm_string_copy(info.dump_safe());
    });
}

lm_status lm_chat_apply(const lm_chat * chat, const char * json, char ** out) {
    return lm_guard(LM_TEMPLATE, [&] {
        lm_handle_require(chat, CHAT_KIND);
        lm_require(out, "out: NULL");
        const common_json request = common_json::parse(lm_checked_json(json, "json"));
        lm_require(request.is_object(), "json: not an object");
        lm_callable callable;
        const auto inputs = read_inputs(request, callable);
        if (callable.tools.empty()) {
            callable.tools = inputs.tools;
        }
        if (!inputs.grammar.empty()) {
            // Here, so that an error names a place in the caller's grammar, not in what is made of it.
            lm_require_grammar(inputs.grammar, chat->model ? llama_model_get_vocab(chat->model) : nullptr);
        }
        const auto * templates = chat->templates.get();
        within_limits([&] {
            const bool native = inputs.tools.empty() || knows_calls(*chat, inputs);
            const auto applied = lm_apply_template(templates, inputs, callable, native);
            *out = lm_string_copy(to_json(applied, inputs).dump_safe());
        });
    });
}

lm_status lm_parser_create(const char * json, lm_parser ** out) {
    return lm_guard(LM_TEMPLATE, [&] {
        lm_require(out, "out: NULL");
        const common_json request = common_json::parse(lm_checked_json(json, "json"));
        lm_require(request.is_object(), "json: not an object");
        auto parser = std::make_unique<lm_parser>();
        for (const auto & [key, value] : request.items()) {
            if (key == "format") {
                const int format = value.get<int>();
                lm_require(format >= 0 && format < COMMON_CHAT_FORMAT_COUNT, "format: unknown");
                parser->params.format = static_cast<common_chat_format>(format);
            } else if (key == "generation_prompt") {
                parser->params.generation_prompt = value.get<std::string>();
            } else if (key == "reasoning_format") {
                parser->params.reasoning_format = common_reasoning_format_from_name(value.get<std::string>());
            } else if (key == "parse_tool_calls") {
                parser->params.parse_tool_calls = value.get<bool>();
            } else if (key == "is_continuation") {
                parser->params.is_continuation = value.get<bool>();
            } else if (key == "arena") {
                parser->params.parser = lm_loaded_parser(value.get<std::string>());
            } else if (key == "fallback") {
                parser->fallback = lm_loaded_parser(value.get<std::string>());
            } else {
                lm_invalid(key + ": unknown field");
            }
        }
        lm_handle_add(parser.get(), PARSER_KIND);
        *out = parser.release();
    });
}

lm_status lm_parser_free(lm_parser * parser) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(parser, PARSER_KIND)) {
            lm_invalid("parser: not a live handle");
        }
        delete parser;
    });
}

lm_status lm_parser_parse(const lm_parser * parser, const char * text, size_t size, bool is_partial, char ** out) {
    return lm_guard(LM_TEMPLATE, [&] {
        lm_handle_require(parser, PARSER_KIND);
        lm_check_text(text, size, "text");
        lm_require(out, "out: NULL");
        const std::string answer(text ? text : "", size);
        const bool other = !parser->fallback.empty() && !can_read(*parser, answer);
        const auto message =
            common_chat_peg_parse(other ? parser->fallback : parser->params.parser, answer, is_partial, parser->params);
        *out = lm_string_copy(to_json(message).dump_safe());
    });
}

lm_status lm_schema_to_grammar(const char * json, char ** out) {
    return lm_guard(LM_GRAMMAR, [&] {
        lm_require(out, "out: NULL");
        *out = lm_string_copy(json_schema_to_grammar(common_json::parse(lm_checked_json(json, "json"))));
    });
}
