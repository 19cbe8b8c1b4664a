// Filters raw parallel text, and splits it.

#ifndef SERVICES_DATA_CLEANING_H_
#define SERVICES_DATA_CLEANING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/data/corpus.h"

namespace gshard {

// Keeps a pair if its English has 2 to `max_words` words, the sides differ, the
// source has 0.15 to 3 times its characters, and no earlier pair of the
// same language had the same source (lowercased) or the same English (letters
// only, lowercased). White space is squeezed.
std::vector<SentencePair> CleanPairs(const std::vector<SentencePair>& pairs,
                                     int64_t max_words);

enum class Split { kTrain, kDev, kTest };

// The split of a pair: a function of its English letters alone, so that English
// texts that differ only in digits, case or punctuation, and translations of
// one text from several languages, are in the same split. About 2% test, 1%
// dev.
Split SplitOf(absl::string_view english);

}  // namespace gshard

#endif  // SERVICES_DATA_CLEANING_H_
