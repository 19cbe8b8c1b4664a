// CheckWorkerSession: checks that the parts of a session are consistent, before
// memory is reserved for it.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "expert_worker/worker_session.h"
#include "services/base/status_macros.h"
#include "services/graph/weight_forms.h"

namespace gshard {
namespace {

absl::Status CheckAscending(const char* field,
                            const std::vector<int32_t>& experts,
                            int32_t total) {
  int32_t last = -1;
  for (const int32_t expert : experts) {
    if (expert <= last || expert >= total) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected ascending ids below ", total,
                       ", got ", expert, " after ", last));
    }
    last = expert;
  }
  return absl::OkStatus();
}

absl::Status CheckReplica(const WorkerSessionSpec& spec) {
  RETURN_IF_ERROR(CheckAscending("replicated_experts", spec.replicated_experts,
                                 spec.total_experts));
  if (spec.optimizer == nullptr &&
      (!spec.replicated_experts.empty() || !spec.buddy_address.empty())) {
    return absl::InvalidArgumentError(
        "replicated_experts, buddy_address: expected none in serving");
  }
  for (const int32_t expert : spec.replicated_experts) {
    if (std::binary_search(spec.experts.begin(), spec.experts.end(), expert)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "replicated_experts: ", expert, " is one of the worker's own"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExperts(const WorkerSessionSpec& spec) {
  if (spec.total_experts < 1 || spec.total_experts > kMaxExperts) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_experts: expected 1 to ", kMaxExperts, ", got ",
                     spec.total_experts));
  }
  if (spec.experts.empty()) {
    return absl::InvalidArgumentError("experts: expected at least one");
  }
  RETURN_IF_ERROR(CheckAscending("experts", spec.experts, spec.total_experts));
  return CheckReplica(spec);
}

// Outputs of the segments.
struct Outputs {
  std::map<std::string, int> gradients;  // number per parameter
  bool saves = false;
};

absl::Status CheckOutput(absl::string_view name, bool training,
                         Outputs* outputs) {
  if (absl::StartsWith(name, "reply/")) return absl::OkStatus();
  if (!training) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output ", name, ": segments of serving and evaluation only reply"));
  }
  if (absl::StartsWith(name, "save/")) {
    outputs->saves = true;
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&name, "gradient/")) {
    ++outputs->gradients[std::string(name)];
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "output ", name, ": expected reply/, save/ or gradient/ and a name"));
}

// `keeps`: the segments may keep values and gradients.
absl::Status CheckSegments(const std::vector<Segment>& segments, bool keeps,
                           Outputs* outputs) {
  std::set<absl::string_view> names;
  for (const Segment& segment : segments) {
    const std::string where = absl::StrCat("segment '", segment.name, "'");
    if (segment.name.empty() || !names.insert(segment.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": expected a name of its own"));
    }
    if (!segment.program.NodesOf("call_segment").empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": a segment cannot call another"));
    }
    for (const Node* node : segment.program.NodesOf("input")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      if (!absl::StartsWith(name, "call/") &&
          !absl::StartsWith(name, "saved/")) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": input ", name, ": expected call/ or saved/ and a name"));
      }
    }
    for (const auto& [name, value] : segment.program.outputs) {
      RETURN_IF_ERROR(Annotate(CheckOutput(name, keeps, outputs), where));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllSegments(const WorkerSessionSpec& spec, Outputs* outputs) {
  const bool training = spec.optimizer != nullptr;
  const size_t count = spec.segments.size() + spec.evaluation_segments.size();
  if (spec.segments.empty() || count > kMaxSegments) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segments: expected 1 to ", kMaxSegments, ", got ", count));
  }
  RETURN_IF_ERROR(CheckSegments(spec.segments, training, outputs));
  if (training && !outputs->saves) {
    return absl::InvalidArgumentError(
        "a training session's segments save nothing, so no run would end");
  }
  return Annotate(
      CheckSegments(spec.evaluation_segments, /*keeps=*/false, outputs),
      "evaluation");
}

// Checks that every use of a parameter in a segment matches its spec.
absl::Status CheckUses(const WorkerSessionSpec& spec) {
  std::map<absl::string_view, const ParameterSpec*> unused, known;
  for (const ParameterSpec& parameter : spec.parameters) {
    known[parameter.name] = unused[parameter.name] = &parameter;
  }
  std::vector<const Segment*> segments;
  for (const Segment& segment : spec.segments) segments.push_back(&segment);
  for (const Segment& segment : spec.evaluation_segments) {
    segments.push_back(&segment);
  }
  for (const Segment* const used : segments) {
    const Segment& segment = *used;
    for (const Node* node : segment.program.NodesOf("parameter")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      const auto found = known.find(name);
      if (found == known.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("segment '", segment.name, "': no parameter ", name));
      }
      unused.erase(name);
      const Shape& shape = ShapeAttribute(node->attributes, "shape");
      const Dims& dims = found->second->dims;
      bool fits = shape.size() == dims.size() && !shape[0].is_static() &&
                  shape[0] == Dim::Symbol(shape[0].symbols()[0]);
      for (size_t i = 1; fits && i < dims.size(); ++i) {
        fits = shape[i].is_static() && shape[i].size() == dims[i];
      }
      if (!fits) {
        return absl::InvalidArgumentError(absl::StrCat(
            "segment '", segment.name, "', parameter ", name, ": expected ",
            DimsToString(dims), " with a symbol for the first size, got ",
            ShapeToString(shape)));
      }
    }
  }
  if (!unused.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", unused.begin()->first, " is used by no segment"));
  }
  return absl::OkStatus();
}

