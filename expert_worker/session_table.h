// SessionTable: the sessions of a worker by id, and the memory they share.

#ifndef EXPERT_WORKER_SESSION_TABLE_H_
#define EXPERT_WORKER_SESSION_TABLE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "expert_worker/worker_session.h"
#include "services/base/memory_account.h"
#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class SessionTable {
  struct Entry;

 public:
  // A session in use: unloading it waits for its leases.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = default;

    WorkerSession& session() const { return *entry_->session; }
    // The session was aborted: do not start further work.
    bool aborted() const { return entry_->aborted; }

   private:
    friend class SessionTable;
    explicit Lease(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
    std::shared_ptr<Entry> entry_;
    std::shared_ptr<void> release_;
  };

  // All sessions and their running calls together use at most `memory_bytes`.
  // They run on `device`, or on the CPU if null.
  explicit SessionTable(int64_t memory_bytes,
                        std::shared_ptr<Device> device = nullptr)
      : device_(std::move(device)), memory_(memory_bytes) {}

  // Creates a session; slow, one at a time. Returns its size in bytes. Sets
  // spec.source.stop. Errors: AlreadyExists; Cancelled by Abort(), or if `stop`
  // was requested before; those of WorkerSession::Create.
  absl::StatusOr<int64_t> Load(const std::string& id, WorkerSessionSpec spec,
                               std::stop_source stop = std::stop_source());

  // Errors: NotFound.
  absl::StatusOr<Lease> Find(const std::string& id);

  // Removes a session, if present; returns when nobody uses it.
  void Unload(const std::string& id);

  // Ends the loading of a session, or sets aborted() for all present and future
  // users of a training session. Calls of serving sessions are short.
  void Abort(const std::string& id);

  // Aborts and unloads all training sessions.
  void DropTraining();

  // Waits at most `time` until no session trains; returns whether that is so.
  bool AwaitNoTraining(std::chrono::milliseconds time);

  // Calls `visit` for each session.
  void ForEach(const std::function<void(const std::string& id,
                                        WorkerSession& session)>& visit);

  int64_t size() const;
  int64_t memory_bytes_used() const { return memory_.used(); }
  // Device::status; OK for the CPU.
  absl::Status device_status() const {
    return device_ == nullptr ? absl::OkStatus() : device_->status();
  }

 private:
  struct Entry {
    std::unique_ptr<WorkerSession> session;
    std::atomic<bool> aborted = false;
    int leases ABSL_GUARDED_BY(&SessionTable::mutex_) = 0;
  };

  // Waits until no other session is loaded. Errors: Cancelled.
  absl::Status BeginLoad(const std::stop_token& stop);
  Lease MakeLease(std::shared_ptr<Entry> entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Device> device_;  // outlives the sessions
  MemoryAccount memory_;
  mutable Mutex mutex_;
  CondVar released_;
  // Sessions to be loaded, one at a time.
  std::map<std::string, std::stop_source> loading_ ABSL_GUARDED_BY(mutex_);
  bool load_runs_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar load_may_run_;
  std::map<std::string, std::shared_ptr<Entry>> sessions_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // EXPERT_WORKER_SESSION_TABLE_H_
