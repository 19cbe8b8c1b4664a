// ReplicaUpload: one call of ExpertWorkerService.ReplicateGradients.

#ifndef EXPERT_WORKER_REPLICA_UPLOAD_H_
#define EXPERT_WORKER_REPLICA_UPLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "expert_worker/session_table.h"
#include "proto/gshard/v1/expert.pb.h"
#include "services/base/task_queue.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/wire/tensor_pieces.h"

namespace gshard {

// Everything is validated before it takes effect. A caller that stalls does not
// block the session.
class ReplicaUpload final
    : public UploadHandler<TensorFrame, v1::ReplicateGradientsResponse> {
 public:
  // Norms of what has arrived are computed on `queue`: gRPC's threads, which
  // translations need, have no nice value. Both outlive the call.
  ReplicaUpload(SessionTable* sessions, TaskQueue* queue)
      : sessions_(sessions), queue_(queue) {}

  absl::Status OnMessage(TensorFrame frame) override;
  void OnComplete(Done done) override {
    queue_->Post([this, done = std::move(done)] { done(Take()); });
  }

 private:
  absl::StatusOr<v1::ReplicateGradientsResponse> Take();

  SessionTable* const sessions_;
  TaskQueue* const queue_;
  std::unique_ptr<TensorCollector> collector_;  // null before the first frame
  std::string session_;
  int64_t step_ = 0;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_REPLICA_UPLOAD_H_
