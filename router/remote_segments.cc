#include "router/remote_segments.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/tensor_frame.h"
#include "services/rpc/trace_scope.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

// The replies as they come. Shared with the connections' callbacks, which may
// run after the waiting has been given up.
struct RemoteSegments::Gather {
  std::mutex mutex;
  std::condition_variable changed;
  size_t missing = 0;
  bool cancelled = false;
  absl::Status error;  // the first
  std::vector<std::vector<Tensor>> replies;

  void Take(size_t i, absl::StatusOr<ExpertFrame> reply) {
    std::lock_guard<std::mutex> lock(mutex);
    --missing;
    if (reply.ok()) {
      replies[i] = std::move(reply->tensors);
    } else if (error.ok()) {
      error = reply.status();
    }
    changed.notify_all();
  }
};

RemoteSegments::RemoteSegments(const WorkerGroup& workers, RemoteRun run,
                               Cancellation& cancellation, Counter sent,
                               Counter received)
    : DividingRunner(workers.experts, /*skip_idle=*/run.step == 0),
      connections_(workers.connections),
      run_(std::move(run)),
      cancellation_(cancellation),
      sent_(sent),
      received_(received) {}

absl::StatusOr<std::vector<std::vector<Tensor>>> RemoteSegments::CallWorkers(
    std::vector<WorkerCall> calls) {
  const Clock::time_point start = Clock::now();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      run_.deadline - start);
  if (left.count() <= 0) {
    return absl::DeadlineExceededError("no time is left for expert workers");
  }
  const auto gather = std::make_shared<Gather>();
  gather->missing = calls.size();
  gather->replies.resize(calls.size());
  int64_t sent = 0;
  std::vector<std::pair<WorkerConnection*, uint64_t>> ids;
  for (size_t i = 0; i < calls.size(); ++i) {
    WorkerCall& call = calls[i];
    ExpertFrame frame;
    frame.header.set_session(run_.session);
    frame.header.set_segment(call.segment);
    frame.header.set_step(run_.step);
    frame.header.set_microbatch(run_.microbatch);
    frame.header.set_attempt(run_.attempt);
    frame.header.set_timeout_ms(left.count());
    for (const TraceContext& trace : CurrentTraces()) {
      frame.header.add_traceparents(trace.Traceparent());
    }
    for (auto& [name, tensor] : call.inputs) {
      sent += static_cast<int64_t>(tensor.bytes());
      frame.Add(name, std::move(tensor));
    }
    WorkerConnection& connection = *connections_[call.worker];
    ids.emplace_back(&connection,
                     connection.Call(std::move(frame), [gather, i](auto reply) {
                       gather->Take(i, std::move(reply));
                     }));
  }
  const uint64_t registration = cancellation_.OnCancel([gather] {
    std::lock_guard<std::mutex> lock(gather->mutex);
    gather->cancelled = true;
    gather->changed.notify_all();
  });
  absl::Status status;
  std::vector<std::vector<Tensor>> replies;
  {
    std::unique_lock<std::mutex> lock(gather->mutex);
    const bool done =
        gather->changed.wait_until(lock, run_.deadline, [&gather] {
          return gather->missing == 0 || gather->cancelled ||
                 !gather->error.ok();
        });
    if (gather->cancelled) {
      status = absl::CancelledError("the run was cancelled");
    } else if (!done) {
      status = absl::DeadlineExceededError(absl::StrCat(
          gather->missing, " expert workers have not replied in time"));
    } else {
      status = gather->error;
    }
    if (status.ok()) replies = std::move(gather->replies);
  }
  cancellation_.Remove(registration);
  waited_ += std::chrono::duration_cast<std::chrono::microseconds>(
      Clock::now() - start);
  if (!status.ok()) {
    for (const auto& [connection, id] : ids) connection->Cancel(id);
    return status;
  }
  int64_t received = 0;
  for (const std::vector<Tensor>& tensors : replies) {
    for (const Tensor& tensor : tensors) {
      received += static_cast<int64_t>(tensor.bytes());
    }
  }
  sent_.Increment(static_cast<double>(sent));
  received_.Increment(static_cast<double>(received));
  bytes_ += sent + received;
  return replies;
}

}  // namespace gshard
