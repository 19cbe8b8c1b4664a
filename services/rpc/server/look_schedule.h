// The times at which a ConnectionWatch looks at its connections and returns
// memory to the system. Reads no clock itself.
//
// Not thread-safe.

#ifndef SERVICES_RPC_SERVER_LOOK_SCHEDULE_H_
#define SERVICES_RPC_SERVER_LOOK_SCHEDULE_H_

#include <chrono>

namespace gshard {

class LookSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  // What the watch is waiting for.
  struct Waiting {
    bool active = false;  // some connections have recently received data
    bool newcomers = false;
    bool calls = false;  // some calls are open
  };

  // When to wake up next; time_point::max() to wait for events without a
  // timeout.
  Clock::time_point Next(const Waiting& waiting, Clock::time_point now) const;

  // Whether it is time to look at the active connections, to sweep over all, or
  // to trim the heap. If so, schedules the next time.
  bool TakeLook(Clock::time_point now);
  bool TakeSweep(Clock::time_point now);
  bool TakeTrim(Clock::time_point now);

  // Data arrived on a connection: sweeps continue for a while.
  void OnNews() { idle_sweeps_ = 0; }
  // If many bytes are held, looks are more frequent.
  void SetBusy(bool busy) { busy_ = busy; }
  // A connection was shut down. The heap is then trimmed a few times, since
  // gRPC frees the connection's memory gradually, and malloc would keep it.
  void OnShutdown(Clock::time_point now);

 private:
  bool busy_ = false;
  Clock::time_point next_look_ = {};
  Clock::time_point next_sweep_ = {};
  int idle_sweeps_ = 0;
  Clock::time_point next_trim_ = Clock::time_point::max();
  Clock::time_point last_shutdown_ = {};
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_LOOK_SCHEDULE_H_
