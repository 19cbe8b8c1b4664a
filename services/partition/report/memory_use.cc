#include "services/partition/report/memory_use.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/graph/weight_forms.h"
#include "services/ops/int8_panel.h"
#include "services/partition/report/node_place.h"

namespace gshard {
namespace {

enum class BufferKind { kActivation, kParameter, kGradient };

// A buffer that values share.
struct Buffer {
  BufferKind kind = BufferKind::kActivation;
  int role = 0;
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // nodes
};

bool SharesBuffer(const Node& node) {
  return node.op->name == "reshape" || node.op->name == "check_multiple";
}

class Buffers {
 public:
  Buffers(const Partitioned& partitioned, const SymbolSizes& sizes)
      : program_(partitioned.program),
        roles_(partitioned.roles),
        sizes_(sizes),
        forms_(WeightFormsOf(program_)),
        trains_(std::any_of(program_.outputs.begin(), program_.outputs.end(),
                            [](const auto& output) {
                              return absl::StartsWith(output.first,
                                                      kGradientPrefix);
                            })),
        of_(program_.values.size(), 0) {}

  absl::StatusOr<std::vector<Buffer>> Find() && {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      RETURN_IF_ERROR(Visit(n));
    }
    for (const auto& [name, value] : program_.outputs) {
      Buffer& buffer = all_[of_[value]];
      buffer.last = static_cast<int32_t>(program_.nodes.size());
      if (buffer.kind == BufferKind::kActivation &&
          absl::StartsWith(name, kGradientPrefix)) {
        buffer.kind = BufferKind::kGradient;
      }
    }
    return std::move(all_);
  }

 private:
  absl::Status Visit(int32_t n) {
    const Node& node = program_.nodes[n];
    for (const ValueId input : node.inputs) all_[of_[input]].last = n;
    for (const ValueId output : node.outputs) {
      if (SharesBuffer(node)) {
        of_[output] = of_[node.inputs[0]];
        continue;
      }
      Buffer buffer{.role = roles_[output], .first = n, .last = n};
      ASSIGN_OR_RETURN(buffer.bytes, sizes_.Bytes(program_.type(output)));
      if (node.op->name == "input") buffer.first = 0;
      if (node.op->name == "parameter") {
        buffer.kind = BufferKind::kParameter;
        buffer.first = 0;
        ASSIGN_OR_RETURN(buffer.bytes, ParameterBytes(node));
      }
      of_[output] = all_.size();
      all_.push_back(buffer);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> ParameterBytes(const Node& node) const {
    const ValueType& type = program_.type(node.outputs[0]);
    ASSIGN_OR_RETURN(const int64_t bytes, sizes_.Bytes(type));
    if (trains_ && type.type == ElementType::kBFloat16) {
      // Stored as float32, twice as large, next to its rounded copy.
      return SaturatingAdd(bytes, SaturatingAdd(bytes, bytes));
    }
    const auto form = forms_.find(StringAttribute(node.attributes, "name"));
    if (bytes == 0 || type.type != ElementType::kInt8 ||
        !form->second.in_panels()) {
      return bytes;
    }
    Dims dims;
    for (const Dim& dim : type.shape) {
      ASSIGN_OR_RETURN(dims.emplace_back(), sizes_.SizeOf(dim));
    }
    const int64_t matrices = form->second.MatricesOf(dims);
    const int64_t rows = form->second.RowsOf(dims);
    return SaturatingMultiply(matrices,
                              Int8MatrixBytes(rows, bytes / matrices / rows));
  }

  const Program& program_;
  const std::vector<int>& roles_;
  const SymbolSizes& sizes_;
  const WeightForms forms_;
  const bool trains_;       // has gradients
  std::vector<size_t> of_;  // by value
  std::vector<Buffer> all_;
};

// A sum that saturates permanently.
class Level {
 public:
  void Add(int64_t bytes) {
    now_ = SaturatingAdd(now_, bytes);
    most_ = std::max(most_, now_);
  }
  void Remove(int64_t bytes) {
    if (now_ != std::numeric_limits<int64_t>::max()) now_ -= bytes;
  }
  int64_t most() const { return most_; }

 private:
  int64_t now_ = 0, most_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<MemoryUse>> MemoryOfRoles(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    const SymbolSizes& sizes) {
  ASSIGN_OR_RETURN(const std::vector<Buffer> buffers,
                   Buffers(partitioned, sizes).Find());
  const size_t nodes = partitioned.program.nodes.size();
  std::vector<std::vector<const Buffer*>> born(nodes), dead(nodes);
  std::vector<MemoryUse> uses(mesh.roles().size());
  std::vector<Level> activations(uses.size()), all(uses.size());
  for (const Buffer& buffer : buffers) {
    MemoryUse& use = uses[buffer.role];
    if (buffer.kind == BufferKind::kParameter) {
      use.parameters = SaturatingAdd(use.parameters, buffer.bytes);
      continue;
    }
    if (buffer.kind == BufferKind::kGradient) {
      use.gradients = SaturatingAdd(use.gradients, buffer.bytes);
    }
    born[buffer.first].push_back(&buffer);
    if (buffer.last < static_cast<int32_t>(nodes)) {
      dead[buffer.last].push_back(&buffer);
    }
  }
  for (size_t n = 0; n < nodes; ++n) {
    for (const Buffer* buffer : born[n]) {
      all[buffer->role].Add(buffer->bytes);
      if (buffer->kind == BufferKind::kActivation) {
        activations[buffer->role].Add(buffer->bytes);
      }
    }
    for (const Buffer* buffer : dead[n]) {
      all[buffer->role].Remove(buffer->bytes);
      if (buffer->kind == BufferKind::kActivation) {
        activations[buffer->role].Remove(buffer->bytes);
      }
    }
  }
  for (size_t role = 0; role < uses.size(); ++role) {
    uses[role].activations = activations[role].most();
    uses[role].peak = SaturatingAdd(uses[role].parameters, all[role].most());
  }
  return uses;
}

}  // namespace gshard
