#include "client/partition_summary.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/base/amount_text.h"
#include "services/base/table.h"

namespace gshard {
namespace {

using Json = nlohmann::ordered_json;

const char* Direction(bool backward) {
  return backward ? "backward" : "forward";
}

// Bytes that all devices of a role send for one token, rounded.
int64_t PerToken(const PartitionSummary& summary, int role, int64_t bytes) {
  const int64_t all =
      SaturatingMultiply(bytes, summary.report.roles[role].devices);
  const int64_t half = summary.tokens / 2;
  return SaturatingAdd(all, half) / summary.tokens;
}

// "router" or, for a crossing, "router to worker".
std::string Way(const PartitionSummary& summary, const Communication& sent) {
  const std::vector<RoleReport>& roles = summary.report.roles;
  if (!sent.axes.empty()) return sent.axes;
  const Program& program = summary.partitioned.program;
  const ValueId result = program.nodes[sent.node].outputs[0];
  return absl::StrCat(roles[sent.role].name, " to ",
                      roles[summary.partitioned.roles[result]].name);
}

std::string RolesToText(const PartitionSummary& summary) {
  const PartitionReport& report = summary.report;
  Table table({"ROLE", "devices", "nodes", "parameters", "on a device"},
              {1, 2, 3, 4});
  int64_t nodes = 0;
  for (const RoleReport& role : report.roles) {
    table.AddRow({role.name, GroupedText(role.devices), GroupedText(role.nodes),
                  GroupedText(role.parameters),
                  GroupedText(role.parameters_per_device)});
    nodes += role.nodes;
  }
  const int64_t total = report.TotalParameters();
  table.AddRow({"total", "", GroupedText(nodes), GroupedText(total), ""});
  table.AddRow({"without norms, as in the paper", "", "",
                GroupedText(total - summary.norm_scales), ""});
  return table.ToText();
}

std::string TotalsToText(const PartitionSummary& summary) {
  Table table({"COMMUNICATION", "from", "direction", "count", "a device sends",
               "bytes per token"},
              {3, 4, 5});
  for (const CommunicationTotal& total :
       SumByKind(summary.report.communication)) {
    table.AddRow({total.kind, summary.report.roles[total.role].name,
                  Direction(total.backward), GroupedText(total.count),
                  BytesText(total.bytes),
                  GroupedText(PerToken(summary, total.role, total.bytes))});
  }
  return table.empty() ? "no communication\n" : table.ToText();
}

}  // namespace

std::string MemoryToText(const PartitionSummary& summary) {
  Table table({"MEMORY OF A DEVICE", "parameters", "gradients", "activations*",
               "peak*"},
              {1, 2, 3, 4});
  for (const RoleReport& role : summary.report.roles) {
    const MemoryUse& memory = role.memory;
    table.AddRow({role.name, BytesText(memory.parameters),
                  BytesText(memory.gradients), BytesText(memory.activations),
                  BytesText(memory.peak)});
  }
  return absl::StrCat(table.ToText(), "* the most at a time, in a step of ",
                      GroupedText(summary.tokens),
                      " tokens; rows spread evenly over\n"
                      "  experts; without optimizer state\n");
}

std::string CommunicationToText(const PartitionSummary& summary) {
  Table table({"NODE", "kind", "along", "group", "operand", "direction",
               "where", "a device sends", "bytes per token"},
              {0, 3, 7, 8});
  for (const Communication& sent : summary.report.communication) {
    table.AddRow({absl::StrCat(sent.node), sent.kind, Way(summary, sent),
                  absl::StrCat(sent.group), sent.operand.ToString(),
                  Direction(sent.place.backward), sent.place.name,
                  BytesText(sent.bytes),
                  GroupedText(PerToken(summary, sent.role, sent.bytes))});
  }
  return table.empty() ? "no communication\n" : table.ToText();
}

std::string SummaryToText(const PartitionSummary& summary) {
  return absl::StrCat("program ", summary.program, ", partitioned in ",
                      absl::StrFormat("%.3f s", summary.seconds), "\n\n",
                      RolesToText(summary), "\n", MemoryToText(summary), "\n",
                      TotalsToText(summary));
}

Json SummaryToJson(const PartitionSummary& summary) {
  const PartitionReport& report = summary.report;
  Json devices = Json::object(), nodes = Json::object(),
       parameters = Json::object(), per_device = Json::object(),
       memory = Json::object(), communication = Json::array();
  for (const RoleReport& role : report.roles) {
    devices[role.name] = role.devices;
    nodes[role.name] = role.nodes;
    parameters[role.name] = role.parameters;
    per_device[role.name] = role.parameters_per_device;
    memory[role.name] = {{"parameters_bytes", role.memory.parameters},
                         {"gradients_bytes", role.memory.gradients},
                         {"activations_bytes", role.memory.activations},
                         {"peak_bytes", role.memory.peak}};
  }
  const int64_t total = report.TotalParameters();
  parameters["total"] = total;
  parameters["total_without_norms"] = total - summary.norm_scales;
  for (const Communication& sent : report.communication) {
    communication.push_back(
        {{"kind", sent.kind},
         {"from", report.roles[sent.role].name},
         {"along", Way(summary, sent)},
         {"group", sent.group},
         {"node", sent.node},
         {"operand", sent.operand.ToString()},
         {"direction", Direction(sent.place.backward)},
         {"where", sent.place.name},
         {"bytes", sent.bytes},
         {"bytes_per_token", PerToken(summary, sent.role, sent.bytes)}});
  }
  return {{"program", summary.program},
          {"seconds", summary.seconds},
          {"tokens", summary.tokens},
          {"devices", devices},
          {"nodes", nodes},
          {"parameters", parameters},
          {"parameters_per_device", per_device},
          {"memory", memory},
          {"collectives", communication}};
}

}  // namespace gshard
