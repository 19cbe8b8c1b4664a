#include "services/storage/object_storage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/concurrently.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/storage/file.h"
#include "services/storage/object_client.h"
#include "services/storage/object_path.h"
#include "services/storage/object_upload.h"

namespace gshard {
namespace {

constexpr uint64_t kRangeBytes = 4 << 20;
constexpr size_t kAtATime = 8;  // concurrent requests per call
// A request costs about as much time as reading this many bytes.
constexpr uint64_t kGap = 64 << 10;
constexpr uint64_t kMaxMarkerBytes = uint64_t{1} << 29;

// Ranges `begin` to `end` - 1, and one that covers them all.
struct FileGroup {
  size_t begin, end;
  FileRange range;
};

// Groups ranges, sorted by offset, that have small gaps between them.
std::vector<FileGroup> GroupRanges(const std::vector<FileRange>& ranges) {
  std::vector<FileGroup> groups;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const FileRange& range = ranges[i];
    if (!groups.empty()) {
      FileGroup& last = groups.back();
      const uint64_t end = last.range.offset + last.range.size;
      const uint64_t size = range.offset + range.size - last.range.offset;
      if (range.offset >= last.range.offset && range.offset <= end + kGap &&
          size <= kRangeBytes) {
        last.end = i + 1;
        last.range.size = std::max<uint64_t>(last.range.size, size);
        continue;
      }
    }
    groups.push_back({i, i + 1, range});
  }
  return groups;
}

class ObjectFile final : public InputFile {
 public:
  ObjectFile(std::shared_ptr<ObjectClient> client, ObjectPath path,
             ObjectInfo info)
      : InputFile(path.Text(), info.bytes),
        client_(std::move(client)),
        path_(std::move(path)),
        info_(std::move(info)) {}

  absl::StatusOr<size_t> ReadSome(uint64_t offset, void* target,
                                  size_t bytes) const override {
    const size_t there = SizeOf({offset, bytes});
    char* const to = static_cast<char*>(target);
    RETURN_IF_ERROR(RunConcurrently(
        (there + kRangeBytes - 1) / kRangeBytes, kAtATime, [&](size_t i) {
          const uint64_t begin = i * kRangeBytes;
          return client_->Get(
              path_, offset + begin, info_.etag,
              absl::MakeSpan(to + begin,
                             std::min<uint64_t>(kRangeBytes, there - begin)));
        }));
    return there;
  }

  absl::StatusOr<std::vector<std::string>> ReadRanges(
      const std::vector<FileRange>& ranges) const override {
    std::vector<std::string> parts(ranges.size());
    const std::vector<FileGroup> groups = GroupRanges(ranges);
    RETURN_IF_ERROR(
        RunConcurrently(groups.size(), kAtATime, [&](size_t g) -> absl::Status {
          const FileGroup& group = groups[g];
          std::string bytes(SizeOf(group.range), '\0');
          RETURN_IF_ERROR(client_->Get(path_, group.range.offset, info_.etag,
                                       absl::MakeSpan(bytes)));
          for (size_t i = group.begin; i < group.end; ++i) {
            const uint64_t at = ranges[i].offset - group.range.offset;
            parts[i] =
                at < bytes.size() ? bytes.substr(at, ranges[i].size) : "";
          }
          return absl::OkStatus();
        }));
    return parts;
  }

  absl::StatusOr<FileVersion> Version() const override {
    return FileVersion{.inode = FoldIn(0, info_.etag),
                       .bytes = info_.bytes,
                       .modified_ns = absl::ToUnixNanos(info_.modified)};
  }

  size_t part_bytes() const override { return kAtATime * kRangeBytes; }

 private:
  // The number of bytes of the range within the object.
  size_t SizeOf(const FileRange& range) const {
    return range.offset >= size()
               ? 0
               : std::min<uint64_t>(range.size, size() - range.offset);
  }

  const std::shared_ptr<ObjectClient> client_;
  const ObjectPath path_;
  const ObjectInfo info_;
};

absl::Status Reach(FaultPoints* faults, DiskChange::Kind kind,
                   const ObjectPath& path, absl::string_view bytes = "") {
  if (faults == nullptr) return absl::OkStatus();
  return faults->Reach({kind, path.Text(), "", 0, bytes});
}

ObjectPath Within(const ObjectPath& folder, absl::string_view name) {
  return {folder.bucket,
          absl::StrCat(folder.key, folder.key.empty() ? "" : "/", name)};
}

// The prefix of the keys in the folder.
std::string PrefixOf(const ObjectPath& folder) {
  return folder.key.empty() ? "" : absl::StrCat(folder.key, "/");
}

class Objects final : public Storage {
 public:
  absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path) const override {
    ASSIGN_OR_RETURN(ObjectPath object, ParseObjectPath(path));
    ASSIGN_OR_RETURN(auto client, ProcessObjectClient());
    ASSIGN_OR_RETURN(const ObjectInfo info, client->Head(object));
    return std::make_unique<ObjectFile>(std::move(client), std::move(object),
                                        info);
  }

  absl::StatusOr<std::unique_ptr<NewFile>> Create(
      const std::string& path, uint64_t bytes,
      FaultPoints* faults) const override {
    ASSIGN_OR_RETURN(ObjectPath object, ParseObjectPath(path));
    ASSIGN_OR_RETURN(auto client, ProcessObjectClient());
    return ObjectUpload::Begin(std::move(client), std::move(object), bytes,
                               faults);
  }

