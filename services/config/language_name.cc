#include "services/config/language_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace gshard {

bool IsLanguageName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxLanguageBytes) return false;
  if (name == "s" || name == "pad" || name == "unk") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
           c == '-' || c == '@';
  });
}

}  // namespace gshard
