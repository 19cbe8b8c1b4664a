// gshard checkpoint inspect, verify, diff, export: shows, checks, compares and
// exports checkpoints.

#include "services/checkpoint/checkpoint.h"

#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/checkpoint_summary.h"
#include "client/command.h"
#include "client/commands.h"
#include "client/interrupt.h"
#include "client/json_output.h"
#include "client/model_files.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"
#include "services/checkpoint/checkpoint_diff.h"
#include "services/checkpoint/checkpoint_export.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/storage/object_path.h"
#include "services/storage/storage.h"

namespace gshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "CHECKPOINT";
constexpr char kFolderHelp[] =
    "the checkpoint's folder, or one that holds several";

// Parses the flags of a command that reads checkpoints, those of their store
// included.
absl::StatusOr<std::optional<Flags::Result>> ParseStoreFlags(
    Flags& flags, Arguments arguments, Console& console) {
  ObjectStoreOptions store;
  AddStoreFlags(flags, &store, /*has_insecure=*/false);
  ASSIGN_OR_RETURN(auto parsed, ParseFlags(flags, arguments, console));
  ConfigureObjectStore(store);
  return parsed;
}

// Absolute, without a trailing slash.
std::string FolderPath(const std::string& argument) {
  std::string path = AbsolutePath(argument);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The checkpoints that `path` refers to: itself, or those in it, newest first.
absl::StatusOr<std::vector<std::string>> CheckpointsAt(
    const std::string& path) {
  if (IsUrl(path)) RETURN_IF_ERROR(ParseObjectPath(path).status());
  const absl::Status manifest =
      InputFile::Open(absl::StrCat(path, "/", kManifestFile)).status();
  if (manifest.ok()) return std::vector<std::string>{path};
  if (!absl::IsNotFound(manifest)) return manifest;
  ASSIGN_OR_RETURN(auto paths, ListCheckpoints(path));
  if (!paths.empty()) return paths;
  return absl::NotFoundError(
      absl::StrCat("no checkpoint at ", path, " or in it"));
}

// What an error of a checkpoint's reader says of it.
enum class Soundness { kSound, kDamaged, kRemoved, kUnreadable };

Soundness SoundnessOf(const std::string& path, const absl::Status& status) {
  if (status.ok()) return Soundness::kSound;
  // E.g. permissions, or an object store that does not answer.
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) {
    return Soundness::kUnreadable;
  }
  // The owner of its folder may prune it after it was listed.
  const absl::StatusOr<bool> there =
      Storage::Of(path).IsCommitted(path, kManifestFile);
  return there.ok() && !*there ? Soundness::kRemoved : Soundness::kDamaged;
}

absl::string_view WordsFor(Soundness soundness) {
  switch (soundness) {
    case Soundness::kSound:
      return "sound";
    case Soundness::kDamaged:
      return "damaged";
    case Soundness::kRemoved:
      return "removed meanwhile";
    case Soundness::kUnreadable:
      return "cannot be read";
  }
  return "";
}

// One line per checkpoint in the folder `root`.
absl::Status InspectFolder(const std::string& root,
                           const std::vector<std::string>& paths, bool json,
                           std::ostream& out) {
  const std::string best = BestCheckpoint(root).value_or("");
  Table table({"checkpoint", "step", "validation loss", "tensors", "state"},
              {1, 2, 3});
  Json list = Json::array();
  bool is_newest = true;
  for (const std::string& path : paths) {
    const auto reader = CheckpointReader::Open(path);
    if (!reader.ok()) {
      const absl::string_view state =
          WordsFor(SoundnessOf(path, reader.status()));
      table.AddRow({path, "", "", "",
                    absl::StrCat(state, ": ", reader.status().message())});
      list.push_back({{"path", path},
                      {"state", std::string(state)},
                      {"problem", std::string(reader.status().message())}});
      continue;
    }
    const Manifest& manifest = (*reader)->manifest();
    std::string state = std::exchange(is_newest, false) ? "newest" : "";
    if (path == best)
      absl::StrAppend(&state, state.empty() ? "" : ", ", "best");
    const bool measured = manifest.validation_loss.has_value();
    table.AddRow({path, absl::StrCat(manifest.step),
                  measured ? absl::StrCat(*manifest.validation_loss) : "",
                  absl::StrCat(manifest.tensors.size()), state});
    list.push_back({{"path", path},
                    {"state", "opens"},
                    {"step", manifest.step},
                    {"validation_loss",
                     measured ? Json(*manifest.validation_loss) : Json()},
                    {"tensors", manifest.tensors.size()},
                    {"best", path == best}});
  }
  out << (json ? JsonText(list) + "\n" : table.ToText());
  return absl::OkStatus();
}

struct Verified {
  Soundness soundness = Soundness::kSound;
  std::vector<std::string> problems = {};  // damage
  absl::Status error = {};                 // why it cannot be read
};

