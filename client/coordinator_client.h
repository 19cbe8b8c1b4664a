// A client of CoordinatorService for commands.

#ifndef CLIENT_COORDINATOR_CLIENT_H_
#define CLIENT_COORDINATOR_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/mutex.h"
#include "services/config/security_options.h"
#include "services/rpc/client/channel.h"

namespace gshard {

// Thread-safe. A call that finds nobody has the next one look for the
// coordinator anew, as it may have been started elsewhere. Errors of every
// call: those of its service; Unavailable and DeadlineExceeded with the address
// and, if nobody answered, what to look for.
class CoordinatorClient {
 public:
  // Errors: InvalidArgument if `address` is invalid, and those of
  // Security::CreateForClient.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Create(
      const std::string& address, const SecurityOptions& security = {});

  absl::StatusOr<v1::DescribeResponse> Describe(
      bool include_experts = false,
      std::chrono::milliseconds timeout = kDefaultDeadline);

  // After `timeout` the job may still be accepted.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(
      const v1::SubmitJobRequest& request,
      std::chrono::milliseconds timeout = kDefaultDeadline);
  // Waits until its members have released it.
  absl::Status CancelJob(const std::string& job);
  // One job, or all if `job` is empty.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const std::string& job,
                                                bool history);

  // Waits until every router has it; after `timeout` it goes on loading.
  // Cancelled if Interrupt() was called.
  absl::StatusOr<std::string> LoadModel(const v1::LoadModelRequest& request,
                                        std::chrono::milliseconds timeout);
  // As UnloadModelRequest.session.
  absl::Status UnloadModel(const std::string& session);

  // Calls `progress` with every line until the job has finished, and returns
  // the last one. If the coordinator is lost, calls `waits` with the time for
  // which it reconnects, with backoff: a minute; then Unavailable, also if it
  // no longer knows the job, of which it has told before or, if `submitted`,
  // accepted it. Cancelled if Interrupt() was called.
  absl::StatusOr<v1::JobProgress> WatchJob(
      const std::string& job, bool submitted,
      const std::function<void(const v1::JobProgress&)>& progress,
      const std::function<void(std::chrono::milliseconds left,
                               const absl::Status& why)>& waits);

  // Ends all running and later calls of WatchJob() and LoadModel().
  void Interrupt();

 private:
  using Stub = v1::CoordinatorService::Stub;

  CoordinatorClient(std::string address, ChannelOptions options)
      : address_(std::move(address)), options_(std::move(options)) {}

  // Makes a channel, at most once a second. Errors: those of CreateChannel.
  absl::Status Connect();
  std::shared_ptr<Stub> stub();
  // Of a call that failed.
  absl::Status Error(const grpc::ClientContext& context,
                     const grpc::Status& status);
  // Between Begin and End, Interrupt() ends the call. Errors: Cancelled.
  absl::Status BeginWait(grpc::ClientContext* context);
  void EndWait(grpc::ClientContext* context);
  bool IsInterrupted();
  absl::Status WatchOnce(
      const std::string& job,
      const std::function<void(const v1::JobProgress&)>& progress,
      v1::JobProgress* last);

  const std::string address_;
  const ChannelOptions options_;

  Mutex mutex_;
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point next_connect_ ABSL_GUARDED_BY(mutex_);
  CondVar changed_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> waiting_ ABSL_GUARDED_BY(mutex_);
};

// Addresses of the routers among the members, except leaving ones, by name.
// Errors: FailedPrecondition if there are none.
absl::StatusOr<std::vector<std::string>> RouterAddresses(
    const v1::DescribeResponse& system);

}  // namespace gshard

#endif  // CLIENT_COORDINATOR_CLIENT_H_
