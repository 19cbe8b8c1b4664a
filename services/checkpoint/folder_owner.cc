#include "services/checkpoint/folder_owner.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/json_text.h"
#include "services/checkpoint/sealed_lines.h"
#include "services/storage/input_file.h"
#include "services/storage/object_lease.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

constexpr uint64_t kMaxOwnerBytes = 64 << 10;

std::string Member(absl::string_view key, const nlohmann::json& value) {
  return absl::StrCat("\"", key, "\":", FormatJson(value), ",");
}

}  // namespace

std::string Describe(const FolderOwner& owner) {
  return absl::StrCat("job '", owner.job, "' (epoch ", owner.epoch,
                      ", process ", owner.process, " on host ", owner.host,
                      ")");
}

std::string FormatOwner(const FolderOwner& owner) {
  std::vector<std::string> lines = {"{",
                                    Member("job", owner.job),
                                    Member("epoch", owner.epoch),
                                    Member("host", owner.host),
                                    Member("process", owner.process),
                                    Member("claim", owner.claim)};
  if (owner.renewals.has_value()) {
    lines.push_back(Member("renewals", *owner.renewals));
  }
  return SealLines(lines);
}

absl::StatusOr<FolderOwner> ParseOwner(absl::string_view text) {
  RETURN_IF_ERROR(CheckSeal(text, [](size_t index, absl::string_view) {
    return absl::StrCat("line ", index + 1);
  }));
  ASSIGN_OR_RETURN(const nlohmann::json value,
                   ParseJsonObject(text, {.max_depth = 2, .max_values = 64}));
  FolderOwner owner;
  ASSIGN_OR_RETURN(owner.job, JsonString(value, "job"));
  ASSIGN_OR_RETURN(owner.epoch, JsonCount(value, "epoch"));
  ASSIGN_OR_RETURN(owner.host, JsonString(value, "host"));
  ASSIGN_OR_RETURN(owner.process, JsonCount(value, "process"));
  ASSIGN_OR_RETURN(owner.claim, JsonString(value, "claim"));
  if (value.contains("renewals")) {
    ASSIGN_OR_RETURN(owner.renewals, JsonCount(value, "renewals"));
  }
  return owner;
}

absl::StatusOr<std::optional<FolderOwner>> ReadOwner(const std::string& root) {
  const std::string path = OwnerPath(root);
  absl::StatusOr<std::string> text;
  if (IsObjectPath(root)) {
    ASSIGN_OR_RETURN(const auto object, ObjectLease::Read(path));
    if (!object.has_value()) return std::nullopt;
    text = object->text;
  } else {
    text = ReadFile(path, kMaxOwnerBytes);
    if (absl::IsNotFound(text.status())) return std::nullopt;
    RETURN_IF_ERROR(text.status());
  }
  auto owner = ParseOwner(*text);
  if (!owner.ok()) return Annotate(owner.status(), path);
  return *std::move(owner);
}

std::string OwnerPath(const std::string& root) {
  return absl::StrCat(root, "/owner.json");
}

}  // namespace gshard
