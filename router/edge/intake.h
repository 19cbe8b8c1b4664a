// Intake: takes a request from its bytes to its answer. It is parsed and
// prepared on the preparer's threads and translated by the batcher; the calling
// thread is not used. A request that the batcher would refuse however short its
// sentences are is not tokenized.
//
// The refusal of a large request of a caller with work in the batcher is
// delayed by a part of the retry delay, at most a tenth of a second: otherwise
// a caller that ignores the delay would cost more by refused requests than by
// accepted ones.

#ifndef ROUTER_EDGE_INTAKE_H_
#define ROUTER_EDGE_INTAKE_H_

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/batching/batcher.h"
#include "router/batching/preparer.h"
#include "router/edge/translate_answer.h"
#include "router/metrics/router_metrics.h"
#include "router/models/cancellation.h"
#include "router/models/model_table.h"
#include "services/rpc/security/caller.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {

// The content of a message.
struct ParsedRequest {
  v1::TranslateRequest request;
  std::chrono::steady_clock::time_point deadline;
};

struct IncomingRequest {
  grpc::ByteBuffer bytes;
  Caller user;         // for the right to use the model
  std::string caller;  // for FairQueue, like flow; 0: a flow of its own
  uint64_t flow = 0;
  TraceContext trace = {};
  std::chrono::steady_clock::time_point deadline;
  std::shared_ptr<Cancellation> stop;  // set when nobody waits any more

  // Parses the bytes, on a thread that may compute.
  std::function<absl::StatusOr<ParsedRequest>(grpc::ByteBuffer bytes)> parse;

  // Called once, on any thread; inside Take() if `stop` is already set. `model`
  // is the name of the model without its version, empty if the request is
  // refused before that is known.
  std::function<void(const std::string& model,
                     absl::StatusOr<v1::TranslateResponse>)>
      done;
};

// Thread-safe.
class Intake {
 public:
  // None is owned.
  Intake(const ModelTable* models, Preparer* preparer, Batcher* batcher,
         RouterMetrics metrics);

  // Returns at once. Errors, in which case `done` is not called:
  // ResourceExhausted if it is too large. `done` gets those of parse(),
  // TranslationDraft, Preparer, Batcher and MakeAnswer().
  absl::Status Take(IncomingRequest request);

 private:
  struct Job;

  // Prepares a part of it, as Preparer::Task::prepare_next.
  int64_t Prepare(const std::shared_ptr<Job>& job);
  absl::Status PrepareNext(Job& job);
  // Ends it with an error, soon.
  void Refuse(const std::shared_ptr<Job>& job, const absl::Status& status);
  absl::Status Queue(const std::shared_ptr<Job>& job);
  absl::StatusOr<v1::TranslateResponse> Answer(
      const AnswerContext& context,
      const absl::StatusOr<std::vector<Hypotheses>>& results) const;

  const ModelTable* const models_;
  Preparer* const preparer_;
  Batcher* const batcher_;
  const RouterMetrics metrics_;
};

}  // namespace gshard

#endif  // ROUTER_EDGE_INTAKE_H_
