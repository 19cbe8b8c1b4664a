// ObjectStorage: objects in an S3-compatible store, at "s3://bucket/key". A
// folder is a prefix. See storage.h for the differences to a disk.

#ifndef SERVICES_STORAGE_OBJECT_STORAGE_H_
#define SERVICES_STORAGE_OBJECT_STORAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "services/storage/storage.h"

namespace gshard {

// Uses the process's client.
class ObjectStorage final : public Storage {
 public:
  absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path) const override;
  absl::StatusOr<std::unique_ptr<NewFile>> Create(
      const std::string& path, uint64_t bytes,
      FaultPoints* faults) const override;
  absl::Status Write(const std::string& path, absl::string_view bytes,
                     FaultPoints* faults) const override;
  absl::Status MakeFolder(const std::string& path,
                          FaultPoints* faults) const override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override;
  absl::Status Remove(const std::string& path,
                      FaultPoints* faults) const override;
  std::string DraftOf(const std::string& folder) const override {
    return folder;
  }
  std::string NameInDraft(const std::string& name) const override;
  absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                   absl::string_view marker) const override;
  absl::Status Commit(const std::string& folder, absl::string_view marker,
                      absl::string_view bytes,
                      FaultPoints* faults) const override;
  absl::Status RemoveDraft(const std::string& folder, absl::string_view marker,
                           FaultPoints* faults) const override;
  // The suffix of a folder without marker is taken from an object named
  // MARKER.SUFFIX, else it is kDraftSuffix.
  absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view marker) const override;
  // Renames the marker. Changes nothing in a folder that has none.
  absl::StatusOr<std::string> SetAside(const std::string& root,
                                       const StoredFolder& folder,
                                       absl::string_view suffix,
                                       absl::string_view marker,
                                       FaultPoints* faults) const override;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_STORAGE_H_
