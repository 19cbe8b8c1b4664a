// UTF-8: the only text encoding used here.

#ifndef SERVICES_BASE_UTF8_H_
#define SERVICES_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

// Reads the character at *position and advances past it. False, with *position
// unchanged, if it is malformed: overlong forms, surrogates and values over
// U+10FFFF are. REQUIRES: *position < text.size().
bool NextCharacter(absl::string_view text, size_t* position, char32_t* value);

// Offset of the first malformed byte; text.size() if there is none.
size_t FirstMalformedByte(absl::string_view text);

inline bool IsUtf8(absl::string_view text) {
  return FirstMalformedByte(text) == text.size();
}

// Whether the text has only white space, control characters or other invisible
// ones, from which tokenizers make no tokens. REQUIRES: IsUtf8(text).
bool IsBlank(absl::string_view text);

// Whether the character may be part of a word. Beyond ASCII all are, except
// spaces, punctuation and symbols: digits and combining marks of all scripts
// are, too, and so are invisible ones inside of words, as the soft hyphen.
bool IsWordCharacter(char32_t c);

// Number of characters. REQUIRES: IsUtf8(text).
size_t CountCharacters(absl::string_view text);

void AppendUtf8(char32_t value, std::string* text);

// Lowercases Latin, Greek and Cyrillic letters and keeps others, in any locale.
// REQUIRES: IsUtf8(text).
std::string Lowercase(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_BASE_UTF8_H_
