#include "services/graph/executor.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"

namespace gshard {
namespace {

// Operands that the caller feeds: inputs and parameters.
absl::StatusOr<Tensor> Feed(const Node& node, ElementType type,
                            TensorMap& inputs, const TensorMap& parameters) {
  const std::string& name = StringAttribute(node.attributes, "name");
  if (node.op->name == "input") {
    const auto found = inputs.find(name);
    if (found != inputs.end()) return std::move(found->second);
    return absl::NotFoundError(absl::StrCat("input '", name, "' is missing"));
  }
  const auto found = parameters.find(name);
  if (found != parameters.end()) {
    const bool narrow = type == ElementType::kBFloat16 &&
                        found->second.type() == ElementType::kFloat32;
    return narrow ? Cast(found->second, type) : found->second;
  }
  return absl::NotFoundError(absl::StrCat("parameter '", name, "' is missing"));
}

// Runs one node's kernel. A program from the wire may ask for tensors of any
// size: those whose size is known are checked before, and memory that the
// system does not have is an error of the run.
absl::Status RunKernel(KernelContext& context, bool reference) {
  for (const ValueType& type : context.result_types) {
    const absl::Status known = context.bindings.Resolve(type.shape).status();
    if (absl::IsResourceExhausted(known)) return known;
  }
  const OpDef& op = *context.node.op;
  try {
    return reference && op.reference != nullptr ? op.reference(context)
                                                : op.kernel(context);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is no memory for the results");
  }
}

absl::Status CheckResult(const ValueType& expected, const Tensor& result,
                         Bindings& bindings) {
  if (result.empty()) return absl::InternalError("the kernel set no result");
  if (result.type() != expected.type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", expected.ToString(), ", got ", result.TypeString()));
  }
  return bindings.Unify(expected.shape, result.dims());
}

}  // namespace

Executor::Executor(Program program) : program_(std::move(program)) {
  std::vector<int32_t> last(program_.values.size(), -1);
  for (size_t n = 0; n < program_.nodes.size(); ++n) {
    const Node& node = program_.nodes[n];
    for (const ValueId input : node.inputs) last[input] = n;
    for (const ValueId output : node.outputs) last[output] = n;
  }
  for (const auto& [name, value] : program_.outputs) {
    last[value] = program_.nodes.size();
  }
  dead_after_.resize(program_.nodes.size());
  for (size_t v = 0; v < last.size(); ++v) {
    if (last[v] < static_cast<int32_t>(program_.nodes.size())) {
      dead_after_[last[v]].push_back(v);
    }
  }
  for (size_t n = 0; n < program_.nodes.size(); ++n) {
    const std::vector<ValueId>& inputs = program_.nodes[n].inputs;
    std::vector<bool> moved;
    for (const ValueId input : inputs) {
      moved.push_back(last[input] == static_cast<int32_t>(n) &&
                      std::count(inputs.begin(), inputs.end(), input) == 1);
    }
    last_use_.push_back(std::move(moved));
  }
}

void Executor::RoundParameters(TensorMap& parameters) const {
  for (const Node& node : program_.nodes) {
    if (node.op->name != "parameter" ||
        program_.type(node.outputs[0]).type != ElementType::kBFloat16) {
      continue;
    }
    const auto found =
        parameters.find(StringAttribute(node.attributes, "name"));
    if (found == parameters.end()) continue;
    found->second = Cast(found->second, ElementType::kBFloat16);
  }
}

absl::StatusOr<std::vector<Tensor>> Executor::Run(
    TensorMap inputs, const TensorMap& parameters,
    const RunOptions& options) const {
  std::vector<Tensor> values(program_.values.size());
  std::vector<Tensor> operands, results;
  std::vector<ValueType> result_types;
  Bindings bindings;
  for (size_t n = 0; n < program_.nodes.size(); ++n) {
    if (options.cancelled && options.cancelled()) {
      return absl::CancelledError(
          absl::StrCat("program '", program_.name, "' was cancelled"));
    }
    const Node& node = program_.nodes[n];
    const auto where = [&] {
      return absl::StrCat("program '", program_.name, "', node ", n, " (",
                          node.op->name, ")");
    };
    result_types.clear();
    for (const ValueId output : node.outputs) {
      result_types.push_back(program_.type(output));
    }
    results.assign(node.outputs.size(), Tensor());
    if (node.op->kernel == nullptr) {
      ASSIGN_OR_RETURN(results[0],
                       Feed(node, result_types[0].type, inputs, parameters));
    } else {
      operands.clear();
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        Tensor& value = values[node.inputs[i]];
        operands.push_back(last_use_[n][i] ? std::move(value) : value);
      }
      KernelContext context{.node = node,
                            .bindings = bindings,
                            .result_types = result_types,
                            .operands = absl::MakeSpan(operands),
                            .results = absl::MakeSpan(results),
                            .segments = options.segments,
                            .devices = options.devices};
      const absl::Status status = RunKernel(context, options.reference);
      if (!status.ok()) return Annotate(status, where());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const absl::Status status =
          CheckResult(result_types[i], results[i], bindings);
      if (!status.ok()) {
        if (node.op->kernel != nullptr) return Annotate(status, where());
        return Annotate(
            status,
            absl::StrCat(node.op->name, " '",
                         StringAttribute(node.attributes, "name"), "'"));
      }
      values[node.outputs[i]] = std::move(results[i]);
    }
    for (const ValueId value : dead_after_[n]) values[value] = Tensor();
  }
  std::vector<Tensor> outputs;
  for (const auto& [name, value] : program_.outputs) {
    outputs.push_back(values[value]);
  }
  return outputs;
}

}  // namespace gshard
