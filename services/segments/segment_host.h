// SegmentHost: the expert side of a session. Holds its segments, its experts'
// parameters and what earlier segments of a run saved.
//
// Thread-safe: runs go on at the same time; the calls of one run come one
// after the other, as the router's program makes them. How many runs are open,
// and what they save, is for the caller to bound.

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
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/segments/role_split.h"

namespace gshard {

struct SegmentResult {
  std::vector<Tensor> replies;  // in the order of the segment's outputs
  // Gradients by parameter, [E of this host, ...]; empty without training.
  std::vector<std::pair<std::string, Tensor>> gradients;
  // Of what the call has saved, until the run ends.
  int64_t saved_bytes = 0;
  bool run_ended = false;  // every segment has been called
};

class SegmentHost {
 public:
  // `slice` is the host's place along the axis model (role_split.h). Runs on
  // `device`, which outlives the host, or where that is null on the CPU.
  explicit SegmentHost(std::vector<Segment> segments, int slice = 0,
                       Device* device = nullptr);

  // Unimplemented, with the operator's name, if the device has no kernel for
  // one of the segments' operators.
  absl::Status status() const;

  // Runs one segment. `run` names the run; calls without saved values may
  // leave it empty. `parameters` hold the host's experts, [E, ...]. Inputs and
  // replies are on the host; parameters are on the device best, being copied
  // there otherwise at each call; saved values and gradients stay there.
  //
  // A call that fails leaves no trace in its run.
  //
  // Errors: NotFound for an unknown segment or a parameter that is missing;
  // InvalidArgument for inputs that the segment does not know, misses or cannot
  // take; FailedPrecondition if a saved value is missing or a segment is called
  // twice in a run.
  absl::StatusOr<SegmentResult> Run(absl::string_view segment,
                                    const std::string& run, TensorMap inputs,
                                    const TensorMap& parameters);

  // Runs every segment once, on one row of zeros for each of the host's
  // experts, so that the first call finds memory and kernels as the later ones
  // do. Segments that save, or whose inputs are not group sizes and rows, are
  // left out. Errors: those of Run().
  absl::Status WarmUp(int64_t num_experts, const TensorMap& parameters);

  // The parameters that the segments take as bfloat16, in the form that suits
  // them all; Run rounds those that are not, at each call.
  WeightForms weight_forms() const;

  // Drops what a run has saved.
  void EndRun(const std::string& run);

  // Runs that have saved something and not ended.
  size_t open_runs() const;

  // Name and shape, with E as a symbol, of each parameter of the segments.
  std::map<std::string, Shape> ParameterShapes() const;

 private:
  struct OpenRun {
    TensorMap saved;               // by value name: "v12"
    std::set<std::string> called;  // segments
  };
  struct Hosted {
    std::unique_ptr<Executor> executor;
    std::vector<std::string> call_inputs;   // "call/v12"
    std::vector<std::string> saved_inputs;  // "saved/v12"
  };

  // Enters the call into its run and adds what the run has saved to `inputs`.
  absl::Status OpenCall(const std::string& segment, const Hosted& hosted,
                        const std::string& run, TensorMap& inputs);
  void ForgetCall(const std::string& segment, const std::string& run);

  // Tells the operators of a segment which slice they work on; supports nothing
  // else.
  class SliceGroups : public DeviceGroups {
   public:
    explicit SliceGroups(int index) : index_(index) {}
    absl::StatusOr<int64_t> Index(absl::string_view axes) override;
    absl::StatusOr<Communicator*> Along(absl::string_view axes) override;

   private:
    const int index_;
  };

  absl::StatusOr<std::vector<Tensor>> Execute(const Executor& executor,
                                              TensorMap inputs,
                                              const TensorMap& parameters);

  SliceGroups slice_;
  Device* const device_;  // null: the CPU
  std::map<std::string, Hosted, std::less<>> segments_;
  bool has_saves_ = false;
  mutable Mutex mutex_;
  std::map<std::string, OpenRun> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_SEGMENT_HOST_H_
