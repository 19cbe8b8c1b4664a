#include "tests/testing/failure_table.h"

#include <regex>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

constexpr size_t kColumns = 5;

// The names of all tests, "Suite.Name", and the paths of all files of tests.
std::set<std::string> Proofs(const std::vector<SourceFile>& files) {
  static const std::regex& test =
      *new std::regex(R"(\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\))");
  std::set<std::string> proofs;
  for (const SourceFile& file : files) {
    if (!absl::StartsWith(file.path, "tests/")) continue;
    proofs.insert(file.path);
    if (!absl::EndsWith(file.path, ".cc")) continue;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), test), end;
         it != end; ++it) {
      proofs.insert(absl::StrCat((*it)[1].str(), ".", (*it)[2].str()));
    }
  }
  return proofs;
}

// The cells of a row of a table, without the space around them.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells = absl::StrSplit(line, '|');
  if (cells.size() < 3) return {};
  cells.erase(cells.begin());
  cells.pop_back();
  for (std::string& cell : cells) {
    cell = std::string(absl::StripAsciiWhitespace(cell));
  }
  return cells;
}

}  // namespace

std::vector<std::string> FailureTableViolations(
    const std::vector<SourceFile>& files) {
  static const std::regex& quoted = *new std::regex("`([^`]*)`");
  const std::set<std::string> proofs = Proofs(files);
  std::vector<std::string> violations;
  size_t rows = 0;
  for (const SourceFile& file : files) {
    if (file.path != "ARCHITECTURE.md") continue;
    bool inside = false;
    int number = 0;
    for (const std::string& line : Lines(file.text)) {
      ++number;
      if (absl::StartsWith(line, "| what fails")) {
        inside = true;
        continue;
      }
      if (!absl::StartsWith(line, "|")) inside = false;
      if (!inside || absl::StartsWith(line, "|-")) continue;
      ++rows;
      const auto bad = [&](const std::string& what) {
        violations.push_back(absl::StrCat(file.path, ":", number, ": ", what));
      };
      const std::vector<std::string> cells = Cells(line);
      if (cells.size() != kColumns) {
        bad(absl::StrCat("expected ", kColumns, " cells, got ", cells.size()));
        continue;
      }
      for (const std::string& cell : cells) {
        if (cell.empty()) bad("a cell is empty");
      }
      const std::string& shown = cells.back();
      size_t names = 0;
      for (std::sregex_iterator it(shown.begin(), shown.end(), quoted), end;
           it != end; ++it) {
        ++names;
        const std::string name = (*it)[1].str();
        if (proofs.count(name) == 0) {
          bad(absl::StrCat("there is no test ", name));
        }
      }
      if (names == 0) bad("no test is named");
    }
  }
  if (rows == 0) violations.push_back("ARCHITECTURE.md: no table of failures");
  return violations;
}

}  // namespace gshard
