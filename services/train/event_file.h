// Writes scalars per step to the event files that TensorBoard reads.
//
// A file is a sequence of TFRecords (u64 length, its masked CRC-32C, the bytes,
// their masked CRC-32C; little-endian), each a tensorflow.Event message:
//
//   double wall_time = 1;  int64 step = 2;  string file_version = 3;
//   Summary summary = 5 { repeated Value value = 1 { string tag = 1;
//                                                    float simple_value = 2; }
//                                                    }
//
// These messages are small and stable, so they are encoded by hand.

#ifndef SERVICES_TRAIN_EVENT_FILE_H_
#define SERVICES_TRAIN_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/storage/file.h"

namespace gshard {

// One point of a curve. TensorBoard groups tags by the part before '/'.
struct Scalar {
  std::string tag;
  float value = 0.0f;
};

// The bytes of an Event message. `wall_time` is in seconds since 1970.
std::string EncodeVersionEvent(double wall_time);
std::string EncodeScalarEvent(double wall_time, int64_t step,
                              absl::Span<const Scalar> scalars);

// Frames `payload` as a TFRecord.
std::string EncodeRecord(absl::string_view payload);

// Not thread-safe.
class EventFile {
 public:
  // Creates `directory`/events.out.tfevents.SECONDS.`suffix` (TensorBoard
  // requires "tfevents" in the name, and shows the files of a directory as one
  // run, in order of name). Errors: those of storage/file.h.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(
      const std::string& directory, const std::string& suffix,
      double wall_time);

  // Appends the points of one step; on return they are visible to readers.
  // Errors do not affect training: log them and continue.
  absl::Status Add(double wall_time, int64_t step,
                   absl::Span<const Scalar> scalars);

  const std::string& path() const { return file_->path(); }

 private:
  explicit EventFile(std::unique_ptr<OutputFile> file)
      : file_(std::move(file)) {}

  std::unique_ptr<OutputFile> file_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_EVENT_FILE_H_
