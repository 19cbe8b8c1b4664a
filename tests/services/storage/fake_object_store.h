// FakeObjectStore: an S3 store in this process, on loopback. It checks the
// signature of every request, heeds conditions, and fails as told. Its clock
// moves only by Advance().

#ifndef TESTS_SERVICES_STORAGE_FAKE_OBJECT_STORE_H_
#define TESTS_SERVICES_STORAGE_FAKE_OBJECT_STORE_H_

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/storage/object_client.h"
#include "tests/services/http/fake_http_server.h"

namespace gshard {

class FakeObjectStore {
 public:
  enum class Fault {
    kNone,
    kReset,      // resets the connection before acting
    kLost,       // acts, then resets the connection
    kTruncate,   // sends half of the answer's body
    kSlowDown,   // 503
    kInternal,   // 500
    kRefused,    // 403
    kLateError,  // 200, with an error in the body
    kMadeUp,     // sends what SetMadeUp() was given
  };
  // "PUT bucket/key?query".
  using OnRequest = std::function<Fault(const std::string& request)>;

  FakeObjectStore();

  // The options of a client of this store, which retries at once.
  ObjectStoreOptions options() const;
  // Makes the process's client use this store, with its credentials.
  void Use() const;

  void SetOnRequest(OnRequest on_request);
  void IgnoreConditions() { heeds_conditions_ = false; }
  void Advance(absl::Duration time);

  std::vector<std::string> Requests() const;
  // "bucket/key" of all objects.
  std::vector<std::string> Keys() const;
  std::string Bytes(const std::string& key) const;
  void Set(const std::string& key, const std::string& bytes);
  size_t OpenUploads() const;
  // The answer to a POST to "/", which requests a role's credentials.
  void SetRoleAnswer(std::string xml) { role_answer_ = std::move(xml); }

  // A complete answer, from "HTTP/1.1" on.
  void SetMadeUp(std::string answer) { made_up_ = std::move(answer); }

  static constexpr char kKeyId[] = "AKIDEXAMPLE";
  static constexpr char kSecret[] = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

 private:
  struct Object {
    std::string bytes, etag;
    absl::Time modified;
  };
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
  };
  struct Request;

  FakeHttpAnswer Serve(const Request& request);
  FakeHttpAnswer Handle(const Request& request);
  FakeHttpAnswer HandleUpload(const Request& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeHttpAnswer List(const Request& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Store(const std::string& key, std::string bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<bool> heeds_conditions_{true};
  std::string role_answer_, made_up_;
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  OnRequest on_request_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mutex_);
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeHttpServer server_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_STORAGE_FAKE_OBJECT_STORE_H_
