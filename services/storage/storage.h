// Storage: access to checkpoints, tokenizers and text, in folders on disk or in
// an object store at "s3://bucket/key". Callers use Of(path) and need not know
// which.
//
// The two differ in what is atomic. On a disk a folder is written under another
// name and renamed when it is complete. An object store has no folders and no
// rename, so a folder exists once its last file does: its marker, e.g.
// manifest.json, which is created only if absent. ListFolders(), Commit() and
// the like hide that.
//
// Errors of every function here are those of file.h; in an object store:
//   NOT_FOUND           no such object or bucket
//   ALREADY_EXISTS      what was to be created only if absent is there
//   ABORTED             what was to be replaced is not what it was
//   RESOURCE_EXHAUSTED  a quota is used up
//   PERMISSION_DENIED   no credentials, or not for this
//   DATA_LOSS           the object is shorter than asked
//   FAILED_PRECONDITION the object has changed since it was opened; a region or
//                       an endpoint that may not be used
//   INVALID_ARGUMENT    not a path as ParseObjectPath takes it
//   UNAVAILABLE         anything else, after retries
//
// Functions that change something take an object that is consulted before each
// change (fault_points.h), or null; it must outlive them.

#ifndef SERVICES_STORAGE_STORAGE_H_
#define SERVICES_STORAGE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/storage/fault_points.h"
#include "services/storage/input_file.h"

namespace gshard {

// A file being written, which appears, complete, once it is finished. Not
// thread-safe.
class NewFile {
 public:
  virtual ~NewFile() = default;  // removes an unfinished file

  // On a disk in any order. In an object store, which streams, only where the
  // last call ended: FailedPrecondition elsewhere.
  virtual absl::Status WriteAt(uint64_t offset, absl::string_view bytes) = 0;

  // Makes the file durable and visible, replacing any of its name.
  virtual absl::Status Finish() = 0;
};

// A folder within a folder, and its state.
struct StoredFolder {
  std::string name;    // "step-00001200"
  std::string suffix;  // empty: committed; ".partial": a draft
  std::string path;    // where its files are
};

inline constexpr absl::string_view kDraftSuffix = ".partial";

// Immutable and thread-safe.
class Storage {
 public:
  // The storage for `path`.
  static const Storage& Of(absl::string_view path);

  virtual ~Storage() = default;

  // Files.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path) const = 0;
  // A file of `bytes` bytes.
  virtual absl::StatusOr<std::unique_ptr<NewFile>> Create(
      const std::string& path, uint64_t bytes, FaultPoints* faults) const = 0;
  // Writes `bytes` to `path` so that a reader, even after a crash, sees either
  // all of them or the previous content.
  virtual absl::Status Write(const std::string& path, absl::string_view bytes,
                             FaultPoints* faults) const = 0;

  // Folders. In an object store one exists if anything in it does.
  virtual absl::Status MakeFolder(const std::string& path,
                                  FaultPoints* faults) const = 0;
  // The names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const = 0;
  // Removes a file, or a folder with its contents. OK if there is nothing.
  virtual absl::Status Remove(const std::string& path,
                              FaultPoints* faults) const = 0;

  // Folders that are written atomically. `marker` is the name of their last
  // file.

  // Where the files of `folder` are written before it is committed.
  virtual std::string DraftOf(const std::string& folder) const = 0;
  // The name of a file in a draft: `name`, or with a unique part before its
  // extension, so that an abandoned writer of the same draft that continues
  // does not write to it.
  virtual std::string NameInDraft(const std::string& name) const = 0;
  virtual absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                           absl::string_view marker) const = 0;
  // Adds the marker to the draft and makes it the folder. Errors: also
  // AlreadyExists if it is already committed.
  virtual absl::Status Commit(const std::string& folder,
                              absl::string_view marker, absl::string_view bytes,
                              FaultPoints* faults) const = 0;
  // Removes the draft of `folder`, unless it is committed.
  virtual absl::Status RemoveDraft(const std::string& folder,
                                   absl::string_view marker,
                                   FaultPoints* faults) const = 0;
  // The folders in `root` whose names begin with `prefix`, sorted by name and
  // suffix. An error if something of such a name cannot be looked at: it may be
  // one.
  virtual absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view prefix,
      absl::string_view marker) const = 0;
  // Hides a folder listed in `root` by changing its suffix. Returns where its
  // files are then. On a disk a folder of that suffix is replaced, and readers
  // with open files can continue.
  virtual absl::StatusOr<std::string> SetAside(const std::string& root,
                                               const StoredFolder& folder,
                                               absl::string_view suffix,
                                               absl::string_view marker,
                                               FaultPoints* faults) const = 0;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_STORAGE_H_
