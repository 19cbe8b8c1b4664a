#include "services/coordinator/preparation/job_files.h"

#include <fnmatch.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/concurrently.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/storage/canonical_path.h"
#include "services/storage/file.h"
#include "services/storage/input_file.h"
#include "services/storage/object_path.h"
#include "services/storage/storage.h"
#include "services/tokenizer/trainer.h"

namespace gshard {
namespace {

// Files that are looked at: a store takes a while for each, and whoever submits
// a job waits for all.
constexpr size_t kAtATime = 32;

// `field` names something that was asked for with `error`. InvalidArgument only
// if it takes another job, or other files, to do better: a disk or store that
// is away for a while is no fault of the job.
absl::Status FieldError(absl::string_view field, absl::string_view expected,
                        const absl::Status& error) {
  const std::string message =
      absl::StrCat(field, ": ", expected, ": ", error.message());
  switch (error.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
      return absl::InvalidArgumentError(message);
    default:
      return absl::Status(error.code(), message);
  }
}

absl::Status CheckReadable(absl::string_view field, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status status = InputFile::Open(path).status();
  if (status.ok()) return status;
  return FieldError(field, "expected a readable file", status);
}

// The folder need not exist: then its nearest ancestor that does is looked at.
absl::Status CheckWritable(absl::string_view field, const std::string& folder) {
  if (folder.empty() || IsObjectPath(folder)) return absl::OkStatus();
  std::filesystem::path there = folder;
  // With a dot behind it, a file is an error too.
  while (access((there / ".").c_str(), W_OK | X_OK) != 0) {
    if (errno == ENOENT && there.has_relative_path()) {
      there = there.parent_path();
      continue;
    }
    return FieldError(field, "expected a folder that can be written",
                      FileError(errno, "write in", there.string()));
  }
  return absl::OkStatus();
}

bool IsPattern(absl::string_view path) {
  return path.find_first_of("*?[") != path.npos;
}

// The objects that match a pattern in the last part of a path.
absl::StatusOr<std::vector<std::string>> MatchObjects(
    const std::string& pattern) {
  const size_t slash = pattern.rfind('/');
  const std::string folder = pattern.substr(0, slash);
  const std::string last = pattern.substr(slash + 1);
  std::vector<std::string> paths;
  const auto names = Storage::Of(folder).List(folder);
  if (absl::IsNotFound(names.status()) && IsPattern(folder)) {
    return absl::InvalidArgumentError(
        "in an object store a pattern is expected in the last part only");
  }
  RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (fnmatch(last.c_str(), name.c_str(), FNM_PERIOD) == 0) {
      paths.push_back(absl::StrCat(folder, "/", name));
    }
  }
  return paths;
}

// Paths that match, in order of name; nothing if none does.
absl::StatusOr<std::vector<std::string>> Match(const std::string& pattern) {
  if (IsObjectPath(pattern)) return MatchObjects(pattern);
  std::vector<std::string> paths;
  glob_t found;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  // By bytes, independent of the locale.
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::Status Expand(const std::string& field, std::vector<TextFile>* files) {
  const auto name = [&](size_t i) {
    return absl::StrCat(field, "[", i, "].path");
  };
  std::vector<char> is_pattern(files->size());
  RETURN_IF_ERROR(RunConcurrently(files->size(), kAtATime, [&](size_t i) {
    const std::string& path = (*files)[i].path;
    const absl::Status status = CheckReadable(name(i), path);
    is_pattern[i] = absl::IsInvalidArgument(status) && IsPattern(path);
    return is_pattern[i] ? absl::OkStatus() : status;
  }));
  std::vector<TextFile> all;
  std::vector<std::pair<size_t, size_t>> matching;  // in `all`, of a pattern
  for (size_t i = 0; i < files->size(); ++i) {
    const TextFile& file = (*files)[i];
    if (!is_pattern[i]) {
      all.push_back(file);
      continue;
    }
    auto paths = Match(file.path);
    const std::string none = absl::StrCat("no file matches ", file.path);
    if (!paths.ok()) return FieldError(name(i), none, paths.status());
    if (paths->empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name(i), ": ", none));
    }
    // Any number of patterns may match the same files: what is asked for is
    // bounded before it is kept or opened.
    if (all.size() + paths->size() > kMaxTextFiles) {
      return absl::InvalidArgumentError(absl::StrCat(
          name(i), ": expected at most ", kMaxTextFiles, " files in ", field,
          ", got ", all.size() + paths->size(), " or more"));
    }
    for (std::string& path : *paths) {
      matching.emplace_back(all.size(), i);
      all.push_back(file);
      all.back().path = std::move(path);
    }
  }
  RETURN_IF_ERROR(RunConcurrently(matching.size(), kAtATime, [&](size_t m) {
    const auto [place, pattern] = matching[m];
    return CheckReadable(name(pattern), all[place].path);
  }));
  *files = std::move(all);
  return absl::OkStatus();
}

