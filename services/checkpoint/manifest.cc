#include "services/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/name.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/checkpoint/json_text.h"
#include "services/checkpoint/sealed_lines.h"
#include "services/checkpoint/sha256.h"

namespace gshard {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "gshard-checkpoint";

// The members before "tensors", in the order of their lines; the first line is
// "{".
constexpr absl::string_view kFields[] = {"format",
                                         "version",
                                         "step",
                                         "validation_loss",
                                         "model_config",
                                         "tokenizer_file",
                                         "tokenizer_sha256",
                                         "target_tokenizer_file",
                                         "target_tokenizer_sha256",
                                         "metadata"};

// The subject of a line of the manifest, even if a byte of it is wrong.
std::string PartOfLine(size_t index, absl::string_view line) {
  const size_t first_tensor = std::size(kFields) + 2;
  if (index == 0) return "the line '{'";
  if (index <= std::size(kFields)) {
    return absl::StrCat("the field '", kFields[index - 1], "'");
  }
  if (index < first_tensor) return "the field 'tensors'";
  constexpr absl::string_view kStart = "{\"name\":\"";
  const size_t end = line.find("\",\"file\":");
  if (line.substr(0, kStart.size()) == kStart &&
      end != absl::string_view::npos) {
    return absl::StrCat(
        "tensor '",
        absl::CHexEscape(line.substr(kStart.size(), end - kStart.size())),
        "' (number ", index - first_tensor, ")");
  }
  return absl::StrCat("tensor number ", index - first_tensor,
                      " or the end of the list");
}

absl::StatusOr<TensorEntry> ParseEntry(const json& value) {
  if (!value.is_object()) {
    return absl::DataLossError("expected 'tensors' to hold objects");
  }
  TensorEntry entry;
  ASSIGN_OR_RETURN(entry.name, JsonString(value, "name"));
  ASSIGN_OR_RETURN(entry.file, JsonString(value, "file"));
  ASSIGN_OR_RETURN(const std::string type, JsonString(value, "type"));
  ASSIGN_OR_RETURN(entry.type, ParseElementType(type));
  ASSIGN_OR_RETURN(entry.sha256, JsonString(value, "sha256"));
  const auto dims = value.find("dims");
  bool sound = dims != value.end() && dims->is_array();
  for (size_t i = 0; sound && i < dims->size(); ++i) {
    sound = (*dims)[i].is_number_integer();
    if (sound) entry.dims.push_back((*dims)[i].get<int64_t>());
  }
  if (!sound) {
    return absl::DataLossError(absl::StrCat(
        "tensor '", entry.name, "': expected 'dims', an array of integers"));
  }
  return entry;
}

absl::StatusOr<Manifest> ParseMembers(const json& value) {
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.step, JsonCount(value, "step"));
  const auto loss = value.find("validation_loss");
  if (loss == value.end() || (!loss->is_null() && !loss->is_number())) {
    return absl::DataLossError("expected a number 'validation_loss', or null");
  }
  if (loss->is_number()) manifest.validation_loss = loss->get<double>();
  ASSIGN_OR_RETURN(manifest.model_config, JsonString(value, "model_config"));
  ASSIGN_OR_RETURN(manifest.tokenizer_file,
                   JsonString(value, "tokenizer_file"));
  ASSIGN_OR_RETURN(manifest.tokenizer_sha256,
                   JsonString(value, "tokenizer_sha256"));
  ASSIGN_OR_RETURN(manifest.target_tokenizer_file,
                   JsonString(value, "target_tokenizer_file"));
  ASSIGN_OR_RETURN(manifest.target_tokenizer_sha256,
                   JsonString(value, "target_tokenizer_sha256"));
  const auto metadata = value.find("metadata");
  if (metadata == value.end() || !metadata->is_object()) {
    return absl::DataLossError("expected an object 'metadata'");
  }
  for (const auto& [key, unused] : metadata->items()) {
    ASSIGN_OR_RETURN(manifest.metadata[key], JsonString(*metadata, key));
  }
  const auto tensors = value.find("tensors");
  if (tensors == value.end() || !tensors->is_array()) {
    return absl::DataLossError("expected an array 'tensors'");
  }
  for (const json& tensor : *tensors) {
    ASSIGN_OR_RETURN(TensorEntry entry, ParseEntry(tensor));
    if (!manifest.tensors.empty() &&
        entry.name <= manifest.tensors.back().name) {
      return absl::DataLossError(absl::StrCat(
          "tensor '", entry.name, "' stands after '",
          manifest.tensors.back().name, "': expected order of name"));
    }
    manifest.tensors.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

// `field` is "tokenizer" or "target_tokenizer".
absl::Status CheckTokenizer(absl::string_view field, const std::string& file,
                            const std::string& sha256) {
  if (!file.empty()) {
    RETURN_IF_ERROR(
        Annotate(CheckFileName(file), absl::StrCat(field, "_file")));
    if (file == kManifestFile) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "_file must not be ", kManifestFile));
    }
  }
  if (file.empty() ? sha256.empty() : IsSha256(sha256)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected ", field, "_sha256 of 64 hexadecimal digits for ", field,
      "_file '", file, "', got '", absl::CHexEscape(sha256), "'"));
}

