// TrainingText: a router's access to the text of a training job.

#ifndef ROUTER_TRAINING_TRAINING_TEXT_H_
#define ROUTER_TRAINING_TRAINING_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/training_job.h"
#include "services/data/batch.h"
#include "services/data/batch_order.h"
#include "services/data/held_out.h"
#include "services/data/streamed_text.h"

namespace gshard {

// Thread-safe.
class TrainingText {
 public:
  // Takes a pass over the text, a second per 200,000 pairs, unless an earlier
  // session left its index: beside the job's checkpoints, or if there is no
  // place, in the user's cache. `tokenizer_directory` has source.model, and
  // target.model if needed. The next steps after `done_steps` can be read
  // without planning earlier epochs, a second per 3 million pairs of each.
  //
  // Errors: those of loading the tokenizers, of StreamedText::Open and of
  // BatchOrder::Prepare, including Cancelled if stop is requested;
  // FailedPrecondition if a vocabulary does not have the model's size.
  static absl::StatusOr<std::unique_ptr<TrainingText>> Open(
      const TrainingJob& job, const std::string& tokenizer_directory,
      int64_t done_steps, std::stop_token stop = {});

  // Microbatch `index` of `step`, from 1. Errors: those of StreamedText::Read.
  absl::StatusOr<Batch> Read(int64_t step, int32_t index) const;

  // The same for the held-out text. REQUIRES: below validation_microbatches().
  absl::StatusOr<Batch> ReadHeldOut(int32_t index) const;

  // 0 without held-out text.
  int32_t validation_microbatches() const {
    return held_out_.has_value() ? held_out_->microbatches() : 0;
  }

  v1::TextLoaded Describe() const;

  // Memory of the indexes.
  int64_t memory_bytes() const;

 private:
  TrainingText() = default;

  std::unique_ptr<StreamedText> train_;
  std::optional<BatchOrder> order_;
  std::unique_ptr<StreamedText> dev_;  // may be null
  std::optional<HeldOut> held_out_;
};

}  // namespace gshard

#endif  // ROUTER_TRAINING_TRAINING_TEXT_H_
