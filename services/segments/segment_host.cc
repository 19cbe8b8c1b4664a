#include "services/segments/segment_host.h"

#include <algorithm>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// A row of zeros per expert for each input; fewer inputs than the program has
// if one is neither group sizes nor rows. A program from the wire may declare
// tensors of any size.
absl::StatusOr<TensorMap> WarmUpInputs(const Program& program,
                                       int64_t num_experts) {
  TensorMap inputs;
  for (const Node* node : program.NodesOf("input")) {
    const ValueType& type = program.type(node->outputs[0]);
    if (type.shape.empty()) break;
    Bindings bindings;
    RETURN_IF_ERROR(bindings.Unify(absl::MakeConstSpan(type.shape).first(1),
                                   {num_experts}));
    const absl::StatusOr<Dims> dims = bindings.Resolve(type.shape);
    if (absl::IsFailedPrecondition(dims.status())) break;
    RETURN_IF_ERROR(dims.status());
    Tensor input;
    try {
      input = Tensor::Zeros(type.type, *dims);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there is no memory for an input ", type.ToString()));
    }
    if (type.type == ElementType::kInt32 && type.shape.size() == 1) {
      std::fill_n(input.i32(), num_experts, 1);
    }
    inputs[StringAttribute(node->attributes, "name")] = std::move(input);
  }
  return inputs;
}

}  // namespace

SegmentHost::SegmentHost(std::vector<Segment> segments, Device* device) {
  for (Segment& segment : segments) {
    Hosted hosted;
    for (const Node* node : segment.program.NodesOf("input")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      (absl::StartsWith(name, "saved/") ? hosted.saved_inputs
                                        : hosted.call_inputs)
          .push_back(name);
    }
    for (const auto& [name, value] : segment.program.outputs) {
      has_saves_ = has_saves_ || absl::StartsWith(name, "save/");
    }
    hosted.executor = std::make_unique<DeviceExecutor>(
        std::move(segment.program), device,
        std::vector<std::string>{"save/", "gradient/"});
    segments_[segment.name] = std::move(hosted);
  }
}

absl::StatusOr<SegmentResult> SegmentHost::Run(absl::string_view segment,
                                               const std::string& run,
                                               TensorMap inputs,
                                               const TensorMap& parameters) {
  const auto found = segments_.find(segment);
  if (found == segments_.end()) {
    return absl::NotFoundError(absl::StrCat("no segment '", segment, "'"));
  }
  const Hosted& hosted = found->second;
  if (inputs.size() != hosted.call_inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", segment, " takes ", hosted.call_inputs.size(),
                     " inputs, got ", inputs.size()));
  }
  for (const std::string& name : hosted.call_inputs) {
    if (!inputs.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", segment, " needs the input ", name));
    }
  }
  if (has_saves_) {
    RETURN_IF_ERROR(OpenCall(found->first, hosted, run, inputs));
  }

  auto outputs = hosted.executor->Run(std::move(inputs), parameters);
  if (!outputs.ok()) {
    // Undo the registration.
    if (has_saves_) ForgetCall(found->first, run);
    return Annotate(outputs.status(), segment);
  }

  SegmentResult result;
  MutexLock lock(mutex_);
  const auto open = runs_.find(run);
  const Program& program = hosted.executor->program();
  for (size_t i = 0; i < outputs->size(); ++i) {
    absl::string_view name = program.outputs[i].first;
    Tensor& tensor = (*outputs)[i];
    if (absl::ConsumePrefix(&name, "save/")) {
      // The run may have been dropped meanwhile.
      if (open == runs_.end()) continue;
      result.saved_bytes += static_cast<int64_t>(tensor.bytes());
      open->second.saved[name] = std::move(tensor);
    } else if (absl::ConsumePrefix(&name, "gradient/")) {
      result.gradients.emplace_back(std::string(name), std::move(tensor));
    } else {
      result.replies.push_back(std::move(tensor));
    }
  }
  if (open != runs_.end() && open->second.called.size() == segments_.size()) {
    runs_.erase(open);
    result.run_ended = true;
  }
  return result;
}

absl::Status SegmentHost::status() const {
  absl::Status status;
  for (const auto& [name, hosted] : segments_) {
    status.Update(Annotate(hosted.executor->status(), name));
  }
  return status;
}

absl::Status SegmentHost::WarmUp(int64_t num_experts,
                                 const TensorMap& parameters) {
  if (has_saves_) return absl::OkStatus();
  for (const auto& [name, hosted] : segments_) {
    absl::StatusOr<TensorMap> inputs =
        WarmUpInputs(hosted.executor->program(), num_experts);
    if (!inputs.ok()) return Annotate(inputs.status(), name);
    if (inputs->size() != hosted.call_inputs.size()) continue;
    RETURN_IF_ERROR(
        Run(name, /*run=*/"", *std::move(inputs), parameters).status());
  }
  return absl::OkStatus();
}

absl::Status SegmentHost::OpenCall(const std::string& segment,
                                   const Hosted& hosted, const std::string& run,
                                   TensorMap& inputs) {
  MutexLock lock(mutex_);
  auto open = runs_.find(run);
  for (const std::string& name : hosted.saved_inputs) {
    const auto key = absl::StripPrefix(name, "saved/");
    if (open == runs_.end() || !open->second.saved.contains(key)) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", segment, " needs ", name, ", which run '",
                       run, "' has not saved"));
    }
    inputs[name] = open->second.saved.find(key)->second;
  }
  if (open == runs_.end()) {
    open = runs_.emplace(run, OpenRun()).first;
  }
  if (!open->second.called.insert(segment).second) {
    return absl::FailedPreconditionError(absl::StrCat(
        "segment ", segment, " was called before in run '", run, "'"));
  }
  return absl::OkStatus();
}

void SegmentHost::ForgetCall(const std::string& segment,
                             const std::string& run) {
  MutexLock lock(mutex_);
  const auto open = runs_.find(run);
  if (open == runs_.end()) return;
  open->second.called.erase(segment);
  if (open->second.called.empty()) runs_.erase(open);
}

WeightForms SegmentHost::weight_forms() const {
  WeightForms weights;
  for (const auto& [name, hosted] : segments_) {
    MergeWeightForms(hosted.executor->weight_forms(), weights);
  }
  return weights;
}

void SegmentHost::EndRun(const std::string& run) {
  MutexLock lock(mutex_);
  runs_.erase(run);
}

size_t SegmentHost::open_runs() const {
  MutexLock lock(mutex_);
  return runs_.size();
}

}  // namespace gshard
