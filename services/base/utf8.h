// UTF-8: the only encoding of text here.

#ifndef SERVICES_BASE_UTF8_H_
#define SERVICES_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

// Reads the character at *position and moves behind it. False, with *position
// unchanged, if there is no well-formed one: overlong forms, surrogates and
// values over U+10FFFF are malformed. REQUIRES: *position < text.size().
bool NextCharacter(absl::string_view text, size_t* position, char32_t* value);

// Offset of the first malformed byte, text.size() if there is none.
size_t FirstMalformedByte(absl::string_view text);

inline bool IsUtf8(absl::string_view text) {
  return FirstMalformedByte(text) == text.size();
}

// Whether all of the text is white space, control characters, or others that do
// not show: tokenizers make nothing of it. REQUIRES: IsUtf8(text).
bool IsBlank(absl::string_view text);

// Number of characters. REQUIRES: IsUtf8(text).
size_t CountCharacters(absl::string_view text);

void AppendUtf8(char32_t value, std::string* text);

// Lowercases Latin, Greek and Cyrillic letters; others stay. The same in every
// locale. REQUIRES: IsUtf8(text).
std::string Lowercase(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_BASE_UTF8_H_