// Reads the whole checkpoint at `path`, as far as it can be read.
Verified VerifyAll(const std::string& path) {
  Verified verified;
  // Whether to go on.
  const auto note = [&](const absl::Status& status) {
    switch (SoundnessOf(path, status)) {
      case Soundness::kSound:
        return true;
      case Soundness::kDamaged:
        verified.soundness = Soundness::kDamaged;
        verified.problems.emplace_back(status.message());
        return true;
      case Soundness::kRemoved:
        verified = {.soundness = Soundness::kRemoved};
        return false;
      case Soundness::kUnreadable:
        if (verified.problems.empty()) {
          verified.soundness = Soundness::kUnreadable;
        }
        verified.error = status;
        return false;
    }
    return false;
  };
  const auto reader = CheckpointReader::Open(path);
  if (!note(reader.status()) || !reader.ok()) return verified;
  const Manifest& manifest = (*reader)->manifest();
  for (const TensorEntry& entry : manifest.tensors) {
    if (!note((*reader)->Read(entry.name).status())) return verified;
  }
  if (!manifest.tokenizer_file.empty() &&
      !note((*reader)->ReadTokenizer().status())) {
    return verified;
  }
  if (!manifest.target_tokenizer_file.empty()) {
    note((*reader)->ReadTargetTokenizer().status());
  }
  return verified;
}

std::vector<std::string> DifferenceRow(const TensorDifference& difference) {
  const std::string& name = difference.name;
  if (difference.type_a.empty()) return {name, "", "only in the second"};
  if (difference.type_b.empty()) return {name, "", "only in the first"};
  if (difference.type_a != difference.type_b) {
    return {name, "",
            absl::StrCat(difference.type_a, " and ", difference.type_b)};
  }
  return {name, absl::StrFormat("%.9g", difference.max_abs),
          absl::StrFormat("%d of %d elements, first at %d: %.9g and %.9g",
                          difference.different, difference.elements,
                          difference.first, difference.first_a,
                          difference.first_b)};
}

Json DifferenceJson(const TensorDifference& difference) {
  Json json = {{"name", difference.name},
               {"type_a", difference.type_a},
               {"type_b", difference.type_b}};
  if (difference.elements > 0) {
    // JSON has no infinity: null.
    json["max_abs"] = difference.max_abs;
    json["different"] = difference.different;
    json["elements"] = difference.elements;
    json["first"] = difference.first;
    json["first_a"] = difference.first_a;
    json["first_b"] = difference.first_b;
  }
  return json;
}

}  // namespace

absl::Status CheckpointInspectCommand(Arguments arguments, Console& console) {
  bool json = false;
  Flags flags("gshard checkpoint inspect",
              "Says what a checkpoint holds: step, model, tokenizers, tensors "
              "by kind with their shapes, shards. For a folder of several, one "
              "line each, with the newest and the best by validation loss "
              "marked. Elements are not read.");
  flags.Positional(kFolder, 1, 1, kFolderHelp);
  flags.Bool("json", &json, "print JSON");
  flags.Example("gshard checkpoint inspect demo/checkpoints/step-00000500");
  ASSIGN_OR_RETURN(const auto parsed,
                   ParseStoreFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  const std::string path = FolderPath(parsed->positional[0]);
  ASSIGN_OR_RETURN(const auto paths, CheckpointsAt(path));
  if (paths.front() != path) {
    return InspectFolder(path, paths, json, *console.out);
  }
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path));
  if (json) {
    *console.out << JsonText(CheckpointToJson(path, reader->manifest()))
                 << "\n";
  } else {
    *console.out << CheckpointToText(path, reader->manifest());
  }
  return absl::OkStatus();
}

absl::Status CheckpointVerifyCommand(Arguments arguments, Console& console) {
  bool json = false;
  Flags flags("gshard checkpoint verify",
              "Reads all of a checkpoint and compares every byte with its "
              "checksums. Prints each damaged tensor, field or file; ends "
              "with 1 if there is one, or if something cannot be read. For a "
              "folder of several, all of them but those removed meanwhile.");
  flags.Positional(kFolder, 1, 1, kFolderHelp);
  flags.Bool("json", &json, "print a JSON array, one object a checkpoint");
  flags.Example("gshard checkpoint verify demo/checkpoints");
  ASSIGN_OR_RETURN(const auto parsed,
                   ParseStoreFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto paths,
                   CheckpointsAt(FolderPath(parsed->positional[0])));
  Json list = Json::array();
  int64_t damaged = 0, removed = 0;
  absl::Status error;
  for (const std::string& path : paths) {
    const Verified verified = VerifyAll(path);
    damaged += !verified.problems.empty();
    removed += verified.soundness == Soundness::kRemoved;
    error.Update(verified.error);
    const absl::string_view state = WordsFor(verified.soundness);
    list.push_back({{"path", path},
                    {"state", std::string(state)},
                    {"problems", verified.problems}});
    if (!verified.error.ok()) {
      list.back()["error"] = std::string(verified.error.message());
    }
    if (json) continue;
    *console.out << path << ": "
                 << (verified.soundness == Soundness::kDamaged ? "DAMAGED"
                                                               : state)
                 << "\n";
    for (const std::string& problem : verified.problems) {
      *console.out << "  " << problem << "\n";
    }
    if (!verified.error.ok()) {
      *console.out << "  " << verified.error.message() << "\n";
    }
    console.out->flush();
  }
  if (json) *console.out << JsonText(list) << "\n";
  if (damaged == 0) return error;
  return absl::DataLossError(absl::StrCat(
      damaged, " of ", paths.size() - removed, " checkpoints are damaged"));
}

