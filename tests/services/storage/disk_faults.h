// Faulty disks, each of which stops a writer at a chosen change in its own way.

#ifndef TESTS_SERVICES_STORAGE_DISK_FAULTS_H_
#define TESTS_SERVICES_STORAGE_DISK_FAULTS_H_

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/storage/fault_points.h"
#include "services/storage/file.h"
#include "tests/services/storage/scratch_directory.h"

namespace gshard {

// Writes half of `change`, as a crash may.
inline void WriteHalf(const DiskChange& change) {
  std::fstream file(change.path,
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(change.offset));
  file.write(change.bytes.data(), change.bytes.size() / 2);
}

// Records each change in one line, with paths relative to `root` and without
// the random parts of names.
class ChangeRecorder : public FaultPoints {
 public:
  explicit ChangeRecorder(std::string root) : root_(std::move(root)) {}

  absl::Status Reach(const DiskChange& change) override {
    constexpr const char* kNames[] = {"mkdir",  "create",  "write", "sync",
                                      "rename", "syncdir", "remove"};
    lines_.push_back(
        absl::StrCat(kNames[static_cast<int>(change.kind)], " ",
                     Short(change.path), change.target.empty() ? "" : " ",
                     change.target.empty() ? "" : Short(change.target)));
    return absl::OkStatus();
  }

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::string Short(std::string path) const {
    if (path == root_) return ".";
    path = path.substr(root_.size() + 1);
    if (absl::EndsWith(path, ".tmp")) {
      path = path.substr(0, path.size() - 13) + ".tmp";  // of ".12345678.tmp"
    }
    return path;
  }

  const std::string root_;
  std::vector<std::string> lines_;
};

// Blocks a writer, once, before a change of `kind` whose path contains `part`,
// until Open().
class Gate : public FaultPoints {
 public:
  Gate(DiskChange::Kind kind, std::string part)
      : kind_(kind), part_(std::move(part)) {}

  absl::Status Reach(const DiskChange& change) override {
    if (change.kind != kind_ || !absl::StrContains(change.path, part_) ||
        passed_.exchange(true)) {
      return absl::OkStatus();
    }
    reached_.set_value();
    opened_.wait();
    return absl::OkStatus();
  }
  void WaitUntilReached() { is_reached_.wait(); }
  void Open() { open_.set_value(); }

 private:
  const DiskChange::Kind kind_;
  const std::string part_;
  std::atomic<bool> passed_{false};
  std::promise<void> reached_, open_;
  std::shared_future<void> is_reached_ = reached_.get_future().share();
  std::shared_future<void> opened_ = open_.get_future().share();
};

// Kills the process at change number `point`, in the middle of a write. Nothing
// runs afterwards, not even a sanitizer.
class DeadProcess : public FaultPoints {
 public:
  explicit DeadProcess(int point) : point_(point) {}

  absl::Status Reach(const DiskChange& change) override {
    if (count_++ < point_) return absl::OkStatus();
    if (change.kind == DiskChange::Kind::kWrite) WriteHalf(change);
    ::kill(::getpid(), SIGKILL);
    std::abort();  // not reached
  }

 private:
  const int point_;
  int count_ = 0;
};

// From change number `point` on, every change but a removal fails.
class FullDisk : public FaultPoints {
 public:
  explicit FullDisk(int point) : point_(point) {}

  absl::Status Reach(const DiskChange& change) override {
    if (count_++ < point_ || change.kind == DiskChange::Kind::kRemove) {
      return absl::OkStatus();
    }
    if (change.kind == DiskChange::Kind::kWrite) WriteHalf(change);
    return FileError(ENOSPC, "change", change.path);
  }

  int count() const { return count_; }

 private:
  const int point_;
  int count_ = 0;
};

// The power fails at change number `point`; Lose() then takes changes that were
// not synced from the disk.
//
// A name is durable once its directory is synced, a file's bytes once the file
// is synced. Lose() undoes the rest, last change first.
class PowerLoss : public FaultPoints {
 public:
  enum class Keeps {
    kNothing,  // none of the unsynced changes
    kNames,    // unsynced names but not bytes: empty files
  };

