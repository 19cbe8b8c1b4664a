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
#include "services/storage/input_file.h"

namespace gshard {

// Files and their versions, in the order of PairEntry.file.
struct VersionedText {
  std::vector<TextFile> files;
  std::vector<FileVersion> versions;
};

// Reads the current versions. Errors: those of InputFile::Open, with the path.
absl::StatusOr<VersionedText> ReadTextVersions(std::vector<TextFile> files);

// The key of the text's index, whose size does not depend on the text.
std::string PairIndexKey(const VersionedText& text, const PairEncoder& encoder);

// Opens the index of the text in the first of `directories` that has it; or
// builds it in the first one where that succeeds: one that cannot be written to
// or whose disk fills up meanwhile is passed over. If several processes do so
// at the same time, all use the first one finished. A damaged index is rebuilt,
// with a warning. One that is deleted while it is open can still be read.
//
// Errors: InvalidArgument naming the file, if it has no valid line, or for 2^31
// pairs or more; FailedPrecondition if a file has another version; Cancelled
// soon after stop is requested; those of reading the text, and of the last
// directory, such as ResourceExhausted if the disk is full.
absl::StatusOr<std::unique_ptr<const PairIndex>> OpenPairIndex(
    const VersionedText& text, const PairEncoder& encoder,
    const std::vector<std::string>& directories, std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_INDEXER_H_
