// CommandLanes: runs tasks in lanes. Tasks of one lane run sequentially, in
// order. Lanes run concurrently, each on its own thread, which exists while the
// lane has tasks. A session may have any number of lanes.

#ifndef SERVICES_RPC_PROCESS_COMMAND_LANES_H_
#define SERVICES_RPC_PROCESS_COMMAND_LANES_H_

#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "services/base/mutex.h"

namespace gshard {

struct Lane {
  std::string session;
  int number = 0;

  auto operator<=>(const Lane&) const = default;
};

struct LaneTask {
  std::function<void()> run;
  // Called instead of run() if the task is dropped before it runs.
  std::function<void()> dropped;
};

// Thread-safe.
class CommandLanes {
 public:
  CommandLanes() = default;
  // REQUIRES: idle.
  ~CommandLanes();

  CommandLanes(const CommandLanes&) = delete;
  CommandLanes& operator=(const CommandLanes&) = delete;

  void Add(const Lane& lane, LaneTask task);

  // Drops the session's tasks that have not begun.
  void Drop(const std::string& session);
  // Drops those of all sessions; returns the sessions of which a task is
  // running.
  std::set<std::string> DropAll();

  // Returns when no lane has tasks. Must not be called from a task.
  void WaitUntilIdle();

 private:
  void RunLane(const Lane& lane);

  Mutex mutex_;
  CondVar idle_;
  // Waiting tasks; a lane has an entry while its thread runs.
  std::map<Lane, std::deque<LaneTask>> lanes_ ABSL_GUARDED_BY(mutex_);
  // The threads of the lanes, and those that have nothing more to do.
  std::map<Lane, std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_COMMAND_LANES_H_
