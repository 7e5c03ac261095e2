// UTF-8 that comes in pieces which need not end where a character does.
#pragma once

#include <cstddef>
#include <string>

// Length of the character that `lead` begins; 0 if it cannot begin one.
size_t lm_utf8_length(char lead);

// Whether `byte` may follow at place `at` (>= 1) of a character that begins with `lead`.
bool lm_utf8_follows(unsigned char lead, size_t at, unsigned char byte);

// Where a text stands: behind a whole character, or within one.
class lm_utf8_place {
  public:
    bool is_whole() const { return have_ == 0; }
    // Whether the text stays well-formed with `piece` behind it, which may end within a character.
    bool takes(const std::string & piece) const;
    // Goes on behind `piece`. Behind a byte that does not belong there a new character begins.
    void add(const std::string & piece);

  private:
    unsigned char lead_ = 0;
    size_t have_ = 0; // bytes of the character that begins with `lead_`

    bool step(unsigned char byte);
};
