#include "services/config/fields.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/name.h"
#include "services/config/language_name.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxQuotedBytes = 64;  // limit for values in errors

bool IsPath(const std::string& text) {
  return text.size() <= kMaxPathBytes && text.find('\0') == std::string::npos;
}

std::string Quote(const std::string& text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  return absl::StrCat("\"",
                      absl::Utf8SafeCEscape(text.substr(0, kMaxQuotedBytes)),
                      cut ? "..." : "", "\"");
}

}  // namespace

void FieldChecker::Integer(const char* name, int64_t field, int64_t low,
                           int64_t high) {
  if (field >= low && field <= high) return;
  Fail(name, absl::StrCat(low, " to ", high), absl::StrCat(field));
}

void FieldChecker::Real(const char* name, double field, Interval interval) {
  if (interval.Contains(field)) return;
  Fail(name, interval.ToString(), absl::StrCat(field));
}

void FieldChecker::Text(const char* name, const std::string& field,
                        TextKind kind, Presence presence) {
  if (field.empty()) {
    if (presence == Presence::kRequired) Fail(name, "a value", "nothing");
    return;
  }
  if (kind == TextKind::kName && !IsName(field)) {
    Fail(name,
         absl::StrCat("1 to ", kMaxNameBytes,
                      " letters, digits, '.', '_' or '-'"),
         Quote(field));
  } else if (kind == TextKind::kLanguage && !IsLanguageName(field)) {
    Fail(name, "1 to 32 letters, digits, '_', '-' or '@', not s, pad or unk",
         Quote(field));
  } else if (kind == TextKind::kPath && !IsPath(field)) {
    Fail(name, absl::StrCat("a path of 1 to ", kMaxPathBytes, " bytes"),
         absl::StrCat(field.size(), " bytes, ", Quote(field)));
  } else if (kind == TextKind::kPath && IsUrl(field) && !IsObjectPath(field)) {
    Fail(name, "a path of a disk, or s3://bucket/path", Quote(field));
  }
}

void FieldChecker::EnumNumber(const char* name, int number,
                              const google::protobuf::EnumDescriptor* values) {
  if (number != 0 && values->FindValueByNumber(number) != nullptr) return;
  std::vector<std::string> names;
  for (int i = 1; i < values->value_count(); ++i) {
    names.push_back(values->value(i)->name());
  }
  const auto* got = values->FindValueByNumber(number);
  Fail(name, absl::StrJoin(names, " or "),
       got != nullptr ? got->name() : absl::StrCat(number));
}

void FieldChecker::Fail(const char* name, absl::string_view expected,
                        absl::string_view got) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(prefix_, name, ": expected ", expected, ", got ", got));
}

}  // namespace gshard
