#include "tests/testing/file_lists.h"

#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// The paths of all C++ files, without their endings.
std::set<std::string> Sources(const std::vector<SourceFile>& files) {
  std::set<std::string> sources;
  for (const SourceFile& file : files) {
    if (absl::EndsWith(file.path, ".h") || absl::EndsWith(file.path, ".cc")) {
      sources.insert(file.path.substr(0, file.path.rfind('.')));
    }
  }
  return sources;
}

}  // namespace

std::vector<std::string> FileListViolations(
    const std::vector<SourceFile>& files) {
  static const std::regex& heading =
      *new std::regex(R"(### The (\d+) files that a .*)");
  static const std::regex& item = *new std::regex(R"(- `([\w/]+)`:.*)");
  static const std::regex& quoted = *new std::regex("`(\\w+)`");
  const std::set<std::string> sources = Sources(files);
  std::vector<std::string> violations;
  size_t lists = 0;
  for (const SourceFile& file : files) {
    if (file.path != "ARCHITECTURE.md") continue;
    const auto bad = [&](int line, const std::string& what) {
      violations.push_back(absl::StrCat(file.path, ":", line, ": ", what));
    };
    int number = 0, begin = 0;  // of this line, and of the list's heading
    size_t size = 0;
    std::string room;
    std::set<std::string> listed;
    std::vector<std::string> lines = Lines(file.text);
    lines.push_back("# The end");
    for (std::string line : lines) {
      ++number;
      std::smatch match;
      if (absl::StartsWith(line, "#")) {
        if (begin > 0 && listed.size() != size) {
          bad(begin,
              absl::StrCat("says ", size, " files, and lists ", listed.size()));
        }
        begin = 0;
        listed.clear();
        if (!std::regex_match(line, match, heading)) continue;
        ++lists;
        begin = number;
        size = std::stoul(match[1].str());
      }
      if (begin == 0 || line.empty()) room.clear();
      if (begin > 0 && std::regex_match(line, match, item)) {
        room = match[1].str() + "/";
        line = line.substr(line.find(':'));
      }
      if (room.empty()) continue;
      for (std::sregex_iterator it(line.begin(), line.end(), quoted), end;
           it != end; ++it) {
        const std::string name = room + (*it)[1].str();
        if (sources.count(name) == 0) {
          bad(number, absl::StrCat("there is no file ", name));
        }
        if (!listed.insert(name).second) {
          bad(number, absl::StrCat(name, " is listed twice"));
        }
      }
    }
  }
  if (lists != 2) {
    violations.push_back(absl::StrCat(
        "ARCHITECTURE.md: expected the lists of a translation and of a step, "
        "got ",
        lists));
  }
  return violations;
}

}  // namespace gshard
