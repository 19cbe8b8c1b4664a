#include "tests/testing/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gshard {

std::vector<SourceFile> ReadSourceTree(const std::string& root) {
  namespace fs = std::filesystem;
  static const std::set<std::string> folders = {
      "proto",  "services", "router", "expert_worker", "client",
      "deploy", "tests",    "docker", "cmake"};
  static const std::set<std::string> extensions = {
      ".h",  ".cc",  ".cu",   ".cuh",       ".proto", ".cmake", ".sh",
      ".py", ".yml", ".yaml", ".textproto", ".md",    ".json"};
  std::vector<SourceFile> files;
  const auto read = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    if (!extensions.count(path.extension().string()) &&
        name != "CMakeLists.txt" && name != "Dockerfile") {
      return;
    }
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    files.push_back({path.lexically_relative(root).string(), text.str()});
  };
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) read(entry.path());
    if (!entry.is_directory()) continue;
    if (!folders.count(entry.path().filename().string())) continue;
    for (const auto& inner : fs::recursive_directory_iterator(entry.path())) {
      if (inner.is_regular_file()) read(inner.path());
    }
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<Include> Includes(const SourceFile& file) {
  std::vector<Include> includes;
  int number = 0;
  for (const std::string& line : Lines(file.text)) {
    ++number;
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&rest, "#")) continue;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!absl::ConsumePrefix(&rest, "include")) continue;
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (rest.empty() || (rest[0] != '"' && rest[0] != '<')) continue;
    const char close = rest[0] == '"' ? '"' : '>';
    const size_t end = rest.find(close, 1);
    if (end == absl::string_view::npos) continue;
    includes.push_back(
        {number, std::string(rest.substr(1, end - 1)), close == '"'});
  }
  return includes;
}

}  // namespace gshard
