#include "tools.h"

#include "answer_frame.h"
#include "call_grammar.h"
#include "own_format.h"
#include "parser_walk.h"
#include "schema_probe.h"
#include "turns.h"

#include <algorithm>

namespace {

using inputs_type = common_chat_templates_inputs;

// One way of writing calls, and what it makes of inputs.
class Calls {
  public:
    Calls(const common_chat_templates * templates, const inputs_type & inputs, const lm_callable & callable,
          bool native)
        : templates_(templates), inputs_(inputs), callable_(callable), native_(native), calling_(inputs) {
        calling_.json_schema.clear();
        calling_.grammar.clear();
        calling_.tools = callable.tools;
    }

    // False: the arguments of calls that have to keep to their schemas need not.
    bool keep_schemas() const {
        const bool all = is_forced() || is_constrained();
        if (!native_ || (!all && callable_.strict.empty())) {
            return true;
        }
        auto bound = calling_;
        if (!all) {
            const auto is_free = [&](const auto & tool) { return callable_.strict.count(tool.name) == 0; };
            bound.tools.erase(std::remove_if(bound.tools.begin(), bound.tools.end(), is_free), bound.tools.end());
        }
        bound.tool_choice = all ? COMMON_CHAT_TOOL_CHOICE_REQUIRED : COMMON_CHAT_TOOL_CHOICE_AUTO;
        return lm_keeps_schemas(bound, [&](const inputs_type & which) {
            auto params = made(which);
            params.grammar = all ? params.grammar : lm_from_the_beginning(params);
            return params;
        });
    }

    lm_applied applied() const {
        lm_applied result{made(calling_), ""};
        // For its prompt alone: what may be called is none of its matter.
        auto shown = inputs_;
        shown.json_schema.clear();
        shown.grammar.clear();
        shown.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
        result.params.prompt = made(shown).prompt;
        if (is_forced()) {
            bind(result.params, lm_calls_only(result.params, inputs_.parallel_tool_calls));
        } else if (is_constrained()) {
            auto required = calling_;
            required.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
            const std::string calls = lm_calls_only(made(required), inputs_.parallel_tool_calls);
            const auto answer = answer_alone();
            bind(result.params, lm_either(calls, answer.grammar));
            result.fallback = answer.parser;
        } else {
            if (!callable_.strict.empty()) {
                bind(result.params, lm_from_the_beginning(result.params));
            }
            if (!result.params.grammar.empty() && !inputs_.parallel_tool_calls) {
                result.params.grammar = lm_one_call_at_most(result.params);
            }
        }
        return result;
    }

  private:
    bool is_forced() const { return inputs_.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED; }
    bool is_constrained() const { return !inputs_.json_schema.empty() || !inputs_.grammar.empty(); }

    // From the first token on.
    static void bind(common_chat_params & params, const std::string & grammar) {
        params.grammar = grammar;
        params.grammar_lazy = false;
        params.grammar_triggers.clear();
    }

    common_chat_params made(const inputs_type & which) const {
        if (!native_) {
            return lm_apply_own_format(templates_, which);
        }
        auto told = which;
        const auto caps = common_chat_templates_get_caps(templates_);
        if (!caps.at("supports_tool_calls")) {
            told.messages = lm_in_plain_text(which.messages);
        }
        if (!caps.at("supports_tools")) {
            lm_add_to_system(told.messages, lm_described_tools(which.tools));
        }
        return lm_apply_turns(templates_, told);
    }

    common_chat_params answer_alone() const {
        auto answering = inputs_;
        answering.messages = lm_in_plain_text(inputs_.messages);
        answering.tools.clear();
        return lm_apply_bare_answer(templates_, answering);
    }

    const common_chat_templates * templates_;
    const inputs_type & inputs_;
    const lm_callable & callable_;
    bool native_;
    inputs_type calling_;
};

lm_applied apply_tools(const common_chat_templates * templates, const inputs_type & inputs,
                       const lm_callable & callable, bool native) {
    if (inputs.tools.empty() || inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE) {
        return {lm_apply_answer(templates, inputs), ""};
    }
    const Calls calls(templates, inputs, callable, native);
    // Ours is not the format that the model has learned, but in that one its calls need not be valid.
    return calls.keep_schemas() ? calls.applied() : Calls(templates, inputs, callable, false).applied();
}

} // namespace

bool lm_knows_calls(const common_chat_templates * templates, const common_chat_templates_inputs & with_tools) {
    auto required = with_tools;
    required.json_schema.clear();
    required.grammar.clear();
    required.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const auto arena = lm_loaded_parser(lm_apply_turns(templates, required).parser);
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        if (lm_is_tagged(arena, id, common_chat_peg_builder::TOOL_NAME)) {
            return true;
        }
    }
    return false;
}

lm_applied lm_apply_template(const common_chat_templates * templates, const common_chat_templates_inputs & inputs,
                             const lm_callable & callable, bool native) {
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
