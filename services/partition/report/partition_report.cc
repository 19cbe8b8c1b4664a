#include "services/partition/report/partition_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"

namespace gshard {
namespace {

// Every node has a result; one without would be useless.
int RoleOfNode(const Partitioned& partitioned, const Node& node) {
  return partitioned.roles[node.outputs[0]];
}

}  // namespace

int64_t PartitionReport::TotalParameters() const {
  int64_t total = 0;
  for (const RoleReport& role : roles) {
    total = SaturatingAdd(total, role.parameters);
  }
  return total;
}

absl::StatusOr<PartitionReport> ReportPartition(const Partitioned& partitioned,
                                                const DeviceMesh& mesh,
                                                const SymbolSizes& sizes) {
  PartitionReport report;
  ASSIGN_OR_RETURN(const std::vector<MemoryUse> memory,
                   MemoryOfRoles(partitioned, mesh, sizes));
  for (size_t role = 0; role < mesh.roles().size(); ++role) {
    const bool is_elastic = mesh.IsElastic(mesh.AxesOfRole(role));
    report.roles.push_back({.name = mesh.roles()[role],
                            .devices = is_elastic ? 0 : mesh.NumDevices(role),
                            .memory = memory[role]});
  }
  for (const Node& node : partitioned.program.nodes) {
    ++report.roles[RoleOfNode(partitioned, node)].nodes;
  }
  for (const auto& [name, placed] : partitioned.parameters) {
    RoleReport& role = report.roles[placed.role];
    ASSIGN_OR_RETURN(const int64_t whole, sizes.Elements(placed.type.shape));
    ASSIGN_OR_RETURN(
        const int64_t local,
        sizes.Elements(LocalShape(placed.type.shape, placed.sharding, mesh)));
    role.parameters = SaturatingAdd(role.parameters, whole);
    role.parameters_per_device =
        SaturatingAdd(role.parameters_per_device, local);
  }
  ASSIGN_OR_RETURN(report.communication,
                   ListCommunication(partitioned, mesh, sizes));
  return report;
}

std::string RoleToText(const Partitioned& partitioned, int role) {
  const Program& program = partitioned.program;
  // The heading, a line per node, a line per output, the end.
  const std::string text = ProgramToText(program);
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  std::string of_role = absl::StrCat(lines[0], "\n");
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const Node& node = program.nodes[n];
    const bool leaves =
        IsCrossing(node.op->name) && partitioned.roles[node.inputs[0]] == role;
    if (leaves || RoleOfNode(partitioned, node) == role) {
      absl::StrAppend(&of_role, lines[1 + n], "\n");
    }
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    if (partitioned.roles[program.outputs[i].second] == role) {
      absl::StrAppend(&of_role, lines[1 + program.nodes.size() + i], "\n");
    }
  }
  return absl::StrCat(of_role, "}\n");
}

}  // namespace gshard
