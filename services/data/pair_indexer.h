// Builds the index of a text in one pass.

#ifndef SERVICES_DATA_PAIR_INDEXER_H_
#define SERVICES_DATA_PAIR_INDEXER_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/training_job.h"
#include "services/data/pair_encoder.h"
#include "services/data/pair_index.h"
#include "services/data/text_reader.h"

namespace gshard {

// Files and their versions, in the order of PairEntry.file.
struct VersionedText {
  std::vector<TextFile> files;
  std::vector<TextVersion> versions;
};

// The present versions. Errors: those of TextReader::Open, each with its path.
absl::StatusOr<VersionedText> ReadTextVersions(std::vector<TextFile> files);

// The key of the text's index: grows not with the text.
std::string PairIndexKey(const VersionedText& text, const PairEncoder& encoder);

// Opens the index of the text in the first of `directories` that has it; or
// makes it, in the first where that can be done. Of several processes that do
// so at the same time all take what the first has made. What is damaged is made
// anew, with a warning.
//
// Errors: InvalidArgument naming the file, if none of its lines is of use;
// FailedPrecondition if a file has another version; ResourceExhausted for 2^31
// pairs or more, or if the disk is full; Cancelled if it is told to stop, which
// it is within a part of a file; those of reading the text, and of the last of
// the directories.
absl::StatusOr<std::unique_ptr<const PairIndex>> OpenPairIndex(
    const VersionedText& text, const PairEncoder& encoder,
    const std::vector<std::string>& directories, std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_INDEXER_H_
