#include "services/partition/report/communication.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/partition/ops/collective_ops.h"

namespace gshard {
namespace {

// (n - 1) / n of the bytes.
int64_t AllButOne(int64_t bytes, int64_t n) { return bytes - bytes / n; }

// The maximum number of other devices that take one device's tensor.
int64_t MostTakers(const std::vector<int64_t>& source) {
  std::vector<int64_t> takers(source.size(), 0);
  for (size_t r = 0; r < source.size(); ++r) {
    if (source[r] >= 0 && source[r] != static_cast<int64_t>(r)) {
      ++takers[source[r]];
    }
  }
  return takers.empty() ? 0 : *std::max_element(takers.begin(), takers.end());
}

// 0 for a role with an elastic axis.
int64_t DevicesOf(const DeviceMesh& mesh, int role) {
  return mesh.IsElastic(mesh.AxesOfRole(role)) ? 0 : mesh.NumDevices(role);
}

int64_t BytesOfCollective(const Node& node, int64_t bytes, int64_t n) {
  const std::string& op = node.op->name;
  if (n <= 1) return 0;
  if (op == "all_reduce") return SaturatingMultiply(2, AllButOne(bytes, n));
  if (op == "permute") {
    return SaturatingMultiply(
        bytes, MostTakers(IntsAttribute(node.attributes, "source")));
  }
  if (op == "shift") {
    const int64_t by = IntAttribute(node.attributes, "by");
    return by == 0 || by >= n || by <= -n ? 0 : bytes;
  }
  if (op == "windowed_einsum" || op == "all_gather" ||
      op == "ragged_all_gather" || op == "rows_all_gather") {
    return SaturatingMultiply(bytes, n - 1);
  }
  return AllButOne(bytes, n);
}

}  // namespace

absl::StatusOr<std::vector<Communication>> ListCommunication(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    const SymbolSizes& sizes) {
  const Program& program = partitioned.program;
  const std::vector<NodePlace> places = PlacesOf(program);
  std::vector<Communication> all;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const Node& node = program.nodes[n];
    const std::string& op = node.op->name;
    const bool crosses = IsCrossing(op);
    if (!crosses && !IsCollective(op)) continue;
    Communication sent{.node = static_cast<int32_t>(n),
                       .kind = op,
                       .role = partitioned.roles[node.inputs[0]],
                       .operand = program.type(node.inputs[0]),
                       .place = places[n]};
    ASSIGN_OR_RETURN(sent.bytes, sizes.Bytes(sent.operand));
    if (crosses) {
      sent.group = DevicesOf(mesh, partitioned.roles[node.outputs[0]]);
      if (op == "send_whole") {
        sent.bytes = SaturatingMultiply(sent.bytes, sent.group);
      }
    } else {
      sent.axes = StringAttribute(node.attributes, "axes");
      sent.group = IntAttribute(node.attributes, "parts");
      sent.bytes = BytesOfCollective(node, sent.bytes, sent.group);
    }
    all.push_back(std::move(sent));
  }
  return all;
}

std::vector<CommunicationTotal> SumByKind(
    const std::vector<Communication>& all) {
  std::map<std::tuple<int, bool, std::string>, CommunicationTotal> totals;
  for (const Communication& sent : all) {
    CommunicationTotal& total =
        totals[{sent.role, sent.place.backward, sent.kind}];
    total.kind = sent.kind;
    total.role = sent.role;
    total.backward = sent.place.backward;
    ++total.count;
    total.bytes = SaturatingAdd(total.bytes, sent.bytes);
  }
  std::vector<CommunicationTotal> sorted;
  for (auto& [key, total] : totals) sorted.push_back(std::move(total));
  return sorted;
}

}  // namespace gshard
