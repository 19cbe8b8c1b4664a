// WorkerStub: the transport of an exchange to one expert worker, over a gRPC
// stream (router/workers/worker_connection.h) or within the process.

#ifndef SERVICES_EXCHANGE_WORKER_STUB_H_
#define SERVICES_EXCHANGE_WORKER_STUB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/exchange/worker_state.h"
#include "services/tensor/tensor.h"

namespace gshard {

// A call of a segment; see ExpertFrameHeader. Names are not owned.
struct WorkerCall {
  absl::string_view session = {};
  absl::string_view segment = {};
  int64_t step = 0;  // 0: the call is stateless
  int32_t microbatch = 0;
  int32_t attempt = 0;
  std::chrono::milliseconds timeout{0};
  std::vector<std::pair<absl::string_view, Tensor>> inputs = {};  // by name
};

// Thread-safe.
class WorkerStub {
 public:
  // Receives the outcome of a call, once: the worker's replies, or an error
  // that names the worker. Must not block.
  using OnReply = std::function<void(absl::StatusOr<std::vector<Tensor>>)>;

  explicit WorkerStub(absl::string_view name)
      : name_(absl::StrCat("expert worker '", name, "'")) {}
  virtual ~WorkerStub() = default;

  WorkerStub(const WorkerStub&) = delete;
  WorkerStub& operator=(const WorkerStub&) = delete;

  // Sends a call and returns its id; `on_reply` may run before this returns.
  // Errors passed to `on_reply`: the worker's own; UNAVAILABLE if the worker
  // was lost; RESOURCE_EXHAUSTED if the call is too long or too much is queued.
  virtual uint64_t Call(WorkerCall call, OnReply on_reply) = 0;

  // Checks that the worker is alive and has the session. A worker answers at
  // once, whatever it is computing. Otherwise as Call().
  virtual uint64_t Ping(const std::string& session, OnReply on_reply) = 0;

  // Cancels the call: the worker is notified, and `on_reply` is not called
  // unless it is already running.
  virtual void Cancel(uint64_t call_id) = 0;

  // "expert worker 'name'".
  const std::string& name() const { return name_; }

  // The shared view of the worker.
  WorkerState& state() { return state_; }

 private:
  const std::string name_;
  WorkerState state_;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_WORKER_STUB_H_
