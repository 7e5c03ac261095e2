#include "answer_frame.h"

#include "call_grammar.h"
#include "guard.h"
#include "parser_walk.h"
#include "turns.h"

#include "json-schema-to-grammar.h"

#include <algorithm>
#include <functional>

common_peg_parser lm_reasoning(common_chat_peg_builder & p, const common_chat_params & params) {
    if (params.thinking_end_tags.empty()) {
        return p.eps();
    }
    const std::string & end = params.thinking_end_tags.front();
    return p.optional(p.optspace(params.thinking_start_tag) + p.reasoning(p.until(end)) + p.optspace(end) + p.space());
}

namespace {

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

// Leaves nothing around an answer: no code fence, no white space behind it, and none before it where no thought can
// have come first: whoever asks for one of two words is not to pay for more.
void strip(common_peg_arena & arena, bool reasons) {
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
                return space && (answered || !reasons);
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
    return build_chat_peg_parser([&](common_chat_peg_builder & p) {
        const auto answer = p.schema(p.json(), "response-format-schema", common_json::parse(schema));
        return p.prefix(params.generation_prompt, params.thinking_start_tag)
               << lm_reasoning(p, params) + p.content(answer) + p.end();
    });
}

// An answer in a frame of ours: behind the reasoning there is what the schema says, and nothing else.
common_chat_params in_plain_frame(const common_chat_templates * templates,
                                  const common_chat_templates_inputs & inputs) {
    auto free = inputs;
    free.json_schema.clear();
    auto params = lm_apply_turns(templates, free);
    const auto arena = answer_parser(params, inputs.json_schema);
    params.parser = arena.save();
    params.grammar = lm_grammar_of(arena);
    params.grammar_lazy = false;
    params.grammar_triggers.clear();
    return params;
}

common_chat_params apply_schema(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto params = lm_apply_turns(templates, inputs);
    // Some families' parsers pass over a schema.
    return params.grammar.empty() ? in_plain_frame(templates, inputs) : params;
}

// The family's frame around an answer (reasoning, channels), or ours, with nothing but the answer in it.
common_chat_params apply_bare_schema(const common_chat_templates * templates,
                                     const common_chat_templates_inputs & inputs) {
    auto params = apply_schema(templates, inputs);
    const bool reasons = !params.thinking_end_tags.empty();
    try {
        params.grammar = lm_regrammared(params, [&](common_peg_arena & arena) { strip(arena, reasons); });
    } catch (const lm_error &) {
        return in_plain_frame(templates, inputs);
    }
    auto arena = lm_loaded_parser(params.parser);
    strip(arena, reasons);
    params.parser = arena.save();
    return params;
}

// The caller's grammar in the place of the answer.
common_chat_params apply_grammar(const common_chat_templates * templates, const common_chat_templates_inputs & inputs) {
    auto marked = inputs;
    marked.grammar.clear();
    marked.json_schema = std::string("{\"const\": \"") + ANSWER_MARK + "\"}";
    auto params = apply_bare_schema(templates, marked);
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

} // namespace

common_chat_params lm_apply_answer(const common_chat_templates * templates,
                                   const common_chat_templates_inputs & inputs) {
    return !inputs.grammar.empty()       ? apply_grammar(templates, inputs)
           : !inputs.json_schema.empty() ? apply_schema(templates, inputs)
                                         : lm_apply_turns(templates, inputs);
}

common_chat_params lm_apply_bare_answer(const common_chat_templates * templates,
                                        const common_chat_templates_inputs & inputs) {
    return inputs.grammar.empty() ? apply_bare_schema(templates, inputs) : apply_grammar(templates, inputs);
}
