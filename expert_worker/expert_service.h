// ExpertService: gshard.v1.ExpertWorkerService. Reads the routers' calls from
// their streams, queues those of served models and those of jobs separately,
// runs their segments and replies.

#ifndef EXPERT_WORKER_EXPERT_SERVICE_H_
#define EXPERT_WORKER_EXPERT_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "expert_worker/session_table.h"
#include "expert_worker/work_queue.h"
#include "expert_worker/worker_metrics.h"
#include "proto/gshard/v1/expert.grpc.pb.h"
#include "services/base/mutex.h"
#include "services/base/task_queue.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/shared/shared_stream.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct ExpertServiceOptions {
  // For each of the two queues; the niceness applies to the training queue, and
  // to what is computed for replicas.
  WorkQueueOptions queue;

  // Limits of frames in both directions and of the outgoing queue per router.
  StreamOptions stream;

  // For routers on this machine.
  SharingOptions sharing;

  // Records a span per call in each of its traces.
  Tracer tracer;
};

// Thread-safe. Outlives the server that it is registered with.
class ExpertService final
    : public v1::ExpertWorkerService::WithRawCallbackMethod_Run<
          v1::ExpertWorkerService::WithRawCallbackMethod_ReplicateGradients<
              v1::ExpertWorkerService::Service>> {
 public:
  ExpertService(SessionTable* sessions, ExpertServiceOptions options,
                WorkerMetrics metrics = {});
  ~ExpertService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* ReplicateGradients(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override;

  // Refuses new calls and pings (UNAVAILABLE), replies to accepted ones and
  // ends the streams. Calls still queued after `grace` get UNAVAILABLE, too.
  void FinishAccepted(std::chrono::milliseconds grace);

  const WorkQueue& queue(bool training) const {
    return training ? training_ : served_;
  }
  // Over both queues.
  int running() const { return served_.running() + training_.running(); }
  int waiting() const { return served_.waiting() + training_.waiting(); }
  size_t waiting_bytes() const {
    return served_.waiting_bytes() + training_.waiting_bytes();
  }
  // Total rows received in calls.
  int64_t rows() const { return rows_; }
  int streams() const;

 private:
  struct Stream;
  struct Call;
  class FrameReader;

  void OnFrame(const std::shared_ptr<Stream>& stream, ExpertFrame frame);
  void OnStreamEnd(Stream& stream);
  // The answer to a ping for this session.
  absl::Status PingStatus(const std::string& session);
  absl::Status Accept(const std::shared_ptr<Stream>& stream, ExpertFrame frame);
  void RunCall(Call& call, const absl::Status& status,
               std::chrono::microseconds waited);
  static void LogCall(const Call& call, const absl::Status& status,
                      std::chrono::microseconds ran);
  void Reply(Stream& stream, ExpertFrame frame);

  SessionTable* const sessions_;
  const ExpertServiceOptions options_;
  const WorkerMetrics metrics_;
  std::atomic<int64_t> rows_ = 0;

  mutable Mutex mutex_;
  CondVar stream_ended_;
  std::atomic<bool> refusing_ = false;  // new calls, as the queues do
  std::atomic<bool> finishing_ = false;
  std::atomic<bool> blocked_ = false;  // as the log was told
  uint64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);

  // For the replicas of other workers' experts, and the runs of ended streams.
  TaskQueue background_;
  // Last: their threads use the members above.
  WorkQueue served_;
  WorkQueue training_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_EXPERT_SERVICE_H_
