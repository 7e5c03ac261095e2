#include "grammar.h"

#include "guard.h"
#include "utf8.h"

#include "llama-grammar.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

// llama.cpp's parser calls itself for each bracket.
constexpr size_t MAX_GRAMMAR_DEPTH = 512;
// Above it llama.cpp's parser takes an upper limit for none.
constexpr size_t MAX_REPETITIONS = 2000;
// The parser writes out what is repeated; 16 bytes or so for each element.
constexpr size_t MAX_ELEMENTS = size_t{1} << 22;
// llama.cpp looks for left recursion by calling itself, and once for each way that leads to a rule.
constexpr size_t MAX_CHAIN = 5000;
constexpr uint64_t MAX_WAYS = uint64_t{1} << 26;

// Of so many parts in a row any may be left out, before llama.cpp's time for one character (it grows with the third
// power) is felt.
constexpr size_t MAX_EMPTY_PARTS = 100;

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
    const bool unfinished = message.find("end of input") != std::string::npos;
    fail(grammar, unfinished ? grammar.size() : rule, message);
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

// Reads GBNF only as far as it takes to find the repetitions and what they repeat. Where it is wrong the parser says
// so.
class Repetitions {
  public:
    explicit Repetitions(const std::string & grammar) : grammar_(grammar) {}

    void check() {
        for (at_ = skipped(grammar_, 0); at_ < grammar_.size(); at_ = skipped(grammar_, at_)) {
            const char c = grammar_[at_];
            if (c == '"' || c == '[') {
                item_ = length_to(c == '"' ? '"' : ']');
            } else if (c == '<') {
                at_ = std::min(grammar_.find('>', at_), grammar_.size() - 1) + 1;
                item_ = 1;
            } else if (c == '{') {
                repeat();
            } else {
                at_++;
                // Behind a bracket, a name or a dot there is one reference or element; a sign adds one.
                item_ = c == '*' || c == '+' || c == '?' ? item_ + 1 : 1;
            }
        }
    }

  private:
    size_t length_to(char close) {
        const size_t begin = ++at_;
        while (at_ < grammar_.size() && grammar_[at_] != close) {
            at_ += grammar_[at_] == '\\' ? 2 : 1;
        }
        at_ = std::min(at_, grammar_.size());
        const size_t n = at_ - begin;
        at_ = std::min(at_ + 1, grammar_.size());
        return n;
    }

    void repeat() {
        const size_t begin = at_;
        at_ = skipped(grammar_, at_ + 1);
        const size_t least = number(begin);
        at_ = skipped(grammar_, at_);
        size_t most = least;
        if (at_ < grammar_.size() && grammar_[at_] == ',') {
            at_ = skipped(grammar_, at_ + 1);
            const bool limited = at_ < grammar_.size() && std::isdigit(static_cast<unsigned char>(grammar_[at_]));
            most = limited ? number(begin) : std::max<size_t>(least, 1);
        }
        if (most < least) {
            fail(grammar_, begin,
                 "a repetition of at least " + std::to_string(least) + " and at most " + std::to_string(most));
        }
        item_ = std::max<size_t>(item_, 1) * std::max<size_t>(most, 1);
        elements_ += item_ + most;
        if (elements_ > MAX_ELEMENTS) {
            fail(grammar_, begin, "the grammar would be too large with this many repetitions of something this long");
        }
    }

    // 0 where there is none, which the parser reports.
    size_t number(size_t begin) {
        size_t n = 0;
        for (; at_ < grammar_.size() && std::isdigit(static_cast<unsigned char>(grammar_[at_])); at_++) {
            n = n * 10 + static_cast<size_t>(grammar_[at_] - '0');
            if (n > MAX_REPETITIONS) {
                fail(grammar_, begin,
                     "more than " + std::to_string(MAX_REPETITIONS) +
                         " repetitions; nest them with a rule: block ::= x{1000}, and then block{0,2} x{0,999}");
            }
        }
        return n;
    }

    const std::string & grammar_;
    size_t at_ = 0;
    size_t item_ = 1;
    size_t elements_ = 0;
};

// Refuses rules that begin with themselves, and those that begin with others in so many ways, or so deep, that
// llama.cpp's own search for such would take for ever or all of the stack.
class Beginnings {
  public:
    Beginnings(const std::string & grammar, const llama_grammar_parser & parser)
        : grammar_(grammar), parser_(parser), ways_(parser.rules.size()), depths_(parser.rules.size()),
          states_(parser.rules.size(), State::fresh) {}

    void check() {
        for (uint32_t id = 0; id < states_.size(); id++) {
            visit(id);
        }
    }

  private:
    enum class State { fresh, asked, done };

    void visit(uint32_t first) {
        std::vector<uint32_t> todo{first};
        while (!todo.empty()) {
            const uint32_t id = todo.back();
            if (states_[id] != State::fresh) {
                todo.pop_back();
                if (states_[id] == State::asked) {
                    weigh(id);
                    states_[id] = State::done;
                }
                continue;
            }
            states_[id] = State::asked;
            for (const uint32_t next : beginnings(id)) {
                if (states_[next] == State::fresh) {
                    todo.push_back(next);
                }
            }
        }
    }

