// ObjectLease: a lease held by one process, in a store without locks. The
// object names the holder: whoever creates it, or replaces the object of a
// holder that has not renewed it for a while, holds the lease. Every write is
// conditional on the object that was read, so of two rivals one succeeds.
//
// The age of a renewal is measured by the store's clock alone. A holder that is
// paused or cut off for longer than kLeaseLasts may lose the lease, and learns
// that from Read(): by then the object is another's.

#ifndef SERVICES_STORAGE_OBJECT_LEASE_H_
#define SERVICES_STORAGE_OBJECT_LEASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/storage/object_client.h"
#include "services/storage/object_path.h"

namespace gshard {

inline constexpr absl::Duration kLeaseLasts = absl::Seconds(30);
// Lets two attempts fail.
inline constexpr absl::Duration kRenewEvery = absl::Seconds(10);
// Of one request: a connection that hangs is given up, and the request sent
// again by another, well before the lease is over.
inline constexpr absl::Duration kLeaseTimeout = absl::Seconds(5);

// The content of the object, and its age.
struct LeaseObject {
  std::string text;
  std::string etag;
  absl::Duration age;
};

class ObjectLease {
 public:
  // The object's text after `renewals` renewals or, given nothing, after the
  // lease was released. All texts are distinct, also from those of other
  // holders.
  using Text = std::function<std::string(std::optional<int64_t> renewals)>;

  // Reads the object at `path`; nothing if there is none. Errors: those of
  // storage.h.
  static absl::StatusOr<std::optional<LeaseObject>> Read(
      const std::string& path);

  // Takes the lease from `before`, as read, whether or not that has expired,
  // and renews it from now on. Errors: Aborted if the object has changed;
  // FailedPrecondition if the store does not support conditional requests, so
  // that nothing would exclude rivals. After an error it is given back, as far
  // as the store answers.
  static absl::StatusOr<std::unique_ptr<ObjectLease>> Take(
      const std::string& path, const std::optional<LeaseObject>& before,
      Text text, absl::Duration renew_every = kRenewEvery,
      absl::Duration timeout = kLeaseTimeout);
  // Releases the lease, unless it is lost.
  ~ObjectLease();

 private:
  ObjectLease(std::shared_ptr<ObjectClient> client, ObjectPath path, Text text,
              absl::Duration timeout)
      : client_(std::move(client)),
        path_(std::move(path)),
        text_(std::move(text)),
        timeout_(timeout) {}

  // Errors: Aborted if it is lost.
  absl::Status Replace(const std::string& text);
  // Whether the object is one that this holder wrote without learning so; takes
  // its tag then. Errors: those of Read().
  absl::StatusOr<bool> AdoptUnanswered();
  void KeepRenewing(absl::Duration every);

  const std::shared_ptr<ObjectClient> client_;
  const ObjectPath path_;
  const Text text_;
  const absl::Duration timeout_;
  // Owned by the renewing thread, if any.
  std::string etag_;                     // empty: not held
  std::vector<std::string> unanswered_;  // texts sent since `etag_` was got
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_LEASE_H_
