// Scores by sacreBLEU, the standard tool. There is no BLEU of our own, whose
// scores would not be comparable.

#ifndef CLIENT_SACREBLEU_H_
#define CLIENT_SACREBLEU_H_

#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

// One number of one metric.
struct Score {
  std::string metric;     // "BLEU", "chrF2"
  double score = 0.0;     // 0 to 100
  std::string signature;  // how it was computed, for comparisons
};

class Sacrebleu {
 public:
  // The program at `path`; if that is empty `sacrebleu` on PATH, else the
  // Python module. `stop` ends it while it runs. Errors: NotFound if it is not
  // installed.
  static absl::StatusOr<Sacrebleu> Find(const std::string& path,
                                        std::stop_token stop = {});

  // BLEU and chrF of a file of translations against one of references, line by
  // line. Errors: Internal with the program's message; Cancelled.
  absl::StatusOr<std::vector<Score>> Compare(
      const std::string& hypotheses_path,
      const std::string& references_path) const;

 private:
  Sacrebleu(std::vector<std::string> command, std::stop_token stop)
      : command_(std::move(command)), stop_(std::move(stop)) {}

  const std::vector<std::string> command_;
  const std::stop_token stop_;
};

}  // namespace gshard

#endif  // CLIENT_SACREBLEU_H_
