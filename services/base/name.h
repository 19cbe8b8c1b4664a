// The characters of names: of members, models, their versions, files.

#ifndef SERVICES_BASE_NAME_H_
#define SERVICES_BASE_NAME_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxNameBytes = 128;

// A letter, a digit, '.', '_' or '-'.
inline bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
         c == '_' || c == '-';
}

// Whether it is 1 to kMaxNameBytes of them.
inline bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), IsNameCharacter);
}

}  // namespace gshard

#endif  // SERVICES_BASE_NAME_H_
