#include "services/base/utf8.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"

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

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) return absl::ascii_isalnum(static_cast<unsigned char>(c));
  // Of each range of spaces, punctuation and symbols the first character, and
  // the first one behind it.
  static constexpr char32_t kBounds[] = {
      // Latin-1, without ordinal indicators, soft hyphen, numbers and micro.
      0x80, 0xAA, 0xAB, 0xAD, 0xAE, 0xB2, 0xB4, 0xB5, 0xB6, 0xB9, 0xBB, 0xBC,
      0xBF, 0xC0, 0xD7, 0xD8, 0xF7, 0xF8,
      // Punctuation of Greek, Armenian, Hebrew and Arabic.
      0x37E, 0x37F, 0x387, 0x388, 0x55A, 0x560, 0x589, 0x58B, 0x5BE, 0x5BF,
      0x5C0, 0x5C1, 0x5C3, 0x5C4, 0x5F3, 0x5F5, 0x60C, 0x60E, 0x61B, 0x61C,
      0x61E, 0x620, 0x66A, 0x66E, 0x6D4, 0x6D5,
      // Of Indic scripts, Thai, Tibetan, Myanmar, Ethiopic, Ogham, Khmer and
      // Mongolian.
      0x964, 0x966, 0xE4F, 0xE50, 0xE5A, 0xE5C, 0xF08, 0xF15, 0x104A, 0x1050,
      0x1361, 0x1369, 0x1680, 0x1681, 0x17D4, 0x17D7, 0x17D8, 0x17DC, 0x1800,
      0x180B,
      // Spaces, dashes and quotes, without zero-width joiners.
      0x2000, 0x200C, 0x200E, 0x2070,
      // Currencies, numero, trade marks, arrows, mathematics, boxes, dingbats,
      // rarer punctuation; without enclosed letters.
      0x20A0, 0x20D0, 0x2116, 0x2118, 0x2122, 0x2123, 0x2190, 0x2460, 0x2500,
      0x2C00, 0x2E00, 0x2E80,
      // Of Chinese and Japanese, without marks of iteration and numbers.
      0x3000, 0x3005, 0x3008, 0x3021, 0x3030, 0x3031, 0x303D, 0x3040, 0x30A0,
      0x30A1, 0x30FB, 0x30FC,
      // Variants of pictures; vertical, small and full-width forms; the byte
      // order mark, the replacement character.
      0xFE00, 0xFE20, 0xFE30, 0xFE70, 0xFEFF, 0xFF00, 0xFF01, 0xFF10, 0xFF1A,
      0xFF21, 0xFF3B, 0xFF41, 0xFF5B, 0xFF66, 0xFFE0, 0xFFFE,
      // Pictures.
      0x1F000, 0x1FB00};
  const auto* const next =
      std::upper_bound(std::begin(kBounds), std::end(kBounds), c);
  return (next - std::begin(kBounds)) % 2 == 0;
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
