#include "services/base/utf8.h"

#include <algorithm>
#include <iterator>

namespace gshard {

bool NextCharacter(absl::string_view text, size_t* position, char32_t* value) {
  const size_t left = text.size() - *position;
  const auto byte = [&](size_t i) -> char32_t {
    return static_cast<unsigned char>(text[*position + i]);
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *value = lead;
    *position += 1;
    return true;
  }
  size_t length;
  char32_t smallest;  // a smaller value would be an overlong form
  char32_t result;
  if ((lead & 0xE0) == 0xC0) {
    length = 2, smallest = 0x80, result = lead & 0x1F;
  } else if ((lead & 0xF0) == 0xE0) {
    length = 3, smallest = 0x800, result = lead & 0x0F;
  } else if ((lead & 0xF8) == 0xF0) {
    length = 4, smallest = 0x10000, result = lead & 0x07;
  } else {
    return false;
  }
  if (left < length) return false;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return false;
    result = result << 6 | (byte(i) & 0x3F);
  }
  const bool surrogate = result >= 0xD800 && result <= 0xDFFF;
  if (result < smallest || surrogate || result > 0x10FFFF) return false;
  *value = result;
  *position += length;
  return true;
}

size_t FirstMalformedByte(absl::string_view text) {
  char32_t value;
  for (size_t i = 0; i < text.size();) {
    if (!NextCharacter(text, &i, &value)) return i;
  }
  return text.size();
}

bool IsBlank(absl::string_view text) {
  // First and last character of each range.
  static constexpr char32_t kBlank[][2] = {
      {0x00, 0x20},      // control characters, white space
      {0x7F, 0xA0},      // the same, to the no-break space
      {0x1680, 0x1680},  // Ogham space
      {0x2000, 0x200F},  // spaces, zero width, marks of direction
      {0x2028, 0x202F},  // separators, embedded direction
      {0x205F, 0x205F},  // mathematical space
      {0x2581, 0x2581},  // SentencePiece's escaped space
      {0x3000, 0x3000},  // ideographic space
      {0xFEFF, 0xFEFF},  // byte order mark
      {0xFFFD, 0xFFFD},  // replacement character
  };
  for (size_t i = 0; i < text.size();) {
    char32_t value = 0;
    if (!NextCharacter(text, &i, &value)) return false;
    const bool blank = std::any_of(
        std::begin(kBlank), std::end(kBlank), [&](const auto& range) {
          return value >= range[0] && value <= range[1];
        });
    if (!blank) return false;
  }
  return true;
}

size_t CountCharacters(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++count;
  }
  return count;
}

void AppendUtf8(char32_t value, std::string* text) {
  const auto add = [&](char32_t byte) {
    text->push_back(static_cast<char>(byte));
  };
  if (value < 0x80) {
    add(value);
  } else if (value < 0x800) {
    add(0xC0 | value >> 6);
    add(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    add(0xE0 | value >> 12);
    add(0x80 | (value >> 6 & 0x3F));
    add(0x80 | (value & 0x3F));
  } else {
    add(0xF0 | value >> 18);
    add(0x80 | (value >> 12 & 0x3F));
    add(0x80 | (value >> 6 & 0x3F));
    add(0x80 | (value & 0x3F));
  }
}

namespace {

char32_t LowercaseCharacter(char32_t c) {
  if (c >= 'A' && c <= 'Z') return c + 32;
  if (c < 0xC0) return c;
  if (c <= 0xDE && c != 0xD7) return c + 32;  // Latin-1
  if (c >= 0x100 && c <= 0x17E) {             // Latin Extended-A
    if (c == 0x130 || c == 0x131 || c == 0x138 || c == 0x149) return c;
    if (c == 0x178) return 0xFF;
    const bool odd_is_upper =
        (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E);
    return (c % 2 == 1) == odd_is_upper ? c + 1 : c;
  }
  if (c >= 0x391 && c <= 0x3A9 && c != 0x3A2) return c + 32;  // Greek
  if (c >= 0x410 && c <= 0x42F) return c + 32;                // Cyrillic
  if (c >= 0x400 && c <= 0x40F) return c + 80;
  return c;
}

}  // namespace

std::string Lowercase(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  char32_t value;
  for (size_t i = 0; i < text.size();) {
    if (!NextCharacter(text, &i, &value)) break;
    AppendUtf8(LowercaseCharacter(value), &result);
  }
  return result;
}

}  // namespace gshard
