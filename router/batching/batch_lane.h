// BatchLane: the batch of one model on one of the batcher's threads. In each
// round some sentences leave, some join, and all in the batch advance by a
// token.
//
// Not thread-safe; has no callbacks: outcomes are returned.

#ifndef ROUTER_BATCHING_BATCH_LANE_H_
#define ROUTER_BATCHING_BATCH_LANE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/admission/join_rule.h"
#include "router/metrics/router_metrics.h"
#include "router/models/translation_model.h"
#include "services/rpc/wire/trace_context.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

// A joining sentence; must stay valid until Round() returns.
struct JoiningItem {
  uint64_t id = 0;
  WaitingSentence waiting;
  const SourceSentence* sentence = nullptr;
  absl::string_view trace_id;  // of its request's trace, if that is sampled
};

// The outcome of a sentence in the batch.
struct RoundOutcome {
  WaitingSentence waiting;
  absl::StatusOr<Hypotheses> result = Hypotheses();
  int64_t rounds = 0;   // rounds taken, if translated
  double row_cost = 1;  // FinishedSentence's
  bool again = false;   // to be queued again, from the start
};

// Traces of a round.
struct RoundTraces {
  std::vector<OpenSpan> encode;      // spans of requests with joining sentences
  std::vector<TraceContext> decode;  // of all requests
};

struct RoundResult {
  std::vector<RoundOutcome> outcomes;
  // When the step began, after joining.
  std::chrono::steady_clock::time_point step_start;
  int64_t rows = 0;  // decoded rows; 0: none, or an error
  double seconds = 0;
};

class BatchLane {
 public:
  BatchLane(std::shared_ptr<TranslationModel> model, const BatchLimits& limits,
            RouterMetrics metrics);

  // Removes the sentences `leaving`, adds `joining` and makes a step. Returns
  // those that have left the batch, except `leaving`. If workers have no room
  // for their rows, some are refused, and the others must be queued again. A
  // request whose rows are too many for a message has no RetryDelay.
  RoundResult Round(const std::vector<uint64_t>& leaving,
                    std::vector<JoiningItem> joining, const BatchRun& run,
                    RoundTraces traces = {});

  // The sentences in the batch, by id, and their cost.
  const std::map<uint64_t, WaitingSentence>& sentences() const {
    return sentences_;
  }
  const BatchLoad& load() const { return load_; }
  const std::shared_ptr<TranslationModel>& model() const { return model_; }

 private:
  void Join(std::vector<JoiningItem> joining, const BatchRun& run,
            std::vector<OpenSpan> spans, RoundResult& result);
  void Step(const BatchRun& run, RoundResult& result);
  // Outcomes of sentences whose joint encoding or decoding failed.
  static void Fail(std::vector<WaitingSentence> sentences,
                   const absl::Status& status, RoundResult& result);
  // Removes a sentence from the lane.
  WaitingSentence Remove(uint64_t id);

  const std::shared_ptr<TranslationModel> model_;
  const BatchLimits limits_;
  const RouterMetrics metrics_;
  std::unique_ptr<ModelBatch> batch_;  // null after an error
  std::map<uint64_t, WaitingSentence> sentences_;
  BatchLoad load_;
};

}  // namespace gshard

#endif  // ROUTER_BATCHING_BATCH_LANE_H_
