// RemoteSegments: the exchange with expert workers over the network. One call
// of a segment is one frame to each worker, with all of its rows; all are sent
// before the first reply is awaited.

#ifndef ROUTER_REMOTE_SEGMENTS_H_
#define ROUTER_REMOTE_SEGMENTS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/cancellation.h"
#include "router/worker_group.h"
#include "services/metrics/metrics.h"
#include "services/segments/exchange.h"

namespace gshard {

// What the calls of one run say of themselves; see ExpertFrameHeader.
struct RemoteRun {
  std::string session;
  int64_t step = 0;  // 0 in serving
  int32_t microbatch = 0;
  int32_t attempt = 0;

  // The run gives up then.
  std::chrono::steady_clock::time_point deadline;
};

// Of one run; used by one thread, whose traces go along (trace_scope.h).
class RemoteSegments final : public DividingRunner {
 public:
  // `cancellation` wakes a call that waits. Bytes of tensors are added to the
  // counters.
  RemoteSegments(const WorkerGroup& workers, RemoteRun run,
                 Cancellation& cancellation, Counter sent = {},
                 Counter received = {});

  // Bytes of tensors sent and received so far, and the time spent waiting.
  int64_t exchange_bytes() const { return bytes_; }
  std::chrono::microseconds waited() const { return waited_; }

 protected:
  // Errors: those of WorkerConnection::Call; DeadlineExceeded; Cancelled. The
  // workers are then told that nobody waits.
  absl::StatusOr<std::vector<std::vector<Tensor>>> CallWorkers(
      std::vector<WorkerCall> calls) override;

 private:
  struct Gather;

  const std::vector<std::shared_ptr<WorkerConnection>> connections_;
  const RemoteRun run_;
  Cancellation& cancellation_;
  const Counter sent_;
  const Counter received_;
  int64_t bytes_ = 0;
  std::chrono::microseconds waited_{0};
};

}  // namespace gshard

#endif  // ROUTER_REMOTE_SEGMENTS_H_
