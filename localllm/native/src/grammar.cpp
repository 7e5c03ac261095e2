#include "grammar.h"

#include "guard.h"
#include "text.h"

#include "llama-grammar.h"

#include <algorithm>
#include <memory>

namespace {

// Beyond this many, llama.cpp's grammars stop to count.
constexpr unsigned long MAX_REPETITIONS = 2000;

// llama.cpp's parser calls itself for each bracket.
constexpr size_t MAX_GRAMMAR_DEPTH = 512;

struct grammar_deleter {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};

using grammar_ptr = std::unique_ptr<llama_grammar, grammar_deleter>;

[[noreturn]] void fail(const std::string & grammar, size_t at, const std::string & why) {
    const auto before = grammar.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t last = before.rfind('\n');
    const size_t column = last == std::string::npos ? before.size() + 1 : before.size() - last;
    throw lm_error(LM_GRAMMAR, "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + why);
}

// llama.cpp's parser says where it stopped by quoting all that follows.
void fail_at_quote(const std::string & grammar, size_t rule, const std::string & message) {
    for (size_t at = message.find(" at "); at != std::string::npos; at = message.find(" at ", at + 1)) {
        const std::string rest = message.substr(at + 4);
        if (rest.size() <= grammar.size() && grammar.compare(grammar.size() - rest.size(), rest.size(), rest) == 0) {
            fail(grammar, grammar.size() - rest.size(), message.substr(0, at));
        }
    }
    fail(grammar, rule, message);
}

size_t rule_named(const std::string & grammar, const std::string & name) {
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; };
    for (size_t at = grammar.find(name); at != std::string::npos; at = grammar.find(name, at + 1)) {
        const size_t end = at + name.size();
        if ((at == 0 || !is_name(grammar[at - 1])) && (end == grammar.size() || !is_name(grammar[end]))) {
            return at;
        }
    }
    return 0;
}

// Behind white space and comments.
size_t skipped(const std::string & grammar, size_t at) {
    while (at < grammar.size()) {
        if (grammar[at] == '#') {
            at = std::min(grammar.find_first_of("\r\n", at), grammar.size());
        } else if (std::isspace(static_cast<unsigned char>(grammar[at]))) {
            at++;
        } else {
            break;
        }
    }
    return at;
}

void check_rules(const std::string & grammar, llama_grammar_parser & parser) {
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id >= parser.rules.size() || parser.rules[id].empty()) {
            fail(grammar, rule_named(grammar, name), "the rule '" + name + "' is not defined");
        }
    }
    if (!parser.symbol_ids.count("root")) {
        fail(grammar, 0, "there is no rule 'root'");
    }
}

void check_depth(const std::string & grammar) {
    size_t depth = 0;
    for (size_t at = 0; at < grammar.size(); at++) {
        // An over-estimate (brackets inside literals count), but no real grammar comes near it.
        depth = grammar[at] == '(' ? depth + 1 : grammar[at] == ')' && depth > 0 ? depth - 1 : depth;
        if (depth > MAX_GRAMMAR_DEPTH) {
            fail(grammar, at, "nested too deeply");
        }
    }
}

// Behind a literal or a class of characters that begins at `at`.
size_t behind_quoted(const std::string & grammar, size_t at) {
    const char end = grammar[at] == '[' ? ']' : '"';
    for (at++; at < grammar.size() && grammar[at] != end; at++) {
        at += grammar[at] == '\\';
    }
    return at + 1;
}

// llama.cpp counts down from a first number that is larger than the second until memory ends, and takes a large second
// one for none.
void check_repetition(const std::string & grammar, size_t at) {
    unsigned long numbers[2] = {0, 0};
    size_t n = 0;
    for (size_t i = at + 1; i < grammar.size() && grammar[i] != '}'; i++) {
        if (std::isdigit(static_cast<unsigned char>(grammar[i]))) {
            numbers[n] = numbers[n] * 10 + static_cast<unsigned long>(grammar[i] - '0');
            if (numbers[n] > MAX_REPETITIONS) {
                fail(grammar, at, "more than " + std::to_string(MAX_REPETITIONS) + " repetitions");
            }
        } else if (grammar[i] == ',' && n == 0) {
            n = std::isdigit(static_cast<unsigned char>(grammar[skipped(grammar, i + 1)])) ? 1 : 0;
        }
    }
    if (n == 1 && numbers[1] < numbers[0]) {
        fail(grammar, at, "at least " + std::to_string(numbers[0]) + " and at most " + std::to_string(numbers[1]));
    }
}

void check_repetitions(const std::string & grammar) {
    for (size_t at = skipped(grammar, 0); at < grammar.size(); at = skipped(grammar, at)) {
        if (grammar[at] == '"' || grammar[at] == '[') {
            at = behind_quoted(grammar, at);
            continue;
        }
        if (grammar[at] == '{') {
            check_repetition(grammar, at);
        }
        at++;
    }
}

grammar_ptr made(const std::string & grammar, const llama_vocab * vocab) {
    check_depth(grammar);
    if (grammar.find('\0') != std::string::npos) {
        fail(grammar, grammar.find('\0'), "a zero byte");
    }
    check_repetitions(grammar);
    llama_grammar_parser parser(vocab);
    size_t rule = skipped(grammar, 0);
    try {
        while (rule < grammar.size()) {
            rule = static_cast<size_t>(parser.parse_rule(grammar.c_str() + rule) - grammar.c_str());
        }
    } catch (const std::exception & e) {
        fail_at_quote(grammar, rule, e.what());
    }
    check_rules(grammar, parser);
    lm_error_capture errors;
    grammar_ptr result(llama_grammar_init_impl(vocab, grammar.c_str(), "root", false, nullptr, 0, nullptr, 0));
    if (!result) {
        fail(grammar, 0, errors.text());
    }
    return result;
}

} // namespace

void lm_require_grammar(const std::string & grammar, const llama_vocab * vocab) {
    made(grammar, vocab);
}

lm_status lm_grammar_check(const char * grammar, const char * text, size_t size, bool * whole, size_t * taken) {
    return lm_guard(LM_GRAMMAR, [&] {
        lm_require(grammar, "grammar: NULL");
        lm_require(whole && taken, "whole or taken: NULL");
        lm_check_text(text, size, "text");
        const grammar_ptr rules = made(grammar, nullptr);
        const std::string bytes(text ? text : "", size);
        size_t at = 0;
        while (at < bytes.size()) {
            const std::string character = bytes.substr(at, lm_utf8_length(bytes[at]));
            try {
                llama_grammar_accept_str(*rules, character);
            } catch (const std::exception &) {
                break; // nothing of the grammar goes on with it
            }
            at += character.size();
        }
        *taken = at;
        const auto & stacks = llama_grammar_get_stacks(rules.get());
        *whole = at == bytes.size() &&
                 std::any_of(stacks.begin(), stacks.end(), [](const auto & stack) { return stack.empty(); });
    });
}
