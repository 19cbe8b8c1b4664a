// When a ConnectionWatch looks at its connections, and when it gives memory
// back to the system. Times alone, of a clock that the caller reads.
//
// Not thread-safe.

#ifndef SERVICES_RPC_SERVER_LOOK_SCHEDULE_H_
#define SERVICES_RPC_SERVER_LOOK_SCHEDULE_H_

#include <chrono>

namespace gshard {

class LookSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  // What is there to wait for.
  struct Waiting {
    bool active = false;  // connections that something came on
    bool newcomers = false;
    bool calls = false;  // whose time runs
  };

  // When to wake up next; time_point::max(): only if somebody says so.
  Clock::time_point Next(const Waiting& waiting, Clock::time_point now) const;

  // Whether it is time to look at the active connections, to sweep over all, to
  // trim the heap; the time of the next is set then.
  bool TakeLook(Clock::time_point now);
  bool TakeSweep(Clock::time_point now);
  bool TakeTrim(Clock::time_point now);

  // Something came on a connection: sweeps go on for a while.
  void OnNews() { idle_sweeps_ = 0; }
  // Whether much is held: looks follow each other closely then.
  void SetBusy(bool busy) { busy_ = busy; }
  // A connection was shut down: what it held is given back, a few times, for
  // gRPC frees it at its leisure, and malloc would keep it.
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
