#include "services/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/storage/input_file.h"
#include "services/storage/storage.h"

namespace gshard {
namespace {

constexpr absl::string_view kStepPrefix = "step-";
constexpr absl::string_view kRemovedSuffix = ".removed";
constexpr absl::string_view kDamagedSuffix = ".damaged";

// A folder made by this code. Without suffix it is a checkpoint.
struct Folder : StoredFolder {
  int64_t step = 0;
};

// Parses "step-00001200.partial"; nothing for another name.
std::optional<Folder> ParseName(const StoredFolder& stored) {
  Folder folder{stored};
  absl::string_view name = stored.name;
  if (!absl::ConsumePrefix(&name, kStepPrefix) || name.empty() ||
      name.find_first_not_of("0123456789") != name.npos ||
      !absl::SimpleAtoi(name, &folder.step) ||
      (!folder.suffix.empty() && folder.suffix != kDraftSuffix &&
       folder.suffix != kRemovedSuffix && folder.suffix != kDamagedSuffix)) {
    return std::nullopt;
  }
  return folder;
}

// Newest first; empty if the root does not exist.
absl::StatusOr<std::vector<Folder>> ListFolders(const std::string& root) {
  const auto all =
      Storage::Of(root).ListFolders(root, kStepPrefix, kManifestFile);
  if (absl::IsNotFound(all.status())) return std::vector<Folder>();
  RETURN_IF_ERROR(all.status());
  std::vector<Folder> folders;
  for (const StoredFolder& stored : *all) {
    std::optional<Folder> folder = ParseName(stored);
    if (folder.has_value()) folders.push_back(*std::move(folder));
  }
  std::stable_sort(
      folders.begin(), folders.end(),
      [](const Folder& a, const Folder& b) { return a.step > b.step; });
  return folders;
}

// Whether the checkpoint itself is bad, rather than a temporary problem.
bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

using Check = std::function<absl::Status(const CheckpointReader&)>;

// The newest checkpoint up to that of `last` that opens and passes `check`.
absl::StatusOr<std::unique_ptr<CheckpointReader>> Newest(
    const std::string& root, int64_t last, const Check& check) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListCheckpoints(root, last));
  while (!paths.empty()) {
    std::vector<std::pair<std::string, absl::Status>> bad;
    std::unique_ptr<CheckpointReader> found;
    for (size_t i = 0; i < paths.size() && found == nullptr; ++i) {
      auto reader = CheckpointReader::Open(paths[i]);
      absl::Status status = reader.status();
      if (status.ok()) status = check(**reader);
      if (status.ok()) {
        found = *std::move(reader);
      } else if (IsDamage(status)) {
        bad.emplace_back(paths[i], status);
      } else {
        return status;
      }
    }
    if (bad.empty()) return found;
    // Its owner may have removed some meanwhile, once there was a newer one.
    ASSIGN_OR_RETURN(std::vector<std::string> now, ListCheckpoints(root, last));
    if (found == nullptr && now != paths) {
      paths = std::move(now);
      continue;
    }
    for (const auto& [path, status] : bad) {
      if (std::find(now.begin(), now.end(), path) == now.end()) continue;
      LogWarning("DAMAGED CHECKPOINT PASSED OVER",
                 {{"path", path}, {"status", status}});
    }
    if (found != nullptr) return found;
    return absl::DataLossError(
        absl::StrCat("none of ", paths.size(), " checkpoints in '", root,
                     "' can be read; the newest: ", bad[0].second.message()));
  }
  return absl::NotFoundError(absl::StrCat("no checkpoint in '", root, "'"));
}

absl::StatusOr<std::string> SetAside(const std::string& root,
                                     const Folder& folder,
                                     absl::string_view suffix,
                                     FaultPoints* faults) {
  return Storage::Of(root).SetAside(root, folder, suffix, kManifestFile,
                                    faults);
}

// Without its manifest it is not a checkpoint, so that is removed first. Of a
// checkpoint that is a link, only the link is ours.
absl::Status RemoveFolder(const std::string& path, FaultPoints* faults) {
  const Storage& storage = Storage::Of(path);
  std::error_code error;  // e.g. it is not there
  if (!std::filesystem::is_symlink(path, error)) {
    RETURN_IF_ERROR(
        storage.Remove(absl::StrCat(path, "/", kManifestFile), faults));
  }
  return storage.Remove(path, faults);
}

bool IsOneOf(const std::string& path, const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(), [&](const std::string& other) {
    std::error_code error;  // e.g. it is not there
    return path == other ||
           (std::filesystem::equivalent(path, other, error) && !error);
  });
}

// A checkpoint that opens.
struct Candidate {
  std::string path;
  int64_t step = 0;
  std::optional<double> validation_loss;
};

// Newest first. Errors: those of CheckpointReader::Open other than damage.
absl::StatusOr<std::vector<Candidate>> ListCandidates(const std::string& root) {
  ASSIGN_OR_RETURN(const auto paths, ListCheckpoints(root));
  std::vector<Candidate> candidates;
  for (const std::string& path : paths) {
    const auto reader = CheckpointReader::Open(path);
    if (reader.ok()) {
      candidates.push_back({path, (*reader)->manifest().step,
                            (*reader)->manifest().validation_loss});
    } else if (!IsDamage(reader.status())) {
      return reader.status();
    }
  }
  return candidates;
}

// Those with a validation loss, lowest first.
std::vector<Candidate> ByLoss(std::vector<Candidate> candidates) {
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [](const Candidate& c) {
                                    return !c.validation_loss.has_value();
                                  }),
                   candidates.end());
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) {
              return std::pair(*a.validation_loss, a.step) <
                     std::pair(*b.validation_loss, b.step);
            });
  return candidates;
}

}  // namespace

