#include "tests/testing/metric_names.h"

#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gshard {
namespace {

// prometheus.yml names its jobs after the programs.
bool IsProgram(const std::string& name) {
  return name == "gshard_coordinator" || name == "gshard_router" ||
         name == "gshard_expert_worker";
}

std::set<std::string> LiteralsOf(const std::vector<SourceFile>& files) {
  static const std::regex& literal = *new std::regex(R"re("(gshard_\w+)")re");
  std::set<std::string> literals;
  for (const SourceFile& file : files) {
    if (absl::StartsWith(file.path, "tests/") ||
        !(absl::EndsWith(file.path, ".cc") ||
          absl::EndsWith(file.path, ".h"))) {
      continue;
    }
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), literal),
         end;
         it != end; ++it) {
      literals.insert((*it)[1].str());
    }
  }
  return literals;
}

// The metric to which a series belongs.
std::string MetricOf(absl::string_view series) {
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    if (absl::ConsumeSuffix(&series, suffix)) break;
  }
  return std::string(series);
}

}  // namespace

std::vector<std::string> MetricNameViolations(
    const std::vector<SourceFile>& files) {
  // "gshard:x" is a rule's own name, "gshard_.*" a pattern.
  static const std::regex& name = *new std::regex(R"(\bgshard_\w+)");
  const std::set<std::string> literals = LiteralsOf(files);
  std::vector<std::string> violations;
  bool any = false;
  for (const SourceFile& file : files) {
    if (!absl::StartsWith(file.path, "deploy/monitoring/") &&
        !absl::StartsWith(file.path, "deploy/kubernetes/")) {
      continue;
    }
    int number = 0;
    for (const std::string& line : Lines(file.text)) {
      ++number;
      for (std::sregex_iterator it(line.begin(), line.end(), name), end;
           it != end; ++it) {
        const std::string found = it->str();
        if (IsProgram(found)) continue;
        any = true;
        if (literals.count(found) == 0 &&
            literals.count(MetricOf(found)) == 0) {
          violations.push_back(absl::StrCat(file.path, ":", number,
                                            ": there is no metric ", found));
        }
      }
    }
  }
  if (!any) violations.push_back("deploy/monitoring: no metric is asked for");
  return violations;
}

}  // namespace gshard
