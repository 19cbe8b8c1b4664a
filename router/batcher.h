// Batcher: the requests that a router has accepted, and the threads that
// translate them. Sentences wait in order of arrival; a batch takes those of
// one model until its budget of tokens is full, whatever calls they came with.
//
// A request ends once, by an answer or an error: all of its sentences are
// translated, its deadline passes, it is cancelled, or a batch with some of its
// sentences fails. From then on it takes no place in the queue, and a batch
// that nobody waits for is stopped.

#ifndef ROUTER_BATCHER_H_
#define ROUTER_BATCHER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/router_metrics.h"
#include "router/translation_model.h"
#include "services/rpc/trace_context.h"

namespace gshard {

struct BatcherOptions {
  // Batches that are translated at the same time; each takes one thread. At
  // least 1.
  int threads = 1;

  // What may wait, and so what one request may have. Tokens count once for
  // each hypothesis of the beam.
  int64_t max_queued_tokens = int64_t{1} << 18;
  int64_t max_queued_sentences = 4096;

  // Tokens of a batch, padding and hypotheses included: sentences times the
  // longest source times the largest beam. One sentence is always a batch.
  int64_t max_batch_tokens = 8192;
};

struct TranslationRequest {
  std::shared_ptr<TranslationModel> model;
  std::vector<SourceSentence> sentences;  // not empty
  std::chrono::steady_clock::time_point deadline;
  TraceContext trace = {};  // for logs and workers; may be empty

  // Called once, on any thread but not inside of Add(): one element for each
  // sentence, or why there are none.
  std::function<void(absl::StatusOr<std::vector<Hypotheses>>)> done;
};

// Thread-safe.
class Batcher {
 public:
  explicit Batcher(const BatcherOptions& options, RouterMetrics metrics = {});
  // Finishes without waiting.
  ~Batcher();

  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Returns the request's number. Errors, `done` is then not called:
  // ResourceExhausted beyond the limits; Unavailable after Finish().
  absl::StatusOr<uint64_t> Add(TranslationRequest request);

  // Ends a request with CANCELLED, unless it is over.
  void Cancel(uint64_t id);

  // Takes no more requests, and returns when those accepted are over; those
  // that are not after `grace` end with UNAVAILABLE.
  void Finish(std::chrono::milliseconds grace);

  int64_t queued_sentences() const;
  int64_t queued_tokens() const;
  int64_t running_sentences() const;
  int64_t requests() const;  // that are not over

 private:
  struct Request;
  struct Item {  // a sentence that waits
    std::shared_ptr<Request> request;
    size_t sentence;
    std::chrono::steady_clock::time_point arrival;
  };
  struct Batch {
    std::shared_ptr<TranslationModel> model;
    std::vector<Item> items;
    Cancellation all_cancelled;
  };
  using Requests = std::vector<std::shared_ptr<Request>>;

  static int64_t TokensOf(const SourceSentence& sentence);

  void RunThread();
  void RunTimer();
  // The next batch from the queue; empty at the end. Needs mutex_.
  std::shared_ptr<Batch> TakeBatch();
  void RunBatch(Batch& batch);
  // Ends a request; false if it was over. Needs mutex_.
  bool End(Request& request);
  // Tells the outcome. Not under mutex_.
  static void Tell(Request& request, const absl::Status& error);
  void UpdateGauges();  // needs mutex_

  const BatcherOptions options_;
  const RouterMetrics metrics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // queue, stopping
  std::condition_variable timer_;    // deadlines, stopping
  std::condition_variable over_;     // requests have ended
  uint64_t last_id_ = 0;             // guarded by mutex_
  std::map<uint64_t, std::shared_ptr<Request>> requests_;  // by mutex_
  std::deque<Item> queue_;                                 // guarded by mutex_
  int64_t queued_tokens_ = 0;                              // guarded by mutex_
  std::set<Batch*> running_;                               // guarded by mutex_
  bool finishing_ = false;                                 // guarded by mutex_
  bool stopping_ = false;                                  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace gshard

#endif  // ROUTER_BATCHER_H_