std::string CheckpointPath(const std::string& root, int64_t step) {
  return absl::StrFormat("%s/%s%08d", root, kStepPrefix, step);
}

std::string PartialCheckpointPath(const std::string& root, int64_t step) {
  return Storage::Of(root).DraftOf(CheckpointPath(root, step));
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(
    const std::string& root, int64_t last) {
  ASSIGN_OR_RETURN(const auto folders, ListFolders(root));
  std::vector<std::string> paths;
  for (const Folder& folder : folders) {
    if (folder.suffix.empty() && folder.step <= last) {
      paths.push_back(folder.path);
    }
  }
  return paths;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenLatestCheckpoint(
    const std::string& root, int64_t last) {
  return Newest(root, last, [](const CheckpointReader& reader) {
    return reader.VerifyTokenizers();
  });
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  ASSIGN_OR_RETURN(const auto reader, OpenLatestCheckpoint(root));
  return reader->path();
}

absl::StatusOr<std::string> CheckpointAt(const std::string& path) {
  const absl::Status manifest =
      InputFile::Open(absl::StrCat(path, "/", kManifestFile)).status();
  if (absl::IsNotFound(manifest)) return LatestCheckpoint(path);
  RETURN_IF_ERROR(manifest);
  return path;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> LatestGoodCheckpoint(
    const std::string& root, std::stop_token stop, int64_t last) {
  return Newest(root, last, [&](const CheckpointReader& reader) {
    return reader.Verify(stop);
  });
}

absl::StatusOr<std::string> BestCheckpoint(const std::string& root) {
  ASSIGN_OR_RETURN(auto candidates, ListCandidates(root));
  candidates = ByLoss(std::move(candidates));
  if (!candidates.empty()) return candidates.front().path;
  return absl::NotFoundError(absl::StrCat(
      "no checkpoint in '", root, "' says what its validation loss was"));
}

absl::StatusOr<std::string> CheckpointUpTo(const std::string& root,
                                           int64_t step) {
  ASSIGN_OR_RETURN(const auto candidates, ListCandidates(root));
  for (const Candidate& candidate : candidates) {
    if (candidate.step <= step) return candidate.path;
  }
  return absl::NotFoundError(absl::StrCat("no checkpoint in '", root,
                                          "' of step ", step, " or before"));
}

absl::Status ClearAfter(const std::string& root, int64_t step,
                        FaultPoints* faults, int64_t last) {
  ASSIGN_OR_RETURN(const auto folders, ListFolders(root));
  for (const Folder& folder : folders) {
    if (folder.suffix == kDraftSuffix) {
      // A worker of an earlier attempt may still write to that name.
      ASSIGN_OR_RETURN(const std::string aside,
                       SetAside(root, folder, kRemovedSuffix, faults));
      RETURN_IF_ERROR(RemoveFolder(aside, faults));
    } else if (folder.suffix == kRemovedSuffix) {
      RETURN_IF_ERROR(RemoveFolder(folder.path, faults));
    } else if (folder.suffix.empty() && folder.step > step &&
               folder.step <= last) {
      ASSIGN_OR_RETURN(const std::string aside,
                       SetAside(root, folder, kDamagedSuffix, faults));
      LogWarning("damaged checkpoint set aside", {{"path", aside}});
    }
  }
  return absl::OkStatus();
}

absl::Status PruneCheckpoints(const std::string& root, const KeepPolicy& keep,
                              FaultPoints* faults) {
  if (keep.last < 1 || keep.best < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected to keep the last >= 1 and the best >= 0 "
                     "checkpoints, got ",
                     keep.last, " and ", keep.best));
  }
  ASSIGN_OR_RETURN(const auto candidates, ListCandidates(root));
  std::set<std::string> kept, good;
  int64_t oldest = -1;  // step of the oldest that `last` keeps
  for (const Candidate& candidate : candidates) {
    good.insert(candidate.path);
    if (static_cast<int64_t>(good.size()) <= keep.last) {
      kept.insert(candidate.path);
    }
    if (static_cast<int64_t>(good.size()) == keep.last) oldest = candidate.step;
  }
  const std::vector<Candidate> by_loss = ByLoss(candidates);
  for (size_t i = 0; i < by_loss.size() && static_cast<int64_t>(i) < keep.best;
       ++i) {
    kept.insert(by_loss[i].path);
  }
  ASSIGN_OR_RETURN(const auto folders, ListFolders(root));
  for (const Folder& folder : folders) {
    if (IsOneOf(folder.path, keep.pinned)) continue;
    const bool is_damaged =
        folder.suffix == kDamagedSuffix ||
        (folder.suffix.empty() && good.count(folder.path) == 0);
    const bool goes =
        is_damaged ? folder.step < oldest
                   : folder.suffix.empty() && kept.count(folder.path) == 0;
    if (!goes) continue;
    std::string path = folder.path;
    if (folder.suffix.empty()) {
      ASSIGN_OR_RETURN(path, SetAside(root, folder, kRemovedSuffix, faults));
    }
    RETURN_IF_ERROR(RemoveFolder(path, faults));
  }
  return absl::OkStatus();
}

absl::Status RemoveLeftovers(const std::string& root, int64_t step,
                             FaultPoints* faults) {
  ASSIGN_OR_RETURN(const auto folders, ListFolders(root));
  for (const Folder& folder : folders) {
    if (folder.suffix == kRemovedSuffix ||
        (folder.suffix == kDraftSuffix && folder.step < step)) {
      RETURN_IF_ERROR(RemoveFolder(folder.path, faults));
    }
  }
  return absl::OkStatus();
}

}  // namespace gshard
