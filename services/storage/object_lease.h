// ObjectLease: an object that one process holds, in a store that has no locks.
// The object says who: whoever creates it, or replaces that of a holder who has
// not renewed it for a while, holds it. Every write is conditional on the
// object that was read, so of two who try, one does.
//
// How long ago it was renewed is told by the clock of the store alone. A
// holder that is paused or cut off for longer than kLeaseLasts may lose it, and
// is told so by Read(): by then the object is another's.

#ifndef SERVICES_STORAGE_OBJECT_LEASE_H_
#define SERVICES_STORAGE_OBJECT_LEASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/storage/object_client.h"
#include "services/storage/object_path.h"

namespace gshard {

inline constexpr absl::Duration kLeaseLasts = absl::Seconds(30);
// So that two attempts may fail.
inline constexpr absl::Duration kRenewEvery = absl::Seconds(10);

// What the object is, and how long ago it was written.
struct LeaseObject {
  std::string text;
  std::string etag;
  absl::Duration age;
};

class ObjectLease {
 public:
  // The text of the object after `renewals` renewals, or, with nothing, when
  // the lease was given back. No two are equal, also those of other holders.
  using Text = std::function<std::string(std::optional<int64_t> renewals)>;

  // The object at `path`; nothing if there is none. Errors: those of storage.h.
  static absl::StatusOr<std::optional<LeaseObject>> Read(
      const std::string& path);

  // Takes the lease from `before`, as read, whether or not that has run out,
  // and renews it from now on. Errors: Aborted if the object is another by
  // now; FailedPrecondition if the store does not heed conditions, so that
  // nothing would keep rivals out.
  static absl::StatusOr<std::unique_ptr<ObjectLease>> Take(
      const std::string& path, const std::optional<LeaseObject>& before,
      Text text, absl::Duration renew_every = kRenewEvery);
  // Gives it back, unless it is lost.
  ~ObjectLease();

 private:
  ObjectLease(std::shared_ptr<ObjectClient> client, ObjectPath path, Text text)
      : client_(std::move(client)),
        path_(std::move(path)),
        text_(std::move(text)) {}

  // Errors: Aborted if it is lost.
  absl::Status Replace(const std::string& text);
  void KeepRenewing(absl::Duration every);

  const std::shared_ptr<ObjectClient> client_;
  const ObjectPath path_;
  const Text text_;
  std::string etag_;  // of the renewing thread, while there is one
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_LEASE_H_
