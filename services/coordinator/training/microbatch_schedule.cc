#include "services/coordinator/training/microbatch_schedule.h"

#include <algorithm>

#include "services/base/check.h"

namespace gshard {
namespace {

// Two assigned per router, and as many early ones.
constexpr int64_t kWindowOfRouter = 4;

}  // namespace

void MicrobatchSchedule::SetRouters(const std::vector<MemberKey>& routers) {
  const std::set<MemberKey> there(routers.begin(), routers.end());
  std::erase_if(routers_, [&](const auto& router) {
    if (there.count(router.first) > 0) return false;
    for (const int32_t index : router.second) {
      Microbatch& microbatch = microbatches_[index];
      microbatch.assigned = false;
      ++microbatch.attempt;
      waiting_.insert(index);
    }
    return true;
  });
  for (const MemberKey& router : there) routers_.try_emplace(router);
}

std::vector<Assignment> MicrobatchSchedule::Assign() {
  std::vector<Assignment> assignments;
  const int64_t window =
      std::min(int64_t{window_},
               kWindowOfRouter * static_cast<int64_t>(routers_.size()));
  while (!waiting_.empty() && !routers_.empty()) {
    auto least = routers_.begin();
    for (auto it = routers_.begin(); it != routers_.end(); ++it) {
      if (it->second.size() < least->second.size()) least = it;
    }
    const size_t most = waiting_.size() > routers_.size() ? 2 : 1;
    if (least->second.size() >= most) break;
    const int32_t index = *waiting_.begin();
    if (index - oldest_ >= window) break;
    waiting_.erase(waiting_.begin());
    least->second.insert(index);
    Microbatch& microbatch = microbatches_[index];
    microbatch.assigned = true;
    microbatch.router = least->first;
    assignments.push_back({least->first, index, microbatch.attempt});
  }
  return assignments;
}

bool MicrobatchSchedule::IsCurrent(const Assignment& assignment) const {
  if (assignment.microbatch < 0 ||
      assignment.microbatch >= static_cast<int32_t>(microbatches_.size())) {
    return false;
  }
  const Microbatch& microbatch = microbatches_[assignment.microbatch];
  return microbatch.assigned && !microbatch.finished &&
         microbatch.attempt == assignment.attempt &&
         microbatch.router == assignment.router;
}

void MicrobatchSchedule::Finish(const Assignment& assignment) {
  CHECK(IsCurrent(assignment));
  microbatches_[assignment.microbatch].finished = true;
  ++finished_;
  const auto count = static_cast<int32_t>(microbatches_.size());
  while (oldest_ < count && microbatches_[oldest_].finished) ++oldest_;
  routers_[assignment.router].erase(assignment.microbatch);
}

int32_t MicrobatchSchedule::Failed(const Assignment& assignment) {
  Preempted(assignment);
  return ++microbatches_[assignment.microbatch].failures;
}

void MicrobatchSchedule::Preempted(const Assignment& assignment) {
  CHECK(IsCurrent(assignment));
  Microbatch& microbatch = microbatches_[assignment.microbatch];
  microbatch.assigned = false;
  routers_[assignment.router].erase(assignment.microbatch);
  ++microbatch.attempt;
}

void MicrobatchSchedule::Release(int32_t microbatch) {
  waiting_.insert(microbatch);
}

std::vector<int32_t> MicrobatchSchedule::attempts() const {
  std::vector<int32_t> attempts;
  for (const Microbatch& microbatch : microbatches_) {
    attempts.push_back(microbatch.attempt);
  }
  return attempts;
}

}  // namespace gshard
