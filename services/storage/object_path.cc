#include "services/storage/object_path.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/utf8.h"

namespace gshard {
namespace {

constexpr size_t kMaxKeyBytes = 1024;

bool IsBucket(absl::string_view name) {
  return name.size() >= 3 && name.size() <= 63 &&
         absl::ascii_isalnum(name.front()) &&
         absl::ascii_isalnum(name.back()) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                  c == '.' || c == '-';
         });
}

bool IsKey(absl::string_view key) {
  if (key.size() > kMaxKeyBytes || !IsUtf8(key)) return false;
  if (std::any_of(key.begin(), key.end(), absl::ascii_iscntrl)) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(key, '/');
  return std::none_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return part.empty() || part == "." || part == "..";
  });
}

}  // namespace

std::string ObjectPath::Text() const {
  return absl::StrCat("s3://", bucket, key.empty() ? "" : "/", key);
}

absl::StatusOr<ObjectPath> ParseObjectPath(absl::string_view path) {
  absl::string_view rest = path;
  const bool is_object = absl::ConsumePrefix(&rest, "s3://");
  absl::ConsumeSuffix(&rest, "/");
  const size_t slash = std::min(rest.find('/'), rest.size());
  ObjectPath object{
      .bucket = std::string(rest.substr(0, slash)),
      .key = slash == rest.size() ? "" : std::string(rest.substr(slash + 1))};
  const bool has_key = slash < rest.size();
  if (is_object && IsBucket(object.bucket) && (!has_key || IsKey(object.key))) {
    return object;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected s3://bucket/key, with a bucket of 3 to 63 of a-z, 0-9, '.' and "
      "'-' and a key of at most ",
      kMaxKeyBytes, " bytes of UTF-8 without empty parts, '.' and '..', got '",
      absl::CHexEscape(path.substr(0, 200)), "'"));
}

}  // namespace gshard
