#include "services/rpc/command_lanes.h"

#include <utility>

namespace gshard {

CommandLanes::~CommandLanes() { WaitUntilIdle(); }

void CommandLanes::Add(const std::string& lane, LaneTask task) {
  std::vector<std::thread> finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished.swap(finished_);
    const auto [added, is_new] = lanes_.try_emplace(lane);
    added->second.push_back(std::move(task));
    if (is_new) {
      threads_[lane] = std::thread([this, lane] { RunLane(lane); });
    }
  }
  for (std::thread& thread : finished) thread.join();
}

void CommandLanes::RunLane(const std::string& name) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<LaneTask>& tasks = lanes_.at(name);
  while (!tasks.empty()) {
    LaneTask task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task.run();
    task = {};
    lock.lock();
  }
  lanes_.erase(name);
  const auto thread = threads_.find(name);
  finished_.push_back(std::move(thread->second));
  threads_.erase(thread);
  if (lanes_.empty()) idle_.notify_all();
}

void CommandLanes::Drop(const std::string& lane) {
  std::deque<LaneTask> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = lanes_.find(lane);
    if (found == lanes_.end()) return;
    dropped.swap(found->second);
  }
  for (LaneTask& task : dropped) {
    if (task.dropped) task.dropped();
  }
}

std::vector<std::string> CommandLanes::DropAll() {
  std::vector<std::string> lanes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, tasks] : lanes_) lanes.push_back(name);
  }
  for (const std::string& lane : lanes) Drop(lane);
  return lanes;
}

void CommandLanes::WaitUntilIdle() {
  std::vector<std::thread> finished;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return lanes_.empty(); });
    finished.swap(finished_);
  }
  for (std::thread& thread : finished) thread.join();
}

}  // namespace gshard
