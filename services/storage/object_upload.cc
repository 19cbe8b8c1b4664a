#include "services/storage/object_upload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr uint64_t kPartBytes = 16 << 20;
constexpr uint64_t kMaxParts = 10'000;  // limit of S3
constexpr size_t kMaxTravelling = 3;    // besides the one being filled

}  // namespace

uint64_t UploadPartBytes(uint64_t bytes, uint64_t smallest) {
  return std::max(smallest, (bytes + kMaxParts - 1) / kMaxParts);
}

ObjectUpload::ObjectUpload(std::shared_ptr<ObjectClient> client,
                           ObjectPath path, uint64_t bytes, FaultPoints* faults)
    : client_(std::move(client)),
      path_(std::move(path)),
      bytes_(bytes),
      part_bytes_(UploadPartBytes(bytes, kPartBytes)),
      faults_(faults) {}

absl::StatusOr<std::unique_ptr<ObjectUpload>> ObjectUpload::Begin(
    std::shared_ptr<ObjectClient> client, ObjectPath path, uint64_t bytes,
    FaultPoints* faults) {
  std::unique_ptr<ObjectUpload> upload(
      new ObjectUpload(std::move(client), std::move(path), bytes, faults));
  upload->buffer_.reserve(std::min(bytes, upload->part_bytes_));
  if (bytes <= upload->part_bytes_) {
    upload->over_ = true;
    return upload;
  }
  RETURN_IF_ERROR(upload->Reach(DiskChange::Kind::kWrite, 0, ""));
  ASSIGN_OR_RETURN(upload->upload_,
                   upload->client_->BeginUpload(upload->path_));
  return upload;
}

ObjectUpload::~ObjectUpload() {
  if (over_ || upload_.empty()) return;
  for (Part& part : travelling_) part.etag.wait();
  absl::Status status = Reach(DiskChange::Kind::kRemove, 0, "");
  if (status.ok()) status = client_->AbortUpload(path_, upload_);
  if (!status.ok()) {
    LogWarning("parts of an object that was given up stay in its store",
               {{"path", path_.Text()}, {"status", status}});
  }
}

absl::Status ObjectUpload::Reach(DiskChange::Kind kind, uint64_t offset,
                                 absl::string_view bytes) const {
  if (faults_ == nullptr) return absl::OkStatus();
  return faults_->Reach({kind, path_.Text(), "", offset, bytes});
}

absl::Status ObjectUpload::WriteAt(uint64_t offset, absl::string_view bytes) {
  if (offset != end_ || bytes.size() > bytes_ - end_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "write ", path_.Text(), ": expected the ", bytes_ - end_,
        " bytes from ", end_, " on, got ", bytes.size(), " at ", offset));
  }
  end_ += bytes.size();
  while (!bytes.empty()) {
    const size_t room = part_bytes_ - buffer_.size();
    buffer_.append(bytes.substr(0, room).data(),
                   std::min<size_t>(room, bytes.size()));
    bytes.remove_prefix(std::min<size_t>(room, bytes.size()));
    if (!upload_.empty() && buffer_.size() == part_bytes_) {
      RETURN_IF_ERROR(SendPart());
    }
  }
  return absl::OkStatus();
}

absl::Status ObjectUpload::SendPart() {
  if (travelling_.size() == kMaxTravelling) RETURN_IF_ERROR(AwaitPart());
  const auto number = static_cast<int>(etags_.size() + travelling_.size()) + 1;
  RETURN_IF_ERROR(Reach(DiskChange::Kind::kWrite,
                        static_cast<uint64_t>(number - 1) * part_bytes_,
                        buffer_));
  Part& part = travelling_.emplace_back();
  part.bytes = std::exchange(buffer_, "");
  // Deferred to AwaitPart() if no thread can be started.
  part.etag = std::async(
      std::launch::async | std::launch::deferred, [this, number, &part] {
        return client_->PutPart(path_, upload_, number, part.bytes);
      });
  buffer_.reserve(std::min(bytes_ - end_, part_bytes_));
  return absl::OkStatus();
}

absl::Status ObjectUpload::AwaitPart() {
  const absl::StatusOr<std::string> etag = travelling_.front().etag.get();
  travelling_.pop_front();
  RETURN_IF_ERROR(etag.status());
  etags_.push_back(*etag);
  return absl::OkStatus();
}

absl::Status ObjectUpload::Finish() {
  if (end_ != bytes_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "write ", path_.Text(), ": expected ", bytes_, " bytes, got ", end_));
  }
  if (upload_.empty()) {
    RETURN_IF_ERROR(Reach(DiskChange::Kind::kCreate, 0, buffer_));
    return client_->Put(path_, buffer_).status();
  }
  if (!buffer_.empty()) RETURN_IF_ERROR(SendPart());
  while (!travelling_.empty()) RETURN_IF_ERROR(AwaitPart());
  RETURN_IF_ERROR(Reach(DiskChange::Kind::kCreate, 0, ""));
  RETURN_IF_ERROR(client_->CompleteUpload(path_, upload_, etags_, bytes_));
  over_ = true;
  return absl::OkStatus();
}

}  // namespace gshard
