#include "services/rpc/process/command_lanes.h"

#include <utility>

namespace gshard {

CommandLanes::~CommandLanes() { WaitUntilIdle(); }

void CommandLanes::Add(const Lane& lane, LaneTask task) {
  std::vector<std::thread> finished;
  {
    MutexLock lock(mutex_);
    finished.swap(finished_);
    const auto [added, is_new] = lanes_.try_emplace(lane);
    added->second.push_back(std::move(task));
    if (is_new) {
      threads_[lane] = std::thread([this, lane] { RunLane(lane); });
    }
  }
  for (std::thread& thread : finished) thread.join();
}

void CommandLanes::RunLane(const Lane& lane) {
  MutexLock lock(mutex_);
  std::deque<LaneTask>& tasks = lanes_.at(lane);
  while (!tasks.empty()) {
    LaneTask task = std::move(tasks.front());
    tasks.pop_front();
    lock.Unlock();
    task.run();
    task = {};
    lock.Lock();
  }
  lanes_.erase(lane);
  const auto thread = threads_.find(lane);
  finished_.push_back(std::move(thread->second));
  threads_.erase(thread);
  if (lanes_.empty()) idle_.NotifyAll();
}

void CommandLanes::Drop(const std::string& session) {
  std::vector<LaneTask> dropped;
  {
    MutexLock lock(mutex_);
    for (auto& [lane, tasks] : lanes_) {
      if (lane.session != session) continue;
      for (LaneTask& task : tasks) dropped.push_back(std::move(task));
      tasks.clear();
    }
  }
  for (LaneTask& task : dropped) {
    if (task.dropped) task.dropped();
  }
}

std::set<std::string> CommandLanes::DropAll() {
  std::set<std::string> sessions;
  {
    MutexLock lock(mutex_);
    for (const auto& [lane, tasks] : lanes_) sessions.insert(lane.session);
  }
  for (const std::string& session : sessions) Drop(session);
  return sessions;
}

void CommandLanes::WaitUntilIdle() {
  std::vector<std::thread> finished;
  {
    MutexLock lock(mutex_);
    idle_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return lanes_.empty();
    });
    finished.swap(finished_);
  }
  for (std::thread& thread : finished) thread.join();
}

}  // namespace gshard
