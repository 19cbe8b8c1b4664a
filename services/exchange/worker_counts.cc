#include "services/exchange/worker_counts.h"

#include <utility>

namespace gshard {

WorkerCounts::WorkerCounts(Metrics& metrics, std::chrono::seconds memory)
    : memory_(memory),
      retries_(metrics.AddCounterFamily(
          "gshard_expert_call_retries_total",
          "Calls made again on another replica since the worker failed.",
          {"worker"})),
      hedges_(metrics.AddCounterFamily(
          "gshard_expert_call_hedges_total",
          "Calls made twice since the worker kept them waiting.", {"worker"})),
      ejections_(metrics.AddCounterFamily(
          "gshard_worker_ejections_total",
          "Times that the worker was avoided, until it answered a ping or, if "
          "it answers nothing else, for a while.",
          {"worker"})) {}

std::shared_ptr<void> WorkerCounts::Show(std::set<std::string> workers) {
  MutexLock lock(mutex_);
  for (const std::string& worker : workers) ++workers_[worker].users;
  const Clock::time_point now = Clock::now();
  std::erase_if(workers_, [&](const auto& entry) {
    const auto& [name, worker] = entry;
    if (worker.users > 0 || now - worker.gone < memory_) return false;
    for (const auto* const family : {&retries_, &hedges_, &ejections_}) {
      family->Remove({name});
    }
    return true;
  });
  for (const std::string& worker : workers) {
    for (const auto* const family : {&retries_, &hedges_, &ejections_}) {
      family->With({worker});
    }
  }
  return {nullptr, [counts = shared_from_this(), workers = std::move(workers)](
                       void*) { counts->Hide(workers); }};
}

void WorkerCounts::Hide(const std::set<std::string>& workers) {
  MutexLock lock(mutex_);
  for (const std::string& worker : workers) {
    Worker& hidden = workers_[worker];
    if (--hidden.users == 0) hidden.gone = Clock::now();
  }
}

void WorkerCounts::Count(const CounterFamily& family,
                         const std::string& worker) {
  MutexLock lock(mutex_);
  if (workers_.contains(worker)) family.With({worker}).Increment();
}

}  // namespace gshard