  // `attic` is a directory on the same file system that keeps removed files.
  PowerLoss(int point, Keeps keeps, std::string attic)
      : point_(point), keeps_(keeps), attic_(std::move(attic)) {}

  absl::Status Reach(const DiskChange& change) override {
    if (count_++ >= point_) return absl::UnavailableError("the power is off");
    const std::string directory =
        std::filesystem::path(change.target.empty() ? change.path
                                                    : change.target)
            .parent_path()
            .string();
    switch (change.kind) {
      case DiskChange::Kind::kMakeDirectory:
      case DiskChange::Kind::kCreate:
        names_.push_back({Name::kMade, directory, change.path, "", ""});
        break;
      case DiskChange::Kind::kWrite:
        unsynced_.insert(change.path);
        break;
      case DiskChange::Kind::kSync:
        unsynced_.erase(change.path);
        break;
      case DiskChange::Kind::kRename:
        names_.push_back({Name::kRenamed, directory, change.path, change.target,
                          Keep(change.target)});
        Rename(change.path, change.target);
        break;
      case DiskChange::Kind::kSyncDirectory:
        std::erase_if(names_, [&](const Name& name) {
          return name.directory == change.path;
        });
        break;
      case DiskChange::Kind::kRemove:
        names_.push_back(
            {Name::kRemoved, directory, change.path, "", Keep(change.path)});
        unsynced_.erase(change.path);
        break;
    }
    return absl::OkStatus();
  }

  int count() const { return count_; }

  void Lose() {
    for (const std::string& path : unsynced_) {
      std::filesystem::resize_file(path, 0);
    }
    if (keeps_ == Keeps::kNames) return;
    while (!names_.empty()) {
      const Name name = names_.back();
      names_.pop_back();
      if (name.kind == Name::kMade) {
        std::filesystem::remove_all(name.path);
      } else if (name.kind == Name::kRenamed) {
        std::filesystem::rename(name.target, name.path);
        Rename(name.target, name.path);
        Restore(name.kept, name.target);
      } else {
        Restore(name.kept, name.path);
      }
    }
  }

 private:
  // A change of a name that is not durable yet.
  struct Name {
    enum Kind { kMade, kRenamed, kRemoved };
    Kind kind;
    std::string directory;  // whose sync makes the name durable
    std::string path;
    std::string target;
    std::string
        kept;  // in the attic: the replaced or removed file; "/": a directory
  };

  // Keeps the file at `path`, if there is one, by a second link in the attic.
  std::string Keep(const std::string& path) {
    if (IsDirectory(path)) return "/";
    if (!std::filesystem::exists(path)) return "";
    const std::string kept = absl::StrCat(attic_, "/", attic_size_++);
    std::filesystem::create_hard_link(path, kept);
    return kept;
  }

  static void Restore(const std::string& kept, const std::string& path) {
    if (kept == "/") {
      std::filesystem::create_directory(path);
    } else if (!kept.empty()) {
      std::filesystem::create_hard_link(kept, path);
    }
  }

  // Makes what is known of `from` and paths below it known of `to`.
  void Rename(const std::string& from, const std::string& to) {
    const auto moved = [&](const std::string& path) {
      return path == from || absl::StartsWith(path, from + "/")
                 ? to + path.substr(from.size())
                 : path;
    };
    for (Name& name : names_) {
      if (name.kind == Name::kRenamed && name.path == from &&
          name.target == to) {
        continue;  // the rename itself
      }
      name.directory = moved(name.directory);
      name.path = moved(name.path);
      if (!name.target.empty()) name.target = moved(name.target);
    }
    std::set<std::string> unsynced;
    for (const std::string& path : unsynced_) unsynced.insert(moved(path));
    unsynced_ = std::move(unsynced);
  }

  const int point_;
  const Keeps keeps_;
  const std::string attic_;
  int attic_size_ = 0;
  int count_ = 0;
  std::vector<Name> names_;
  std::set<std::string> unsynced_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_STORAGE_DISK_FAULTS_H_