// The type that segments take, if not float32.
std::optional<ElementType> RoundedType(const WorkerSessionSpec& spec,
                                       const std::string& parameter) {
  for (const Segment& segment : spec.segments) {
    for (const Node* node : segment.program.NodesOf("parameter")) {
      const ElementType type = segment.program.type(node->outputs[0]).type;
      if (StringAttribute(node->attributes, "name") == parameter &&
          type != ElementType::kFloat32) {
        return type;
      }
    }
  }
  return std::nullopt;
}

// Bytes of one parameter on this worker.
absl::StatusOr<int64_t> ParameterBytes(const WorkerSessionSpec& spec,
                                       const ParameterSpec& parameter) {
  if (!parameter.per_expert || parameter.dims.empty() ||
      parameter.dims[0] != spec.total_experts ||
      parameter.dims.size() > kMaxTensorRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", parameter.name, ": expected [", spec.total_experts,
        ", ...], got ", DimsToString(parameter.dims)));
  }
  for (const int64_t size : parameter.dims) {
    if (size >= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", parameter.name, ": expected sizes of at least 1, got ",
        DimsToString(parameter.dims)));
  }
  RETURN_IF_ERROR(CheckTensorName(parameter.name));
  const auto own = static_cast<int64_t>(spec.experts.size());
  const auto held = own + static_cast<int64_t>(spec.replicated_experts.size());
  Dims dims = parameter.dims;
  dims[0] = held;
  ASSIGN_OR_RETURN(const uint64_t bytes,
                   TensorBytes(ElementType::kFloat32, dims));
  const auto weights = static_cast<int64_t>(bytes);
  const std::optional<ElementType> type = RoundedType(spec, parameter.name);
  const int64_t rounded =
      type.has_value() ? own * BytesOfExpert(*type, parameter.dims) : 0;
  if (spec.optimizer == nullptr) return rounded > 0 ? rounded : weights;
  // The gradient sum is as large as the weights.
  const Dims logical(dims.begin() + 1, dims.end());
  const double state = StateNumbers(*spec.optimizer, logical) * sizeof(float);
  return 2 * weights + rounded + held * static_cast<int64_t>(state);
}

}  // namespace

absl::StatusOr<int64_t> CheckWorkerSession(const WorkerSessionSpec& spec) {
  RETURN_IF_ERROR(CheckExperts(spec));
  Outputs outputs;
  RETURN_IF_ERROR(CheckAllSegments(spec, &outputs));
  std::map<std::string, int>& gradients = outputs.gradients;
  const bool training = spec.optimizer != nullptr;
  if (training &&
      (spec.microbatches_per_step < 1 || spec.microbatches_per_step > 65536)) {
    return absl::InvalidArgumentError(
        absl::StrCat("microbatches_per_step: expected 1 to 65536, got ",
                     spec.microbatches_per_step));
  }
  if (training && (spec.microbatch_window < 0 ||
                   spec.microbatch_window > spec.microbatches_per_step)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "microbatch_window: expected 0 to ", spec.microbatches_per_step,
        ", the microbatches of a "
        "step, got ",
        spec.microbatch_window));
  }
  RETURN_IF_ERROR(CheckSteps(spec.source));
  // Far below overflow, and beyond any machine.
  constexpr int64_t kMost = int64_t{1} << 50;
  std::set<absl::string_view> names;
  int64_t total = 0;
  for (const ParameterSpec& parameter : spec.parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", parameter.name, " is there twice"));
    }
    if (training && gradients[parameter.name] != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", parameter.name, ": expected one gradient, got ",
          gradients[parameter.name]));
    }
    ASSIGN_OR_RETURN(const int64_t bytes, ParameterBytes(spec, parameter));
    if (bytes > kMost - total) {
      return absl::ResourceExhaustedError(
          absl::StrCat("parameter ", parameter.name, ": ",
                       DimsToString(parameter.dims), " is too large"));
    }
    total += bytes;
  }
  if (gradients.size() > names.size()) {
    return absl::InvalidArgumentError(
        "a segment gives a gradient of what is no parameter");
  }
  RETURN_IF_ERROR(CheckUses(spec));
  return total;
}

}  // namespace gshard