// The size of a vocabulary that is trained for lack of a file.
absl::Status CheckVocabularySize(absl::string_view side,
                                 const std::string& tokenizer_path,
                                 int64_t size) {
  if (!tokenizer_path.empty()) return absl::OkStatus();
  if (size >= kMinVocabSize && size <= kMaxVocabSize) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.", side, "_vocabulary_size: expected ", kMinVocabSize, " to ",
      kMaxVocabSize, " without data.", side, "_tokenizer_path, got ", size));
}

// Later attempts begin with the same checkpoint, whatever its job writes
// meanwhile.
absl::Status FindInitialCheckpoint(TrainingJob* job) {
  if (job->initialize_from.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto own, ListCheckpoints(job->checkpoint.directory));
  if (!own.empty()) {
    // A rollback may lead back to the start.
    const auto newest = OpenLatestCheckpoint(job->checkpoint.directory);
    const auto writer = newest.ok() ? WriterOf(**newest) : std::nullopt;
    if (writer.has_value() && !writer->initialize_from().empty()) {
      job->initialize_from = writer->initialize_from();
    }
    return absl::OkStatus();
  }
  const auto found = CheckpointAt(job->initialize_from);
  // The codes of a checkpoint that is named itself, see OpenInitial().
  if (absl::IsDataLoss(found.status()) ||
      absl::IsFailedPrecondition(found.status())) {
    return Annotate(found.status(), "initialize_from");
  }
  if (!found.ok()) {
    return FieldError("initialize_from", "expected a readable checkpoint",
                      found.status());
  }
  job->initialize_from = *found;
  if (!IsWithin(job->checkpoint.directory, *found)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint.directory: expected a folder outside the checkpoint ", *found,
      ", which initialize_from names, got ", job->checkpoint.directory));
}

}  // namespace

absl::Status FindJobFiles(TrainingJob* job) {
  TrainingData& data = job->data;
  if (IsObjectPath(job->summary_directory)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "summary_directory: expected a folder of a disk, whose files can grow, "
        "got ",
        job->summary_directory));
  }
  RETURN_IF_ERROR(
      CheckWritable("checkpoint.directory", job->checkpoint.directory));
  RETURN_IF_ERROR(CheckWritable("summary_directory", job->summary_directory));
  RETURN_IF_ERROR(CheckReadable("data.train_path", data.train_path));
  RETURN_IF_ERROR(CheckReadable("data.dev_path", data.dev_path));
  RETURN_IF_ERROR(
      CheckReadable("data.source_tokenizer_path", data.source_tokenizer_path));
  RETURN_IF_ERROR(
      CheckReadable("data.target_tokenizer_path", data.target_tokenizer_path));
  RETURN_IF_ERROR(Expand("data.train_files", &data.train_files));
  RETURN_IF_ERROR(Expand("data.dev_files", &data.dev_files));
  RETURN_IF_ERROR(FindInitialCheckpoint(job));
  if (job->initialize_from.empty()) {  // which has tokenizers
    RETURN_IF_ERROR(CheckVocabularySize("source", data.source_tokenizer_path,
                                        job->model.source_vocabulary_size));
    if (!job->model.shared_vocabulary) {
      RETURN_IF_ERROR(CheckVocabularySize("target", data.target_tokenizer_path,
                                          job->model.target_vocabulary_size));
    }
  }
  return ValidateTrainingJob(*job);
}

absl::Duration TimeToIndex(const TrainingData& data) {
  constexpr double kBytesPerSecond = 256 << 10;
  std::vector<TextFile> files = TrainFiles(data);
  const std::vector<TextFile> held_out = DevFiles(data);
  files.insert(files.end(), held_out.begin(), held_out.end());
  std::atomic<uint64_t> bytes = 0;
  RunConcurrently(files.size(), kAtATime, [&](size_t i) {
    const auto opened = InputFile::Open(files[i].path);
    if (opened.ok()) bytes += (*opened)->size();
    return absl::OkStatus();
  }).IgnoreError();
  return absl::Seconds(static_cast<double>(bytes) / kBytesPerSecond);
}

}  // namespace gshard
