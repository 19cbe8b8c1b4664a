#include "expert_worker/worker_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "expert_worker/serving_worker_session.h"
#include "expert_worker/training_worker_session.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Create(
    WorkerSessionSpec spec, MemoryAccount account, Device* device) {
  ASSIGN_OR_RETURN(const int64_t bytes, CheckWorkerSession(spec));
  MemoryShare memory(account);
  if (!memory.Take(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session takes ", bytes, " bytes, of which ",
                     account.free(), " are free"));
  }
  if (spec.optimizer == nullptr) {
    return ServingWorkerSession::Create(std::move(spec), std::move(memory),
                                        device);
  }
  return TrainingWorkerSession::Create(std::move(spec), std::move(account),
                                       std::move(memory), device);
}

}  // namespace gshard
