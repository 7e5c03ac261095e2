#include "call_grammar.h"

#include "guard.h"
#include "parser_walk.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

namespace {

using builder = common_chat_peg_builder;

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
    explicit OneCall(common_peg_arena & arena) : arena_(arena) {
        for (common_peg_parser_id id = 0; id < arena_.size(); id++) {
            auto * repetition = std::get_if<common_peg_repetition_parser>(&arena_.get(id));
            if (repetition && repetition->max_count != 0 && holds_call(repetition->child)) {
                repetition->max_count = 1;
                repetition->min_count = std::min(repetition->min_count, 1);
            }
        }
        for (common_peg_parser_id id = 0; id < arena_.size(); id++) {
            if (const auto * sequence = std::get_if<common_peg_sequence_parser>(&arena_.get(id))) {
                drop_further(sequence->children);
            }
        }
    }

  private:
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

    bool holds_call(common_peg_parser_id id) {
        const auto [found, is_new] = holds_.emplace(id, false); // no: a rule that refers to itself asks again
        if (is_new) {
            const auto * tag = std::get_if<common_peg_tag_parser>(&arena_.get(id));
            const auto parts = lm_inner_parsers(arena_, id);
            holds_[id] = (tag && tag->tag == builder::TOOL_NAME) ||
                         std::any_of(parts.begin(), parts.end(), [&](auto part) { return holds_call(part); });
        }
        return holds_[id];
    }

    common_peg_arena & arena_;
    std::map<common_peg_parser_id, bool> holds_;
};

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

std::string written(const std::map<std::string, std::string> & rules) {
    std::string grammar;
    for (const auto & [name, rule] : rules) {
        grammar += name + " ::= " + rule + "\n";
    }
    return grammar;
}

// Whether calls can be made, or be hidden in text that nothing ends, without going through one of these rules.
bool is_open(const common_peg_arena & arena, const std::map<std::string, std::string> & rules) {
    std::set<common_peg_parser_id> seen;
    std::vector<common_peg_parser_id> todo{arena.root()};
    while (!todo.empty()) {
        const auto next = todo.back();
        todo.pop_back();
        const auto & parser = arena.get(next);
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser);
        if (!seen.insert(next).second || (rule && rules.count(rule->name))) {
            continue;
        }
        const auto * until = std::get_if<common_peg_until_parser>(&parser);
        if (lm_is_tagged(arena, next, builder::TOOL_NAME) || (until && until->delimiters.empty()) ||
            std::holds_alternative<common_peg_any_parser>(parser)) {
            return true;
        }
        const auto parts = lm_inner_parsers(arena, next);
        todo.insert(todo.end(), parts.begin(), parts.end());
    }
    return false;
}

// Whether what opens a text for the user is what the prompt ends in: there is a family whose prompts llama.cpp takes
// so, and with them a grammar for answers that none of its models gives.
bool opens_content_twice(const common_peg_arena & arena, const std::string & generation_prompt) {
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        const auto * sequence = std::get_if<common_peg_sequence_parser>(&arena.get(id));
        for (size_t at = 1; sequence && at < sequence->children.size(); at++) {
            const auto * mark = std::get_if<common_peg_literal_parser>(&arena.get(sequence->children[at - 1]));
            const size_t n = mark ? mark->literal.size() : 0;
            if (n > 0 && n <= generation_prompt.size() &&
                generation_prompt.compare(generation_prompt.size() - n, n, mark->literal) == 0 &&
                lm_is_tagged(arena, sequence->children[at], builder::CONTENT)) {
                return true;
            }
        }
    }
    return false;
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

} // namespace

std::string lm_grammar_of(const common_peg_arena & arena) {
    return build_grammar([&](const common_grammar_builder & grammar) { arena.build_grammar(grammar, false); });
}

// The grammar of an answer after a change of its parser. A saved parser has lost its schemas, so only the rules that
// the change concerns are taken from it, and these have none in them.
std::string lm_regrammared(const common_chat_params & params, const std::function<void(common_peg_arena &)> & change) {
    auto arena = lm_loaded_parser(params.parser);
    const auto before = rules_of(lm_grammar_of(arena));
    change(arena);
    auto rules = rules_of(params.grammar);
    for (const auto & [name, rule] : rules_of(lm_grammar_of(arena))) {
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
    return written(rules);
}

// llama.cpp's own grammar for required calls lets any amount of text go before them, and a model that would rather
// talk never calls. In this one only the reasoning may.
std::string lm_calls_only(const common_chat_params & params, bool parallel) {
    return lm_regrammared(params, [&](common_peg_arena & arena) {
        Emptied emptied(arena);
        if (!parallel) {
            OneCall one(arena);
        }
    });
}

std::string lm_one_call_at_most(const common_chat_params & params) {
    return lm_regrammared(params, [](common_peg_arena & arena) { OneCall one(arena); });
}

std::string lm_from_the_beginning(const common_chat_params & params) {
    if (params.grammar.empty() || !params.grammar_lazy) {
        return params.grammar;
    }
    const auto arena = lm_loaded_parser(params.parser);
    const auto bound = rules_of(params.grammar);
    const auto is_call = [&](common_peg_parser_id id) { return lm_is_tagged(arena, id, builder::TOOL_NAME); };
    if (is_open(arena, bound) || opens_content_twice(arena, params.generation_prompt) ||
        !lm_can_do_without(arena, arena.root(), is_call)) {
        return "";
    }
    // A saved parser has lost its schemas: what the other grammar has is taken from there.
    auto rules = rules_of(lm_grammar_of(arena));
    for (const auto & [name, rule] : bound) {
        if (name != "root") {
            rules[name] = rule;
        }
    }
    return written(rules);
}

// A grammar whose rules all have a prefix, so that two can be put together.
std::string lm_with_prefix(const std::string & grammar, const std::string & prefix) {
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

std::string lm_either(const std::string & one, const std::string & other) {
    return lm_with_prefix(one, "calls-") + "\n" + lm_with_prefix(other, "answer-") +
           "\nroot ::= calls-root | answer-root\n";
}
