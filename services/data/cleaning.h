// Filters raw parallel text, and splits it.

#ifndef SERVICES_DATA_CLEANING_H_
#define SERVICES_DATA_CLEANING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/data/corpus.h"

namespace gshard {

struct CleaningOptions {
  int32_t min_words = 2;  // limits for the English side
  int32_t max_words = 14;
  double min_ratio = 0.15;  // source characters per English character
  double max_ratio = 3.0;
};

// Keeps a pair if its English has min_words to max_words words, the sides
// differ, their lengths agree within the ratios, and no earlier pair of the
// same language had the same source (lowercased) or the same English (letters
// only, lowercased). White space is squeezed.
std::vector<SentencePair> CleanPairs(const std::vector<SentencePair>& pairs,
                                     const CleaningOptions& options);

enum class Split { kTrain, kDev, kTest };

// The split of a pair: a function of its English letters alone, so that English
// texts that differ only in digits, case or punctuation, and translations of
// one text from several languages, are in the same split. About 2% test, 1%
// dev.
Split SplitOf(absl::string_view english);

}  // namespace gshard

#endif  // SERVICES_DATA_CLEANING_H_