    void weigh(uint32_t id) {
        uint64_t ways = 1;
        size_t depth = 0;
        for (const uint32_t next : beginnings(id)) {
            if (states_[next] != State::done) {
                fail_at_rule(id, "begins with itself (left recursion)");
            }
            ways = std::min(ways + ways_[next], MAX_WAYS + 1);
            depth = std::max(depth, depths_[next]);
        }
        ways_[id] = ways;
        depths_[id] = depth + 1;
        total_ += ways;
        if (total_ > MAX_WAYS) {
            fail_at_rule(id, "can begin in too many ways");
        }
        if (depths_[id] > MAX_CHAIN) {
            fail_at_rule(id, "begins with a chain of too many rules");
        }
    }

    bool may_be_empty(uint32_t id) const {
        bool begins = true;
        for (const auto & element : parser_.rules[id]) {
            const bool ends = element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
            if (ends && begins) {
                return true;
            }
            begins = ends;
        }
        return false;
    }

    std::vector<uint32_t> beginnings(uint32_t id) const {
        std::vector<uint32_t> found;
        bool begins = true;
        for (const auto & element : parser_.rules[id]) {
            if (element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT) {
                begins = true;
            } else if (element.type == LLAMA_GRETYPE_RULE_REF && begins) {
                found.push_back(element.value);
                begins = may_be_empty(element.value);
            } else {
                begins = false;
            }
        }
        return found;
    }

    [[noreturn]] void fail_at_rule(uint32_t id, const std::string & why) const {
        for (const auto & [name, number] : parser_.symbol_ids) {
            if (number == id) {
                // A rule that the parser made of a bracket or a repetition has the name of the one around it, and a
                // number.
                const std::string written = name.substr(0, name.find('_'));
                fail(grammar_, rule_named(grammar_, written), "the rule '" + written + "' " + why);
            }
        }
        fail(grammar_, 0, "a rule " + why);
    }

    const std::string & grammar_;
    const llama_grammar_parser & parser_;
    std::vector<uint64_t> ways_;
    std::vector<size_t> depths_;
    std::vector<State> states_;
    uint64_t total_ = 0;
};

// Refuses rows of parts that may all be empty, like ("a"?){500}: each of them can be the next to begin.
class EmptyParts {
  public:
    EmptyParts(const std::string & grammar, const llama_grammar_parser & parser)
        : grammar_(grammar), rules_(parser.rules), symbols_(parser.symbol_ids), empty_(rules_.size()),
          leading_(rules_.size()), known_(rules_.size()) {}

    void check() {
        find_empty();
        for (uint32_t id = 0; id < rules_.size(); id++) {
            size_t row = 0;
            for (const auto & element : rules_[id]) {
                row = may_be_empty(element) ? row + weight(element.value) : 0;
                if (row > MAX_EMPTY_PARTS) {
                    fail_at_rule(id, row);
                }
            }
        }
    }

  private:
    bool may_be_empty(const llama_grammar_element & element) const {
        return element.type == LLAMA_GRETYPE_RULE_REF && empty_[element.value];
    }

    // From the end: a rule that the parser makes for a bracket comes behind the one that needs it.
    void find_empty() {
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t id = rules_.size(); id-- > 0;) {
                if (!empty_[id] && has_empty_alternative(id)) {
                    empty_[id] = changed = true;
                }
            }
        }
    }

    bool has_empty_alternative(size_t id) const {
        bool all = true;
        for (const auto & element : rules_[id]) {
            if (element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT) {
                if (all) {
                    return true;
                }
                all = true;
            } else {
                all = all && may_be_empty(element);
            }
        }
        return false;
    }

    // The parts that may be left out where a rule begins, at least the rule itself.
    size_t weight(uint32_t id) {
        if (known_[id]) {
            return std::max<size_t>(leading_[id], 1);
        }
        known_[id] = true;
        size_t most = 0, row = 0;
        bool leads = true;
        for (const auto & element : rules_[id]) {
            if (element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT) {
                row = 0;
                leads = true;
            } else if (leads && (leads = may_be_empty(element))) {
                row = std::min(row + weight(element.value), 2 * MAX_EMPTY_PARTS);
                most = std::max(most, row);
            }
        }
        leading_[id] = most;
        return std::max<size_t>(most, 1);
    }

    [[noreturn]] void fail_at_rule(uint32_t id, size_t row) const {
        for (const auto & [name, number] : symbols_) {
            if (number == id) {
                const std::string written = name.substr(0, name.find('_'));
                fail(grammar_, rule_named(grammar_, written),
                     "the rule '" + written + "' has more than " + std::to_string(MAX_EMPTY_PARTS) +
                         " parts in a row that may all be empty, which takes llama.cpp minutes for each token; repeat "
                         "what is "
                         "not empty: \"a\"{0,500} instead of (\"a\"?){500}");
            }
        }
        fail(grammar_, 0, std::to_string(row) + " parts in a row may all be empty");
    }

    const std::string & grammar_;
    const llama_grammar_rules & rules_;
    const std::map<std::string, uint32_t> & symbols_;
    std::vector<bool> empty_;
    std::vector<size_t> leading_;
    std::vector<bool> known_;
};

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

grammar_ptr made(const std::string & grammar, const llama_vocab * vocab) {
    check_depth(grammar);
    if (grammar.find('\0') != std::string::npos) {
        fail(grammar, grammar.find('\0'), "a zero byte");
    }
    Repetitions(grammar).check();
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
    Beginnings(grammar, parser).check();
    EmptyParts(grammar, parser).check();
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
