#include "parser_walk.h"

#include <algorithm>
#include <map>

common_peg_arena lm_loaded_parser(const std::string & saved) {
    common_peg_arena arena;
    if (!saved.empty()) {
        arena.load(saved);
    }
    return arena;
}

std::vector<common_peg_parser_id> lm_inner_parsers(const common_peg_arena & arena, common_peg_parser_id id) {
    const auto & parser = arena.get(id);
    if (const auto * tag = std::get_if<common_peg_tag_parser>(&parser)) {
        return {tag->child};
    }
    if (const auto * rule = std::get_if<common_peg_rule_parser>(&parser)) {
        return {rule->child};
    }
    if (const auto * ref = std::get_if<common_peg_ref_parser>(&parser)) {
        return {arena.get_rule(ref->name)};
    }
    if (const auto * atomic = std::get_if<common_peg_atomic_parser>(&parser)) {
        return {atomic->child};
    }
    if (const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser)) {
        return {repetition->child};
    }
    if (const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser)) {
        return sequence->children;
    }
    const auto * choice = std::get_if<common_peg_choice_parser>(&parser);
    return choice ? choice->children : std::vector<common_peg_parser_id>{};
}

bool lm_is_tagged(const common_peg_arena & arena, common_peg_parser_id id, const char * tag) {
    const auto * found = std::get_if<common_peg_tag_parser>(&arena.get(id));
    return found && found->tag == tag;
}

namespace {

class Avoidance {
  public:
    Avoidance(const common_peg_arena & arena, const lm_parser_test & unwanted) : arena_(arena), unwanted_(unwanted) {}

    bool can(common_peg_parser_id id) {
        const auto [found, is_new] = known_.emplace(id, false); // no: what needs itself never ends
        if (!is_new) {
            return found->second;
        }
        return known_[id] = !unwanted_(id) && can_within(id);
    }

  private:
    bool can_within(common_peg_parser_id id) {
        const auto & parser = arena_.get(id);
        const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser);
        if (repetition && repetition->min_count == 0) {
            return true;
        }
        const auto parts = lm_inner_parsers(arena_, id);
        const auto can_part = [this](common_peg_parser_id part) { return can(part); };
        return std::holds_alternative<common_peg_choice_parser>(parser)
                   ? std::any_of(parts.begin(), parts.end(), can_part)
                   : std::all_of(parts.begin(), parts.end(), can_part);
    }

    const common_peg_arena & arena_;
    const lm_parser_test & unwanted_;
    std::map<common_peg_parser_id, bool> known_;
};

} // namespace

bool lm_can_do_without(const common_peg_arena & arena, common_peg_parser_id id, const lm_parser_test & unwanted) {
    return Avoidance(arena, unwanted).can(id);
}