  absl::Status Write(const std::string& path, absl::string_view bytes,
                     FaultPoints* faults) const override {
    ASSIGN_OR_RETURN(const auto file, Create(path, bytes.size(), faults));
    RETURN_IF_ERROR(file->WriteAt(0, bytes));
    return file->Finish();
  }

  absl::Status MakeFolder(const std::string& path,
                          FaultPoints*) const override {
    return ParseObjectPath(path).status();
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override {
    ASSIGN_OR_RETURN(const ObjectPath folder, ParseObjectPath(path));
    ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
    const std::string prefix = PrefixOf(folder);
    ASSIGN_OR_RETURN(const ObjectList list,
                     client->List(folder.bucket, prefix, "/"));
    std::vector<std::string> names;
    for (const std::vector<std::string>* part : {&list.keys, &list.prefixes}) {
      for (absl::string_view name : *part) {
        if (!absl::ConsumePrefix(&name, prefix)) continue;
        absl::ConsumeSuffix(&name, "/");
        // Some programs make empty objects for folders.
        if (!name.empty()) names.emplace_back(name);
      }
    }
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat("list '", path, "': nothing is there"));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status Remove(const std::string& path,
                      FaultPoints* faults) const override {
    ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(path));
    if (object.key.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("remove '", path, "': expected a path in a bucket"));
    }
    ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
    ASSIGN_OR_RETURN(ObjectList list,
                     client->List(object.bucket, object.key, ""));
    std::erase_if(list.keys, [&](const std::string& key) {
      return key != object.key && !absl::StartsWith(key, object.key + "/");
    });
    for (const std::string& key : list.keys) {
      const ObjectPath removed{object.bucket, key};
      RETURN_IF_ERROR(Reach(faults, DiskChange::Kind::kRemove, removed));
      RETURN_IF_ERROR(client->Delete(removed));
    }
    return absl::OkStatus();
  }

  std::string DraftOf(const std::string& folder) const override {
    return folder;
  }

  std::string NameInDraft(const std::string& name) const override {
    const size_t dot = std::min(name.rfind('.'), name.size());
    return absl::StrCat(name.substr(0, dot), ".", UniqueDigits(),
                        name.substr(dot));
  }

  absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                   absl::string_view marker) const override {
    ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(folder));
    ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
    const absl::Status found = client->Head(Within(object, marker)).status();
    if (absl::IsNotFound(found)) return false;
    RETURN_IF_ERROR(found);
    return true;
  }

  absl::Status Commit(const std::string& folder, absl::string_view marker,
                      absl::string_view bytes,
                      FaultPoints* faults) const override {
    ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(folder));
    ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
    const ObjectPath path = Within(object, marker);
    RETURN_IF_ERROR(Reach(faults, DiskChange::Kind::kCreate, path, bytes));
    return client->Put(path, bytes, {PutCondition::Kind::kAbsent}).status();
  }

  absl::Status RemoveDraft(const std::string& folder, absl::string_view marker,
                           FaultPoints* faults) const override {
    // Its files are those of the folder once that is committed, which it may be
    // though the answer was lost.
    ASSIGN_OR_RETURN(const bool is_committed, IsCommitted(folder, marker));
    return is_committed ? absl::OkStatus() : Remove(folder, faults);
  }

  // The suffix of a folder without marker is that of an object named
  // MARKER.SUFFIX, or kDraftSuffix.
  absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view prefix,
      absl::string_view marker) const override {
    ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(root));
    ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
    ASSIGN_OR_RETURN(const ObjectList list,
                     client->List(object.bucket,
                                  absl::StrCat(PrefixOf(object), prefix), "/"));
    std::vector<StoredFolder> folders;
    for (absl::string_view name : list.prefixes) {
      if (!absl::ConsumePrefix(&name, PrefixOf(object))) continue;
      absl::ConsumeSuffix(&name, "/");
      StoredFolder folder{std::string(name), "", Within(object, name).Text()};
      // The marker, and what it may be renamed to.
      const std::string begin = Within(Within(object, name), marker).key;
      ASSIGN_OR_RETURN(const ObjectList markers,
                       client->List(object.bucket, begin, ""));
      if (markers.keys.empty()) {
        folder.suffix = std::string(kDraftSuffix);
      } else {
        // The marker itself is the first in order.
        folder.suffix = markers.keys.front().substr(begin.size());
      }
      folders.push_back(std::move(folder));
    }
    return folders;
  }

  // The marker gets another name. Of a folder that has none, nothing changes.
  absl::StatusOr<std::string> SetAside(const std::string&,
                                       const StoredFolder& folder,
                                       absl::string_view suffix,
                                       absl::string_view marker,
                                       FaultPoints* faults) const override {
    if (!folder.suffix.empty()) return folder.path;
    const std::string path = absl::StrCat(folder.path, "/", marker);
    ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxMarkerBytes));
    RETURN_IF_ERROR(Write(absl::StrCat(path, suffix), bytes, faults));
    RETURN_IF_ERROR(Remove(path, faults));
    return folder.path;
  }
};

}  // namespace

const Storage& ObjectStorage() {
  static const Storage& storage = *new Objects();
  return storage;
}

}  // namespace gshard
