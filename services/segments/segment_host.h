// SegmentHost: the expert side of a session. Holds its segments and the values
// saved by earlier segments of a run.
//
// Thread-safe: runs execute concurrently; the calls of one run are sequential,
// in the order of the router's program. The caller bounds the number of open
// runs and of saved bytes.

#ifndef SERVICES_SEGMENTS_SEGMENT_HOST_H_
#define SERVICES_SEGMENTS_SEGMENT_HOST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/base/mutex.h"
#include "services/collectives/device_groups.h"
#include "services/graph/device_executor.h"
#include "services/segments/role_split.h"

namespace gshard {

struct SegmentResult {
  std::vector<Tensor> replies;  // in the order of the segment's outputs
  // Gradients by parameter, [E of this host, ...]; empty without training.
  std::vector<std::pair<std::string, Tensor>> gradients;
  // Bytes that the call has saved until the run ends.
  int64_t saved_bytes = 0;
  bool run_ended = false;  // every segment has been called
};

class SegmentHost {
 public:
  // Runs on `device`, which outlives the host, or on the CPU if null.
  explicit SegmentHost(std::vector<Segment> segments, Device* device = nullptr);

  // Unimplemented, with the operator's name, if the device has no kernel for
  // one of the segments' operators.
  absl::Status status() const;

  // Runs one segment. `run` names the run; it may be empty for calls without
  // saved values. `parameters` hold the host's experts, [E, ...]. Inputs and
  // replies are on the host; parameters should be on the device, else every
  // call copies them; saved values and gradients stay there.
  //
  // A failed call leaves its run unchanged.
  //
  // Errors: NotFound for an unknown segment or missing parameter;
  // InvalidArgument for unknown, missing or mismatched inputs;
  // FailedPrecondition if a saved value is missing or a segment is called twice
  // in a run.
  absl::StatusOr<SegmentResult> Run(absl::string_view segment,
                                    const std::string& run, TensorMap inputs,
                                    const TensorMap& parameters);

  // Runs every segment once, on one row of zeros per expert of the host, so
  // that the first call finds memory and kernels warm. Skips segments that save
  // values, or whose inputs are not group sizes and rows. Errors: those of
  // Run(); ResourceExhausted for an input that memory cannot hold.
  absl::Status WarmUp(int64_t num_experts, const TensorMap& parameters);

  // The form of each parameter that suits all segments; Run converts others at
  // each call.
  WeightForms weight_forms() const;

  // Drops the saved values of a run.
  void EndRun(const std::string& run);

  // Number of runs with saved values that have not ended.
  size_t open_runs() const;

 private:
  struct OpenRun {
    TensorMap saved;               // by value name: "v12"
    std::set<std::string> called;  // segments
  };
  struct Hosted {
    std::unique_ptr<DeviceExecutor> executor;
    std::vector<std::string> call_inputs;   // "call/v12"
    std::vector<std::string> saved_inputs;  // "saved/v12"
  };

  // Registers the call in its run and adds the run's saved values to `inputs`.
  absl::Status OpenCall(const std::string& segment, const Hosted& hosted,
                        const std::string& run, TensorMap& inputs);
  void ForgetCall(const std::string& segment, const std::string& run);

  std::map<std::string, Hosted, std::less<>> segments_;
  bool has_saves_ = false;
  mutable Mutex mutex_;
  std::map<std::string, OpenRun> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_SEGMENT_HOST_H_
