// Tokens of one answer to text that may be shown.
#include "text.h"

#include "guard.h"
#include "utf8.h"

#include "json.h"

#include <algorithm>

namespace {

constexpr const char * KIND = "text";
constexpr const char * REPLACEMENT = "\xEF\xBF\xBD"; // U+FFFD

// Moves whole characters from `raw` to `clean`, invalid bytes as U+FFFD; leaves the beginning of a character.
void take_characters(std::string & raw, std::string & clean) {
    size_t at = 0;
    while (at < raw.size()) {
        const auto lead = static_cast<unsigned char>(raw[at]);
        const size_t length = lm_utf8_length(static_cast<char>(lead));
        if (length == 0) {
            clean += REPLACEMENT;
            at++;
            continue;
        }
        size_t have = 1;
        while (have < length && at + have < raw.size() &&
               lm_utf8_follows(lead, have, static_cast<unsigned char>(raw[at + have]))) {
            have++;
        }
        if (have == length) {
            clean.append(raw, at, length);
        } else if (at + have == raw.size()) {
            break;
        } else {
            clean += REPLACEMENT;
        }
        at += have;
    }
    raw.erase(0, at);
}

// The id of a text that is one token; LLAMA_TOKEN_NULL if it is several.
llama_token single_token(const llama_vocab * vocab, const std::string & text) {
    llama_token ids[2];
    const int32_t n = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), ids, 2, false, true);
    return n == 1 ? ids[0] : LLAMA_TOKEN_NULL;
}

} // namespace

void lm_text::append_piece(llama_token token) {
    const bool shown = special || visible.count(token) > 0;
    char buffer[128];
    const int32_t n = llama_token_to_piece(vocab, token, buffer, sizeof(buffer), 0, shown);
    if (n >= 0) {
        raw.append(buffer, static_cast<size_t>(n));
        return;
    }
    const size_t at = raw.size();
    raw.resize(at + static_cast<size_t>(-n));
    llama_token_to_piece(vocab, token, &raw[at], -n, 0, shown);
}

// The place of the earliest stop string in `held`; npos if there is none.
size_t lm_text::find_stop() const {
    size_t first = std::string::npos;
    for (const auto & stop : stops) {
        first = std::min(first, held.find(stop));
    }
    return first;
}

// How many bytes at the end of `held` could be the beginning of a stop string.
size_t lm_text::undecided() const {
    size_t longest = 0;
    for (const auto & stop : stops) {
        const size_t most = std::min(stop.size() - 1, held.size());
        for (size_t n = most; n > longest; n--) {
            if (held.compare(held.size() - n, n, stop, 0, n) == 0) {
                longest = n;
                break;
            }
        }
    }
    return longest;
}

lm_finish lm_text::push(llama_token token) {
    if (stop_tokens.count(token) > 0) {
        return LM_FINISH_STOP;
    }
    append_piece(token);
    take_characters(raw, held);
    const size_t stop = find_stop();
    if (stop != std::string::npos) {
        ready.append(held, 0, stop);
        held.clear();
        raw.clear();
        return LM_FINISH_STOP;
    }
    const size_t keep = undecided();
    ready.append(held, 0, held.size() - keep);
    held.erase(0, held.size() - keep);
    return LM_FINISH_NONE;
}

void lm_text::flush() {
    if (!raw.empty()) {
        held += REPLACEMENT;
        raw.clear();
    }
    ready += held;
    held.clear();
}

lm_status lm_text_create(const llama_model * model, const char * json, lm_text ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        auto text = std::make_unique<lm_text>();
        text->vocab = llama_model_get_vocab(model);
        lm_require(llama_vocab_type(text->vocab) != LLAMA_VOCAB_TYPE_NONE, "model: it has no vocabulary");
        const common_json options = common_json::parse(lm_checked_json(json, "json"));
        lm_require(options.is_object(), "json: not an object");
        for (const auto & [key, value] : options.items()) {
            if (key == "stop") {
                text->stops = value.get<std::vector<std::string>>();
                for (const auto & stop : text->stops) {
                    lm_require(!stop.empty(), "stop: an empty string would stop everything");
                }
            } else if (key == "stop_tokens") {
                const auto ids = value.get<std::vector<int>>();
                text->stop_tokens.insert(ids.begin(), ids.end());
            } else if (key == "special") {
                text->special = value.get<bool>();
            } else if (key == "visible_tokens") {
                for (const auto & entry : value) {
                    lm_require(entry.is_string() || entry.is_number_integer(), "visible_tokens: ids or strings");
                    const llama_token id =
                        entry.is_string() ? single_token(text->vocab, entry.get<std::string>()) : entry.get<int>();
                    text->visible.insert(id);
                }
            } else {
                lm_invalid(key + ": unknown field");
            }
        }
        lm_handle_add(text.get(), KIND);
        *out = text.release();
    });
}

lm_status lm_text_free(lm_text * text) {
    return lm_guard(LM_INTERNAL, [&] {
        if (!lm_handle_remove(text, KIND)) {
            lm_invalid("text: not a live handle");
        }
        delete text;
    });
}

lm_text & lm_text_require(lm_text * text) {
    lm_handle_require(text, KIND);
    return *text;
}

lm_status lm_text_push(lm_text * handle, llama_token token, const char ** bytes, size_t * size, lm_finish * finish) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_text & text = lm_text_require(handle);
        lm_require(bytes && size && finish, "bytes: NULL");
        if (token < 0 || token >= llama_vocab_n_tokens(text.vocab)) {
            lm_invalid("token: " + std::to_string(token) + " is not in the vocabulary");
        }
        text.ready.clear();
        *finish = text.push(token);
        *bytes = text.ready.data();
        *size = text.ready.size();
    });
}

lm_status lm_text_flush(lm_text * handle, const char ** bytes, size_t * size) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_text & text = lm_text_require(handle);
        lm_require(bytes && size, "bytes: NULL");
        text.ready.clear();
        text.flush();
        *bytes = text.ready.data();
        *size = text.ready.size();
    });
}

lm_status lm_special_tokens(const llama_model * model, char ** out) {
    return lm_guard(LM_INTERNAL, [&] {
        lm_require(model, "model: NULL");
        lm_require(out, "out: NULL");
        const llama_vocab * vocab = llama_model_get_vocab(model);
        common_json texts = common_json::array();
        for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
            // The others are found in any text, or in none.
            if (llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) {
                texts.push_back(std::string(llama_vocab_get_text(vocab, token)));
            }
        }
        *out = lm_string_copy(texts.dump_safe());
    });
}
