#include "client/checkpoint_summary.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "services/base/check.h"
#include "services/base/table.h"
#include "services/checkpoint/tensor_spec.h"

namespace gshard {
namespace {

constexpr absl::string_view kOptimizerPrefix = "optimizer/";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// "a.*.b/*" for "a.3.b/17": replaces numbers between dots and slashes.
std::string PatternOf(absl::string_view name) {
  std::string pattern;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && name[end] != '.' && name[end] != '/') ++end;
    bool is_number = end > i;
    for (size_t k = i; k < end; ++k) is_number &= IsDigit(name[k]);
    absl::StrAppend(
        &pattern, is_number ? absl::string_view("*") : name.substr(i, end - i),
        name.substr(end, 1));
    i = end + 1;
  }
  return pattern;
}

uint64_t BytesOf(const TensorEntry& entry) {
  return TensorBytes(entry.type, entry.dims).value_or(0);
}

// "1234567 (1.2 MB)".
std::string BytesText(uint64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = larger;
  }
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.1f %s", value, unit);
}

struct Shard {
  int64_t tensors = 0;
  uint64_t bytes = 0;
};

std::map<std::string, Shard> ShardsOf(const Manifest& manifest) {
  std::map<std::string, Shard> shards;
  for (const TensorEntry& entry : manifest.tensors) {
    ++shards[entry.file].tensors;
    shards[entry.file].bytes += BytesOf(entry);
  }
  return shards;
}

uint64_t TotalBytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const TensorEntry& entry : manifest.tensors) bytes += BytesOf(entry);
  return bytes;
}

}  // namespace

absl::string_view TensorKindName(TensorKind kind) {
  switch (kind) {
    case TensorKind::kDense:
      return "dense";
    case TensorKind::kExpert:
      return "expert";
    case TensorKind::kOptimizer:
      return "optimizer";
  }
  CHECK(false);
}

TensorKind KindOfTensor(absl::string_view name) {
  if (absl::StartsWith(name, kOptimizerPrefix)) return TensorKind::kOptimizer;
  const size_t slash = name.rfind('/');
  if (slash == absl::string_view::npos || slash + 1 == name.size()) {
    return TensorKind::kDense;
  }
  for (const char c : name.substr(slash + 1)) {
    if (!IsDigit(c)) return TensorKind::kDense;
  }
  return TensorKind::kExpert;
}

std::vector<TensorGroup> GroupTensors(const Manifest& manifest) {
  std::map<std::tuple<TensorKind, std::string, std::string>, TensorGroup>
      groups;
  for (const TensorEntry& entry : manifest.tensors) {
    const TensorKind kind = KindOfTensor(entry.name);
    const std::string pattern = PatternOf(entry.name);
    const std::string type = TypeString(entry.type, entry.dims);
    TensorGroup& group = groups[{kind, pattern, type}];
    group.kind = kind;
    group.name = pattern;
    group.type = type;
    ++group.tensors;
    group.bytes += BytesOf(entry);
  }
  std::vector<TensorGroup> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

std::string CheckpointToText(const std::string& path,
                             const Manifest& manifest) {
  std::string text = absl::StrCat(path, "\n\nstep             ", manifest.step,
                                  "\nvalidation loss  ");
  absl::StrAppend(&text, manifest.validation_loss.has_value()
                             ? absl::StrCat(*manifest.validation_loss)
                             : "not measured");
  const std::pair<const char*, const std::string*> files[] = {
      {"tokenizer        ", &manifest.tokenizer_file},
      {"target tokenizer ", &manifest.target_tokenizer_file}};
  for (const auto& [label, file] : files) {
    if (!file->empty()) absl::StrAppend(&text, "\n", label, *file);
  }
  absl::StrAppend(&text, "\ntensors          ", manifest.tensors.size(), ", ",
                  BytesText(TotalBytes(manifest)), "\n\nmodel\n  ",
                  absl::StrReplaceAll(manifest.model_config, {{"\n", "\n  "}}));
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) {
    text.pop_back();
  }
  Table groups({"kind", "name", "of one", "tensors", "bytes"}, {3, 4});
  for (const TensorGroup& group : GroupTensors(manifest)) {
    groups.AddRow({std::string(TensorKindName(group.kind)), group.name,
                   group.type, absl::StrCat(group.tensors),
                   BytesText(group.bytes)});
  }
  Table shards({"shard", "tensors", "bytes"}, {1, 2});
  for (const auto& [file, shard] : ShardsOf(manifest)) {
    shards.AddRow({file, absl::StrCat(shard.tensors), BytesText(shard.bytes)});
  }
  return absl::StrCat(text, "\n\n", groups.ToText(), "\n", shards.ToText());
}

nlohmann::ordered_json CheckpointToJson(const std::string& path,
                                        const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["path"] = path;
  json["step"] = manifest.step;
  json["validation_loss"] = nullptr;
  if (manifest.validation_loss.has_value()) {
    json["validation_loss"] = *manifest.validation_loss;
  }
  json["model_config"] = manifest.model_config;
  json["tokenizer_file"] = manifest.tokenizer_file;
  json["target_tokenizer_file"] = manifest.target_tokenizer_file;
  json["metadata"] = manifest.metadata;
  json["tensors"] = manifest.tensors.size();
  json["bytes"] = TotalBytes(manifest);
  json["groups"] = nlohmann::ordered_json::array();
  for (const TensorGroup& group : GroupTensors(manifest)) {
    json["groups"].push_back({{"kind", std::string(TensorKindName(group.kind))},
                              {"name", group.name},
                              {"type", group.type},
                              {"tensors", group.tensors},
                              {"bytes", group.bytes}});
  }
  json["shards"] = nlohmann::ordered_json::array();
  for (const auto& [file, shard] : ShardsOf(manifest)) {
    json["shards"].push_back(
        {{"file", file}, {"tensors", shard.tensors}, {"bytes", shard.bytes}});
  }
  return json;
}

}  // namespace gshard