absl::Status CheckEntry(const TensorEntry& entry) {
  RETURN_IF_ERROR(CheckTensorName(entry.name));
  const std::string where = absl::StrCat("tensor '", entry.name, "'");
  RETURN_IF_ERROR(Annotate(CheckFileName(entry.file), where));
  RETURN_IF_ERROR(
      Annotate(TensorBytes(entry.type, entry.dims).status(), where));
  if (!IsSha256(entry.sha256)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected sha256 of 64 hexadecimal digits, got '",
                     absl::CHexEscape(entry.sha256), "'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFileName(absl::string_view name) {
  if (IsName(name) && name[0] != '.') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a file's name must be 1 to 128 letters, digits, '.', '-' and '_', not "
      "starting with '.', got '",
      absl::CHexEscape(name), "'"));
}

absl::Status CheckManifest(const Manifest& manifest) {
  if (manifest.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected step >= 0, got ", manifest.step));
  }
  if (!IsUtf8(manifest.model_config)) {
    return absl::InvalidArgumentError("model_config must be UTF-8");
  }
  if (manifest.validation_loss.has_value() &&
      !std::isfinite(*manifest.validation_loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_loss: expected a finite number, got ",
                     *manifest.validation_loss));
  }
  for (const auto& [key, value] : manifest.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return absl::InvalidArgumentError("metadata must be UTF-8");
    }
  }
  RETURN_IF_ERROR(CheckTokenizer("tokenizer", manifest.tokenizer_file,
                                 manifest.tokenizer_sha256));
  RETURN_IF_ERROR(CheckTokenizer("target_tokenizer",
                                 manifest.target_tokenizer_file,
                                 manifest.target_tokenizer_sha256));
  if (!manifest.tokenizer_file.empty() &&
      manifest.tokenizer_file == manifest.target_tokenizer_file) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_tokenizer_file: expected another file than "
                     "tokenizer_file, got '",
                     manifest.target_tokenizer_file, "'"));
  }
  std::map<absl::string_view, const TensorEntry*> seen;
  for (const TensorEntry& entry : manifest.tensors) {
    RETURN_IF_ERROR(CheckEntry(entry));
    if (entry.file == kManifestFile || entry.file == manifest.tokenizer_file ||
        entry.file == manifest.target_tokenizer_file) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", entry.name,
                       "': expected a file of tensors, got ", entry.file));
    }
    const auto [place, is_new] = seen.emplace(entry.name, &entry);
    if (!is_new) {
      return absl::AlreadyExistsError(
          absl::StrCat("tensor '", entry.name, "' is both in ",
                       place->second->file, " and in ", entry.file));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FormatManifest(const Manifest& manifest) {
  RETURN_IF_ERROR(CheckManifest(manifest));
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : manifest.tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const json fields = {
      {"format", kFormat},
      {"version", kManifestVersion},
      {"step", manifest.step},
      {"validation_loss", manifest.validation_loss.has_value()
                              ? json(*manifest.validation_loss)
                              : json()},
      {"model_config", manifest.model_config},
      {"tokenizer_file", manifest.tokenizer_file},
      {"tokenizer_sha256", manifest.tokenizer_sha256},
      {"target_tokenizer_file", manifest.target_tokenizer_file},
      {"target_tokenizer_sha256", manifest.target_tokenizer_sha256},
      {"metadata", manifest.metadata}};
  std::vector<std::string> lines = {"{"};
  for (const absl::string_view field : kFields) {
    lines.push_back(absl::StrCat(
        "\"", field, "\":", FormatJson(fields[std::string(field)]), ","));
  }
  lines.push_back("\"tensors\":[");
  for (const TensorEntry* entry : order) {
    const json type = std::string(ElementTypeName(entry->type));
    const json dims =
        std::vector<int64_t>(entry->dims.begin(), entry->dims.end());
    lines.push_back(absl::StrCat(
        "{\"name\":", FormatJson(entry->name),
        ",\"file\":", FormatJson(entry->file), ",\"type\":", FormatJson(type),
        ",\"dims\":", FormatJson(dims), ",\"sha256\":\"", entry->sha256, "\"}",
        entry == order.back() ? "" : ","));
  }
  lines.push_back("],");
  std::string text = SealLines(lines);
  if (text.size() > kMaxManifestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a manifest of at most ", kMaxManifestBytes,
                     " bytes, got ", text.size()));
  }
  return text;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return absl::DataLossError(absl::StrCat("expected a manifest of at most ",
                                            kMaxManifestBytes, " bytes, got ",
                                            text.size()));
  }
  RETURN_IF_ERROR(CheckSeal(text, PartOfLine));
  // A tensor of d dimensions takes d + 6 values and over 4 times as many bytes.
  const int64_t max_values = 16 + static_cast<int64_t>(text.size()) / 4;
  ASSIGN_OR_RETURN(
      const json value,
      ParseJsonObject(text, {.max_depth = 4, .max_values = max_values}));
  ASSIGN_OR_RETURN(const std::string format, JsonString(value, "format"));
  if (format != kFormat) {
    return absl::DataLossError(
        absl::StrCat("expected format '", kFormat, "', got '", format, "'"));
  }
  ASSIGN_OR_RETURN(const int64_t version, JsonCount(value, "version"));
  if (version != kManifestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a checkpoint of version ", kManifestVersion,
                     ", got ", version, ": it needs another release"));
  }
  auto manifest = ParseMembers(value);
  if (!manifest.ok()) return absl::DataLossError(manifest.status().message());
  return manifest;
}

}  // namespace gshard