absl::Status CheckpointDiffCommand(Arguments arguments, Console& console) {
  bool json = false;
  int64_t limit = 20;
  Flags flags("gshard checkpoint diff",
              "Compares two checkpoints, whoever wrote them and in however "
              "many shards: each tensor that differs with the largest absolute "
              "difference and the first element that is another, to the bit. "
              "Ends with 1 if they differ.");
  flags.Positional("A B", 2, 2,
                   "the checkpoints' folders; of a folder that holds several, "
                   "the newest");
  flags.Bool("json", &json, "print one JSON object");
  flags.Integer("limit", &limit, 1, 1'000'000'000,
                "tensors to print; all are compared");
  flags.Example("gshard checkpoint diff run1/checkpoints run2/checkpoints");
  ASSIGN_OR_RETURN(const auto parsed,
                   ParseStoreFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  std::vector<std::unique_ptr<CheckpointReader>> readers;
  for (const std::string& argument : parsed->positional) {
    ASSIGN_OR_RETURN(const std::string path, FindCheckpoint(argument));
    ASSIGN_OR_RETURN(readers.emplace_back(), CheckpointReader::Open(path));
  }
  Table table({"tensor", "max |a - b|", "difference"}, {1});
  Json tensors = Json::array();
  ASSIGN_OR_RETURN(
      const CheckpointDifference result,
      DiffCheckpoints(*readers[0], *readers[1],
                      [&](const TensorDifference& difference) {
                        if (static_cast<int64_t>(tensors.size()) >= limit) {
                          return;
                        }
                        tensors.push_back(DifferenceJson(difference));
                        table.AddRow(DifferenceRow(difference));
                      }));
  const std::string summary =
      result.identical()
          ? absl::StrCat("identical: ", result.tensors, " tensors")
          : absl::StrCat("different: ", result.different, " of ",
                         result.tensors, " tensors, ", result.fields.size(),
                         " fields");
  if (json) {
    const Json object = {
        {"a", readers[0]->path()},          {"b", readers[1]->path()},
        {"identical", result.identical()},  {"tensors", result.tensors},
        {"different", result.different},    {"fields", result.fields},
        {"differences", std::move(tensors)}};
    *console.out << JsonText(object) << "\n";
  } else {
    for (const std::string& field : result.fields) {
      *console.out << field << "\n";
    }
    if (!table.empty()) *console.out << table.ToText();
    if (result.different > static_cast<int64_t>(tensors.size())) {
      *console.out << "... and " << result.different - tensors.size()
                   << " more\n";
    }
    *console.out << summary << "\n";
  }
  if (result.identical()) return absl::OkStatus();
  return absl::FailedPreconditionError(summary);
}

absl::Status CheckpointExportCommand(Arguments arguments, Console& console) {
  std::string what = "weights";
  bool overwrite = false;
  Flags flags("gshard checkpoint export",
              "Writes a checkpoint's tensors, verified, to one safetensors "
              "file, which any library of the format reads. One tensor at a "
              "time is in memory.");
  flags.Positional("CHECKPOINT FILE", 2, 2,
                   "the checkpoint's folder, or one that holds several, of "
                   "which the newest is taken; the file to write");
  flags.Choice("tensors", &what, {"weights", "dense", "all"},
               "the model's; those that are no expert's; or also the "
               "optimizer's state");
  flags.Bool("overwrite", &overwrite, "replace FILE if it is there");
  flags.Example(
      "gshard checkpoint export demo/checkpoints demo.safetensors --tensors "
      "dense");
  ASSIGN_OR_RETURN(const auto parsed,
                   ParseStoreFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string path,
                   FindCheckpoint(parsed->positional[0]));
  const std::string file = AbsolutePath(parsed->positional[1]);
  if (!overwrite) {
    const absl::Status there = InputFile::Open(file).status();
    if (there.ok()) {
      return absl::AlreadyExistsError(
          absl::StrCat(file, " is there; --overwrite replaces it"));
    }
    if (!absl::IsNotFound(there)) return there;
  }
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path));
  const Interrupt interrupt;  // removes partial output
  const absl::StatusOr<Exported> exported = ExportCheckpoint(
      *reader, file,
      [&](const std::string& name) {
        const TensorKind kind = KindOfTensor(name);
        return what == "all" || kind == TensorKind::kDense ||
               (what == "weights" && kind == TensorKind::kExpert);
      },
      interrupt.token());
  RETURN_IF_ERROR(interrupt.status());
  RETURN_IF_ERROR(exported.status());
  *console.out << "wrote " << exported->tensors << " tensors, "
               << exported->bytes << " bytes, of " << path << " to " << file
               << "\n";
  return absl::OkStatus();
}

}  // namespace gshard
