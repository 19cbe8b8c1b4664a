#include "services/base/amount_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gshard {

std::string GroupedText(int64_t count) {
  const std::string digits = absl::StrCat(count);
  const size_t sign = count < 0 ? 1 : 0;
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string BytesText(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B",   "KiB", "MiB",
                                           "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 2, value,
                         kUnits[unit]);
}

}  // namespace gshard
