#include "client/routing_tables.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/base/table.h"

namespace gshard {
namespace {

using Tokens = google::protobuf::RepeatedPtrField<v1::TokenRouting>;

// "12 0.61", of fixed width.
std::string VisitCell(const v1::ExpertVisit& visit) {
  const std::string weight = visit.overflowed() ? "full"
                             : visit.hosts().empty()
                                 ? "lost"
                                 : absl::StrFormat("%.2f", visit.weight());
  return absl::StrFormat("%4d %4s", visit.expert(), weight);
}

std::string TokenTable(const std::string& side, const Tokens& tokens) {
  std::vector<std::string> columns = {"", side};
  for (const v1::TokenLayerRouting& layer : tokens[0].layers()) {
    columns.push_back("   " + layer.layer());
  }
  Table table(std::move(columns), {0});
  for (int t = 0; t < tokens.size(); ++t) {
    std::vector<std::string> row = {absl::StrCat(t), tokens[t].piece()};
    for (const v1::TokenLayerRouting& layer : tokens[t].layers()) {
      std::string cell;
      for (const v1::ExpertVisit& visit : layer.visits()) {
        absl::StrAppend(&cell, VisitCell(visit), " ");
      }
      row.push_back(std::move(cell));
    }
    row.resize(2 + tokens[0].layers_size());
    table.AddRow(std::move(row));
  }
  return table.ToText();
}

struct Visited {
  int choices = 0;
  double weight = 0;
  std::string hosts;
};

std::string ExpertTable(const std::map<int32_t, Visited>& experts) {
  std::vector<std::pair<int32_t, Visited>> sorted(experts.begin(),
                                                  experts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     return a.second.choices > b.second.choices;
                   });
  Table table({"expert", "choices", "weight", "held by"}, {0, 1, 2});
  for (const auto& [expert, visited] : sorted) {
    table.AddRow({absl::StrCat(expert), absl::StrCat(visited.choices),
                  absl::StrFormat("%.2f", visited.weight),
                  visited.hosts.empty() ? "(nobody)" : visited.hosts});
  }
  return table.ToText();
}

}  // namespace

std::string RoutingTables(const v1::ExplainRoutingResponse& routing) {
  std::string text = routing.model() + "\n";
  std::map<int32_t, Visited> experts;
  bool full = false, lost = false;
  for (const Tokens* tokens : {&routing.source(), &routing.target()}) {
    if (tokens->empty()) continue;
    absl::StrAppend(
        &text, "\n",
        TokenTable(tokens == &routing.source() ? "source" : "target", *tokens));
    for (const v1::TokenRouting& token : *tokens) {
      for (const v1::TokenLayerRouting& layer : token.layers()) {
        for (const v1::ExpertVisit& visit : layer.visits()) {
          Visited& visited = experts[visit.expert()];
          ++visited.choices;
          visited.weight += visit.weight();
          visited.hosts = absl::StrJoin(visit.hosts(), ", ");
          full = full || visit.overflowed();
          lost = lost || visit.hosts().empty();
        }
      }
    }
  }
  absl::StrAppend(
      &text, "\n",
      experts.empty() ? "No layer has experts.\n" : ExpertTable(experts));
  if (full) absl::StrAppend(&text, "\nfull: the expert had no slot left\n");
  if (lost) absl::StrAppend(&text, "\nlost: no worker holds the expert\n");
  return text;
}

}  // namespace gshard
