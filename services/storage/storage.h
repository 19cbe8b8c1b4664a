// Storage: where checkpoints, tokenizers and text are: in folders of a disk, or
// in an object store at "s3://bucket/key". Whoever has a path asks Of(path) and
// need not know which.
//
// The two differ in what is atomic. A disk renames, so a folder is written
// under another name and renamed when it is whole. An object store has no
// folders, and no names but those of whole objects, so a folder is there once
// its last file is: its marker, e.g. manifest.json, which is created only if
// there is none. ListFolders(), Commit() and the like hide that.
//
// Errors of every function here are those of file.h, from an object store:
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

// A file that is being written, from its start to its end, and is there, whole,
// once it is finished. Not thread-safe.
class NewFile {
 public:
  virtual ~NewFile() = default;  // takes away what is not finished

  // On a disk in any order. In an object store, which is streamed to, where the
  // last call ended: FailedPrecondition elsewhere.
  virtual absl::Status WriteAt(uint64_t offset, absl::string_view bytes) = 0;

  // It is there, durably, in place of one of its name.
  virtual absl::Status Finish() = 0;
};

// A folder within a folder, and what has become of it.
struct StoredFolder {
  std::string name;    // "step-00001200"
  std::string suffix;  // empty: committed; ".partial": it is a draft
  std::string path;    // where its files are
};

inline constexpr absl::string_view kDraftSuffix = ".partial";

// Immutable and thread-safe.
class Storage {
 public:
  // Of the kind of `path`.
  static const Storage& Of(absl::string_view path);

  virtual ~Storage() = default;

  // Files.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path) const = 0;
  // Of `bytes` bytes.
  virtual absl::StatusOr<std::unique_ptr<NewFile>> Create(
      const std::string& path, uint64_t bytes, FaultPoints* faults) const = 0;
  // Puts `bytes` at `path` so that a reader, even after a crash, sees either
  // all of them or what was there before.
  virtual absl::Status Write(const std::string& path, absl::string_view bytes,
                             FaultPoints* faults) const = 0;

  // Folders. In an object store one is there if anything in it is.
  virtual absl::Status MakeFolder(const std::string& path,
                                  FaultPoints* faults) const = 0;
  // The names in it, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const = 0;
  // The file, or the folder with all in it. OK if there is nothing.
  virtual absl::Status Remove(const std::string& path,
                              FaultPoints* faults) const = 0;

  // Folders that are written in full or not at all. `marker` is the name of
  // their last file.

  // Where the files of `folder` are put before it is committed.
  virtual std::string DraftOf(const std::string& folder) const = 0;
  // What a file of a draft is called, so that a writer of the same draft that
  // was given up, and goes on, does not write to it: `name`, or that with
  // something added before its extension.
  virtual std::string NameInDraft(const std::string& name) const = 0;
  virtual absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                           absl::string_view marker) const = 0;
  // Adds the marker to the draft and makes that the folder. Errors: also
  // AlreadyExists if it is committed.
  virtual absl::Status Commit(const std::string& folder,
                              absl::string_view marker, absl::string_view bytes,
                              FaultPoints* faults) const = 0;
  // Removes the draft of `folder`, which stays if it is committed.
  virtual absl::Status RemoveDraft(const std::string& folder,
                                   absl::string_view marker,
                                   FaultPoints* faults) const = 0;
  // The folders in `root`, in order of name and suffix.
  virtual absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view marker) const = 0;
  // Takes the folder, one of `root` as listed, out of sight: its suffix is
  // another then. Returns where its files are. On a disk a folder of that
  // suffix is replaced, and readers that have a file open can go on.
  virtual absl::StatusOr<std::string> SetAside(const std::string& root,
                                               const StoredFolder& folder,
                                               absl::string_view suffix,
                                               absl::string_view marker,
                                               FaultPoints* faults) const = 0;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_STORAGE_H_
