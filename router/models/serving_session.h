// ServingSession: a model from a checkpoint, with its experts on workers.

#ifndef ROUTER_MODELS_SERVING_SESSION_H_
#define ROUTER_MODELS_SERVING_SESSION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/metrics/router_metrics.h"
#include "router/models/translation_model.h"
#include "services/base/mutex.h"
#include "services/config/model_config.h"
#include "services/exchange/replica_set.h"
#include "services/exchange/segment_calls.h"
#include "services/graph/executor.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {

struct ServingSessionSpec {
  std::string session;  // "name@version"
  ModelConfig model;    // validated
  std::string checkpoint_directory;
  std::shared_ptr<const ReplicaGroup> replicas;
  uint64_t segments_key = 0;  // of the workers' segments: segments_key.h
  Device* device = nullptr;   // outlives the session; null: the CPU
  std::stop_token stop;       // ends Create(), with Cancelled
};

// Thread-safe.
class ServingSession final : public TranslationModel {
 public:
  // Reads the dense parameters and the tokenizers.
  //
  // Errors: those of CheckpointReader and Tokenizer; FailedPrecondition if the
  // checkpoint's parameters or vocabularies do not match the model;
  // Unimplemented if workers run other segments, or if the device lacks a
  // kernel; those of the device.
  static absl::StatusOr<std::shared_ptr<ServingSession>> Create(
      ServingSessionSpec spec, RouterMetrics metrics = {});

  const std::string& id() const override { return spec_.session; }
  // Key of the segments that it calls.
  uint64_t segments_key() const { return spec_.segments_key; }
  const std::string& checkpoint_directory() const {
    return spec_.checkpoint_directory;
  }
  int64_t max_positions() const override { return spec_.model.max_positions; }
  const std::vector<std::string>& languages() const override {
    return tokenizers_.source->languages();
  }
  const std::string& default_language() const override {
    return default_language_;
  }
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view language) const override;
  absl::StatusOr<std::vector<int32_t>> EncodeTarget(
      absl::string_view text) const override;
  absl::StatusOr<std::vector<int32_t>> EncodePhrase(
      absl::string_view text) const override;
  int32_t CountUnknown(absl::Span<const int32_t> ids) const override;
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override;
  int64_t CachedPositions(const SourceSentence& sentence) const override {
    return translator_.CachedPositions(sentence);
  }
  std::unique_ptr<ModelBatch> NewBatch(int64_t max_positions) override;
  bool full() const override {
    return replicas_.live_experts() == spec_.model.experts;
  }

  absl::StatusOr<RoutingReport> ExplainRouting(
      const std::vector<int32_t>& source, const std::vector<int32_t>& target,
      const BatchRun& run) override;

  // Makes running and later batches fail with UNAVAILABLE.
  void Interrupt() { interrupted_.Cancel(); }

  // The replicas of the experts; UpdatePlacement changes them while batches
  // run.
  ReplicaSet& replicas() { return replicas_; }

  // Whether calls are answered: the model is full(), or was at an earlier call
  // of this or NoteLive(), and at least one of its experts can be reached.
  bool Ready() {
    const int64_t live = NoteLive();
    return was_full_ && (live > 0 || spec_.model.experts == 0);
  }
  // Remembers whether the model is full() now, and returns its live experts. To
  // be called when that may have changed: Ready() is not called for standbys.
  int64_t NoteLive() {
    const int64_t live = replicas_.live_experts();
    if (live == spec_.model.experts) was_full_ = true;
    return live;
  }

  // Rows of each expert in all layers so far, [E].
  std::vector<int64_t> expert_rows() const;

  int64_t memory_bytes() const { return memory_bytes_; }

 private:
  class Batch;
  struct Tokenizers {
    std::unique_ptr<Tokenizer> source;
    std::unique_ptr<Tokenizer> own_target;  // null: the source's

    const Tokenizer& target() const {
      return own_target ? *own_target : *source;
    }
  };

  ServingSession(ServingSessionSpec spec, Tokenizers tokenizers,
                 std::string default_language, SegmentCalls calls,
                 Program encode, Program decode, RouterMetrics metrics);

  // Calls work(exchange, statistics) with the session's workers, and counts the
  // statistics.
  template <typename Work>
  absl::Status Run(const BatchRun& run, const Work& work);

  static TargetTokens TargetTokensOf(const Tokenizer& tokenizer);
  void CountRows(const DecodeStatistics& statistics);

  const ServingSessionSpec spec_;
  const Tokenizers tokenizers_;
  const std::string default_language_;
  TensorMap parameters_;  // where and in the types that the programs take them
  const Translator translator_;
  const RouterMetrics metrics_;
  const std::map<std::string, LayerMetrics> layers_;  // MoE layers, by name
  const Counter decoded_tokens_;
  const SegmentCalls calls_;
  int64_t memory_bytes_ = 0;
  Cancellation interrupted_;
  ReplicaSet replicas_;
  std::atomic<bool> was_full_ = false;
  mutable Mutex mutex_;
  std::vector<int64_t> expert_rows_ ABSL_GUARDED_BY(mutex_);  // [E]
};

}  // namespace gshard

#endif  // ROUTER_MODELS_SERVING_SESSION_H_
