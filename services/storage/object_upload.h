// ObjectUpload: streams an object to its store in parts, a few of which are in
// flight at a time.

#ifndef SERVICES_STORAGE_OBJECT_UPLOAD_H_
#define SERVICES_STORAGE_OBJECT_UPLOAD_H_

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/storage/fault_points.h"
#include "services/storage/object_client.h"
#include "services/storage/object_path.h"
#include "services/storage/storage.h"

namespace gshard {

// The part size for an object of `bytes`: `smallest`, or enough for at most
// 10,000 parts.
uint64_t UploadPartBytes(uint64_t bytes, uint64_t smallest);

// Buffers at most four parts, of 16 MiB each unless the object exceeds 160 GB.
// An object that fits in a part is a single request. `faults` are consulted
// before each part (kWrite), before the object is created (kCreate) and before
// an upload is aborted (kRemove). Not thread-safe.
class ObjectUpload final : public NewFile {
 public:
  static absl::StatusOr<std::unique_ptr<ObjectUpload>> Begin(
      std::shared_ptr<ObjectClient> client, ObjectPath path, uint64_t bytes,
      FaultPoints* faults);
  ~ObjectUpload() override;

  absl::Status WriteAt(uint64_t offset, absl::string_view bytes) override;
  absl::Status Finish() override;

 private:
  struct Part {
    std::string bytes;
    std::future<absl::StatusOr<std::string>> etag;
  };

  ObjectUpload(std::shared_ptr<ObjectClient> client, ObjectPath path,
               uint64_t bytes, FaultPoints* faults);
  absl::Status SendPart();
  absl::Status AwaitPart();  // the oldest one in flight
  absl::Status Reach(DiskChange::Kind kind, uint64_t offset,
                     absl::string_view bytes) const;

  const std::shared_ptr<ObjectClient> client_;
  const ObjectPath path_;
  const uint64_t bytes_;
  const uint64_t part_bytes_;
  FaultPoints* const faults_;
  std::string upload_;  // empty: a single request
  std::string buffer_;  // the next part
  uint64_t end_ = 0;    // bytes written
  std::deque<Part> travelling_;
  std::vector<std::string> etags_;
  bool over_ = false;  // nothing is left to abort
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_UPLOAD_H_
