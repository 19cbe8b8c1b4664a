// HeldOut: the microbatches of a validation text. Always the same, whoever runs
// them: a function of (text, options).

#ifndef SERVICES_DATA_HELD_OUT_H_
#define SERVICES_DATA_HELD_OUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "services/data/tokenized_text.h"

namespace gshard {

struct HeldOutOptions {
  uint64_t seed = 1;
  int32_t tokens = 2048;      // per microbatch, as in BatchOrderOptions
  int32_t max_sentences = 0;  // drawn evenly from the text; 0: all
};

class HeldOut {
 public:
  // Errors: those of BatchOrder::Create.
  static absl::StatusOr<HeldOut> Create(const TokenizedText& text,
                                        const HeldOutOptions& options);

  int32_t microbatches() const {
    return static_cast<int32_t>(microbatches_.size());
  }

  // Sentence indices; never empty. REQUIRES: 0 <= index < microbatches().
  const std::vector<int32_t>& Microbatch(int32_t index) const;

 private:
  std::vector<std::vector<int32_t>> microbatches_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_HELD_OUT_H_
