// Batcher: the requests that a router has accepted, and the threads that
// translate them. Sentences wait for their turn (fair_queue.h), join a running
// batch of their model between any two decoding steps (join_rule.h), and leave
// it when they are translated.
//
// A request ends once, with an answer or an error: all of its sentences are
// translated, one of them lost experts that it requires, its deadline passes,
// it is cancelled, or a batch with some of its sentences fails; if a batch
// fails because workers have no room for its rows, only its newer requests are
// refused. From then on the request is not in the queue, its sentences leave
// the batch before the next step, and a step without any live request is
// stopped. A request that can no longer meet its deadline ends when its turn
// comes, unless it is the only one.

#ifndef ROUTER_BATCHING_BATCHER_H_
#define ROUTER_BATCHING_BATCHER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/admission/admission.h"
#include "router/batching/batch_lane.h"
#include "router/metrics/router_metrics.h"
#include "router/models/translation_model.h"
#include "services/base/mutex.h"
#include "services/rpc/wire/trace_context.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct BatcherOptions {
  // Number of concurrent batches; each takes one thread. At least 1.
  int64_t threads = 1;

  AdmissionLimits admission = {};
  BatchLimits batch = {};  // limits per batch

  // Records spans per request: "queue", until the first of its sentences joins
  // a batch, "encode" where some join, and "decode", from its first step to its
  // end.
  Tracer tracer = {};
};

struct TranslationRequest {
  std::shared_ptr<TranslationModel> model;
  std::vector<SourceSentence> sentences;  // not empty
  std::chrono::steady_clock::time_point deadline;
  TraceContext trace = {};  // for logs and workers; may be empty

  // The caller, for fair shares: see FairQueue. Flow 0: its own flow.
  std::string caller = {};
  uint64_t flow = 0;

  // Called once, on any thread but not inside Add(): with one element per
  // sentence, or an error. Elements are empty if another sentence was given up.
  std::function<void(absl::StatusOr<std::vector<Hypotheses>>)> done;
};

// Thread-safe.
class Batcher {
 public:
  explicit Batcher(const BatcherOptions& options, RouterMetrics metrics = {});
  // Calls Finish() without waiting.
  ~Batcher();

  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Returns the request's id. Errors, in which case `done` is not called:
  // ResourceExhausted, with a RetryDelay if a retry may help, as decided by
  // Admission; Unavailable after Finish().
  absl::StatusOr<uint64_t> Add(TranslationRequest request);

  // OK unless Add() would now refuse a request of this many sentences even if
  // each had only this many tokens, and these options: then tokenizing is
  // unnecessary.
  absl::Status Check(const std::string& caller, uint64_t flow, size_t sentences,
                     int64_t source_tokens, const DecodeOptions& options,
                     std::chrono::steady_clock::time_point deadline);

  const Tracer& tracer() const { return options_.tracer; }

  // Whether any of the caller's sentences is waiting or running.
  bool HasWorkOf(const std::string& caller) const;

  // A unique id for TranslationRequest::flow.
  uint64_t NewFlow();

  // Ends a request with CANCELLED, unless it has ended.
  void Cancel(uint64_t id);

  // Refuses further requests and returns when the accepted ones have ended;
  // those still open after `grace` end with UNAVAILABLE.
  void Finish(std::chrono::milliseconds grace);

  int64_t queued_sentences() const;
  int64_t queued_tokens() const;
  int64_t running_sentences() const;
  int64_t requests() const;  // unfinished

 private:
  struct Request;
  struct Round;
  using Requests = std::vector<std::shared_ptr<Request>>;
  using Lanes = std::map<TranslationModel*, std::unique_ptr<BatchLane>>;

  // Work of a lane.
  struct Running {
    std::vector<uint64_t> requests;  // per sentence
    std::shared_ptr<Cancellation> stop;
  };

  void RunThread();
  void RunTimer();
  // Models with sentences waiting, or running in `lanes`.
  std::vector<std::shared_ptr<TranslationModel>> ActiveModels(
      const Lanes& lanes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lanes with sentences, and those that begin because models have sentences
  // waiting, `joining` among them; null: none in particular.
  int64_t CountLanes(const TranslationModel* joining) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunRound(BatchLane& lane);
  Round PlanRound(BatchLane& lane);
  // The sentences that join now. Ends requests that can no longer meet their
  // deadlines instead, but not the last one.
  std::vector<WaitingSentence> TakeJoiningOf(BatchLane& lane, Requests& expired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `begun`: requests without a sentence in a batch before.
  void Settle(BatchLane& lane, RoundResult result, const Requests& begun);
  // Ends a request; false if it had ended.
  bool End(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a request whose deadline has passed.
  void Expire(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Report the outcome. Not under mutex_.
  void TellExpired(const Requests& expired) ABSL_LOCKS_EXCLUDED(mutex_);
  static void Tell(Request& request, const absl::Status& error);
  void UpdateGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BatcherOptions options_;
  const RouterMetrics metrics_;

  mutable Mutex mutex_;
  CondVar changed_;  // queues, stopping
  CondVar timer_;    // deadlines, stopping
  CondVar over_;     // requests have ended
  // Last id of requests, flows and sentences.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Request>> requests_
      ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>>
      deadlines_ ABSL_GUARDED_BY(mutex_);  // of requests_
  std::map<TranslationModel*, FairQueue> queues_ ABSL_GUARDED_BY(mutex_);
  std::map<BatchLane*, Running> running_ ABSL_GUARDED_BY(mutex_);
  Admission admission_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace gshard

#endif  // ROUTER_BATCHING_BATCHER_H_
