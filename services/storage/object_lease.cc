#include "services/storage/object_lease.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr uint64_t kMaxBytes = 64 << 10;

PutCondition AsRead(const std::optional<LeaseObject>& before) {
  if (!before.has_value()) return {PutCondition::Kind::kAbsent};
  return {PutCondition::Kind::kMatches, before->etag};
}

// Writes `text` under conditions that do not hold. `text` differs from the
// object, else a refusal would look like an earlier success.
absl::Status CheckHeedsConditions(ObjectClient& client, const ObjectPath& path,
                                  const std::string& text,
                                  absl::Duration timeout) {
  for (const PutCondition& condition :
       {PutCondition{PutCondition::Kind::kAbsent},
        PutCondition{PutCondition::Kind::kMatches,
                     "\"00000000000000000000000000000000\""}}) {
    const absl::Status status =
        client.Put(path, text, condition, timeout).status();
    if (absl::IsAlreadyExists(status) || absl::IsAborted(status)) continue;
    RETURN_IF_ERROR(status);
    return absl::FailedPreconditionError(
        absl::StrCat("the store of ", path.Text(),
                     " does not heed If-None-Match and If-Match on writes: "
                     "expected one that does"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<LeaseObject>> ReadObject(ObjectClient& client,
                                                      const ObjectPath& path,
                                                      absl::Duration timeout) {
  // The lease may be renewed, i.e. changed, between the two requests.
  for (int attempt = 0;; ++attempt) {
    const absl::StatusOr<ObjectInfo> info = client.Head(path, timeout);
    if (absl::IsNotFound(info.status())) return std::nullopt;
    RETURN_IF_ERROR(info.status());
    if (info->bytes > kMaxBytes) {
      return absl::DataLossError(absl::StrCat(path.Text(),
                                              ": expected at most ", kMaxBytes,
                                              " bytes, got ", info->bytes));
    }
    LeaseObject lease{.text = std::string(info->bytes, '\0'),
                      .etag = info->etag,
                      .age = info->now - info->modified};
    const absl::Status read =
        client.Get(path, 0, info->etag, absl::MakeSpan(lease.text), timeout);
    if (read.ok()) return lease;
    const bool has_changed =
        absl::IsFailedPrecondition(read) || absl::IsNotFound(read);
    if (!has_changed || attempt == 8) return read;
  }
}

}  // namespace

absl::StatusOr<std::optional<LeaseObject>> ObjectLease::Read(
    const std::string& path) {
  ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(path));
  ASSIGN_OR_RETURN(const auto client, ProcessObjectClient());
  return ReadObject(*client, object, kLeaseTimeout);
}

absl::StatusOr<std::unique_ptr<ObjectLease>> ObjectLease::Take(
    const std::string& path, const std::optional<LeaseObject>& before,
    Text text, absl::Duration renew_every, absl::Duration timeout) {
  ASSIGN_OR_RETURN(ObjectPath object, ParseObjectPath(path));
  ASSIGN_OR_RETURN(auto client, ProcessObjectClient());
  std::unique_ptr<ObjectLease> lease(new ObjectLease(
      std::move(client), std::move(object), std::move(text), timeout));
  const absl::StatusOr<std::string> etag = lease->client_->Put(
      lease->path_, lease->text_(0), AsRead(before), timeout);
  if (absl::IsAlreadyExists(etag.status())) {
    return absl::AbortedError(etag.status().message());
  }
  RETURN_IF_ERROR(etag.status());
  lease->etag_ = *etag;
  // After an error the destructor gives it back.
  RETURN_IF_ERROR(CheckHeedsConditions(*lease->client_, lease->path_,
                                       lease->text_(std::nullopt), timeout));
  lease->thread_ = std::thread(
      [held = lease.get(), renew_every] { held->KeepRenewing(renew_every); });
  return lease;
}

ObjectLease::~ObjectLease() {
  if (thread_.joinable()) {
    {
      MutexLock lock(mutex_);
      over_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
  if (etag_.empty()) return;
  const absl::Status status = Replace(text_(std::nullopt));
  if (!status.ok() && !absl::IsAborted(status)) {
    LogWarning("a lease runs out by itself, as it cannot be given back",
               {{"path", path_.Text()}, {"status", status}});
  }
}

absl::Status ObjectLease::Replace(const std::string& text) {
  unanswered_.push_back(text);
  for (;;) {
    const absl::StatusOr<std::string> etag = client_->Put(
        path_, text, {PutCondition::Kind::kMatches, etag_}, timeout_);
    if (etag.ok()) {
      etag_ = *etag;
      unanswered_.clear();
    }
    if (!absl::IsAborted(etag.status())) return etag.status();
    ASSIGN_OR_RETURN(const bool adopted, AdoptUnanswered());
    if (!adopted) return etag.status();
  }
}

absl::StatusOr<bool> ObjectLease::AdoptUnanswered() {
  ASSIGN_OR_RETURN(const std::optional<LeaseObject> now,
                   ReadObject(*client_, path_, timeout_));
  if (!now.has_value() || now->etag == etag_ ||
      std::find(unanswered_.begin(), unanswered_.end(), now->text) ==
          unanswered_.end()) {
    return false;
  }
  etag_ = now->etag;
  return true;
}

void ObjectLease::KeepRenewing(absl::Duration every) {
  for (int64_t renewals = 1;; ++renewals) {
    {
      MutexLock lock(mutex_);
      const auto until =
          std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(every);
      changed_.WaitUntil(
          lock, until,
          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_; });
      if (over_) return;
    }
    const absl::Status status = Replace(text_(renewals));
    if (status.ok()) continue;
    LogWarning("a lease is not renewed",
               {{"path", path_.Text()}, {"status", status}});
    if (!absl::IsAborted(status)) continue;
    etag_.clear();  // lost
    return;
  }
}

}  // namespace gshard
