// FolderStorage: folders and files on disk. Durable: a function's changes are
// on the device when it returns.

#ifndef SERVICES_STORAGE_FOLDER_STORAGE_H_
#define SERVICES_STORAGE_FOLDER_STORAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "services/storage/storage.h"

namespace gshard {

class FolderStorage final : public Storage {
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
  std::string DraftOf(const std::string& folder) const override;
  std::string NameInDraft(const std::string& name) const override {
    return name;
  }
  absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                   absl::string_view marker) const override;
  absl::Status Commit(const std::string& folder, absl::string_view marker,
                      absl::string_view bytes,
                      FaultPoints* faults) const override;
  absl::Status RemoveDraft(const std::string& folder, absl::string_view marker,
                           FaultPoints* faults) const override;
  absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view marker) const override;
  absl::StatusOr<std::string> SetAside(const std::string& root,
                                       const StoredFolder& folder,
                                       absl::string_view suffix,
                                       absl::string_view marker,
                                       FaultPoints* faults) const override;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_FOLDER_STORAGE_H_
