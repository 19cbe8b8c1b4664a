#include "services/graph/executor.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"

namespace gshard {
namespace {

absl::StatusOr<Tensor> FeedInput(const std::string& name, TensorMap& inputs) {
  const auto found = inputs.find(name);
  if (found != inputs.end()) return std::move(found->second);
  return absl::NotFoundError(absl::StrCat("input '", name, "' is missing"));
}

// A program from the wire may declare tensors of any size: those of known size
// are checked before, and a failed allocation is an error of the run.
absl::Status RunKernel(const Kernel& kernel, KernelContext& context) {
  for (const ValueType& type : context.result_types) {
    const absl::Status known = context.bindings.Resolve(type.shape).status();
    if (absl::IsResourceExhausted(known)) return known;
  }
  try {
    return kernel(context);
  } catch (const std::bad_alloc&) {
    return NoMemoryError("there is no memory for the results");
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

Executor::Executor(Program program, Backend backend)
    : program_(std::move(program)),
      backend_(backend),
      weight_forms_(WeightFormsOf(program_)) {
  for (auto& [name, form] : weight_forms_) {
    if (form.type == ElementType::kInt8) {
      if (backend == Backend::kReference) {
        status_.Update(absl::UnimplementedError(
            absl::StrCat("the back end '", BackendName(backend),
                         "' takes no weights of i8, as '", name, "' is")));
      } else if (!form.in_panels()) {
        status_.Update(absl::InvalidArgumentError(absl::StrCat(
            "parameter '", name,
            "': expected i8 in products or look-ups only, all of one form")));
      }
    } else if (backend != Backend::kCpu) {
      form = {.type = form.type};
    }
  }
  const int32_t end = static_cast<int32_t>(program_.nodes.size());
  std::vector<int32_t> last(program_.values.size(), -1);
  for (int32_t n = 0; n < end; ++n) {
    const Node& node = program_.nodes[n];
    for (const ValueId input : node.inputs) last[input] = n;
    for (const ValueId output : node.outputs) last[output] = n;
  }
  for (const auto& [name, value] : program_.outputs) last[value] = end;
  // How often each value is an operand of the node.
  std::vector<int32_t> uses(program_.values.size(), 0);
  steps_.resize(end);
  for (size_t v = 0; v < last.size(); ++v) {
    if (last[v] < end) steps_[last[v]].dead.push_back(v);
  }
  for (int32_t n = 0; n < end; ++n) {
    const Node& node = program_.nodes[n];
    Step& step = steps_[n];
    for (const ValueId output : node.outputs) {
      step.result_types.push_back(program_.type(output));
    }
    for (const ValueId input : node.inputs) ++uses[input];
    for (const ValueId input : node.inputs) {
      step.takes.push_back(last[input] == n && uses[input] == 1);
    }
    for (const ValueId input : node.inputs) uses[input] = 0;
    if (node.op->name == "input" || node.op->name == "parameter") {
      step.source =
          node.op->name == "input" ? Source::kInput : Source::kParameter;
      step.name = StringAttribute(node.attributes, "name");
      const auto weights = weight_forms_.find(step.name);
      if (step.source == Source::kParameter && weights != weight_forms_.end()) {
        step.form = weights->second;
      }
      continue;
    }
    step.kernel = FindKernel(node.op->name, backend);
    if (step.kernel == nullptr) {
      status_.Update(absl::UnimplementedError(
          absl::StrCat("the back end '", BackendName(backend),
                       "' has no kernel for '", node.op->name, "'")));
    }
  }
}

absl::StatusOr<Tensor> Executor::FeedParameter(const Step& step,
                                               const TensorMap& parameters) {
  const auto found = parameters.find(step.name);
  if (found == parameters.end()) {
    return absl::NotFoundError(
        absl::StrCat("parameter '", step.name, "' is missing"));
  }
  const Tensor& tensor = found->second;
  const WeightForm& form = step.form;
  const ElementType wanted = step.result_types[0].type;
  if (tensor.type() == ElementType::kFloat32 && tensor.on_host() &&
      tensor.panel_rows() == 0) {
    if (wanted == ElementType::kBFloat16) return Cast(tensor, wanted);
    if (wanted == ElementType::kInt8) return RoundToInt8(tensor, form);
  }
  // Not convertible to the wanted type: the caller refuses it.
  if (tensor.type() != wanted) return tensor;
  if (tensor.panel_rows() == 0 && wanted != ElementType::kInt8) return tensor;
  if (form.row_dims > 0 && tensor.rank() > form.batch_dims + form.row_dims &&
      tensor.panel_rows() == form.RowsOf(tensor.dims())) {
    return tensor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameter '", step.name, "': expected ",
                   form.row_dims > 0 ? "panels of other rows" : "no panels",
                   ", got panels of ", tensor.panel_rows(), " rows"));
}

void CastToBf16(const WeightForms& weights, TensorMap& parameters) {
  for (const auto& [name, form] : weights) {
    const auto found = parameters.find(name);
    if (found == parameters.end() || form.type != ElementType::kBFloat16 ||
        !found->second.on_host()) {
      continue;
    }
    found->second = Cast(found->second, ElementType::kBFloat16);
  }
}

std::string Executor::Where(size_t node) const {
  const Step& step = steps_[node];
  const std::string& op = program_.nodes[node].op->name;
  if (step.source != Source::kKernel) {
    return absl::StrCat(op, " '", step.name, "'");
  }
  return absl::StrCat("program '", program_.name, "', node ", node, " (", op,
                      ")");
}

absl::StatusOr<std::vector<Tensor>> Executor::Run(
    TensorMap inputs, const TensorMap& parameters,
    const RunOptions& options) const {
  RETURN_IF_ERROR(status_);
  std::vector<Tensor> values(program_.values.size());
  std::vector<Tensor> operands, results;
  Bindings bindings;
  for (size_t n = 0; n < steps_.size(); ++n) {
    if (options.cancelled && options.cancelled()) {
      return absl::CancelledError(
          absl::StrCat("program '", program_.name, "' was cancelled"));
    }
    const Node& node = program_.nodes[n];
    const Step& step = steps_[n];
    results.assign(node.outputs.size(), Tensor());
    if (step.source == Source::kInput) {
      ASSIGN_OR_RETURN(results[0], FeedInput(step.name, inputs));
    } else if (step.source == Source::kParameter) {
      ASSIGN_OR_RETURN(results[0], FeedParameter(step, parameters));
    } else {
      operands.clear();
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        Tensor& value = values[node.inputs[i]];
        operands.push_back(step.takes[i] ? std::move(value) : value);
      }
      KernelContext context{.node = node,
                            .bindings = bindings,
                            .result_types = step.result_types,
                            .operands = absl::MakeSpan(operands),
                            .results = absl::MakeSpan(results),
                            .run = options.context,
                            .backend = backend_};
      const absl::Status status = RunKernel(*step.kernel, context);
      if (!status.ok()) return Annotate(status, Where(n));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const absl::Status status =
          CheckResult(step.result_types[i], results[i], bindings);
      if (!status.ok()) return Annotate(status, Where(n));
      values[node.outputs[i]] = std::move(results[i]);
    }
    for (const ValueId value : step.dead) values[value] = Tensor();
  }
  std::vector<Tensor> outputs;
  for (const auto& [name, value] : program_.outputs) {
    outputs.push_back(values[value]);
  }
  return outputs;
}

}  // namespace gshard
