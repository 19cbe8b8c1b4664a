#include "tests/services/collectives/local_world.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/collectives/exchange_check.h"
#include "tests/services/collectives/local_group.h"

namespace gshard {

// Thread-safe.
class LocalDevices {
 public:
  explicit LocalDevices(int size) : size_(size), left_(size, false) {}

  int size() const { return size_; }

  absl::StatusOr<std::shared_ptr<LocalGroup>> Group(
      const std::vector<int>& ranks) {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(aborted_);
    std::shared_ptr<LocalGroup>& group = groups_[ranks];
    if (group == nullptr) {
      group = std::make_shared<LocalGroup>(static_cast<int>(ranks.size()));
      for (const int rank : ranks) {
        if (left_[rank]) group->Break(LeftError(rank));
      }
    }
    return group;
  }

  void Abort(const absl::Status& why) {
    MutexLock lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = absl::CancelledError(absl::StrCat("aborted: ", why.ToString()));
    for (auto& [ranks, group] : groups_) group->Break(aborted_);
  }

  void Leave(int rank) {
    MutexLock lock(mutex_);
    left_[rank] = true;
    for (auto& [ranks, group] : groups_) {
      for (const int member : ranks) {
        if (member == rank) group->Break(LeftError(rank));
      }
    }
  }

 private:
  static absl::Status LeftError(int rank) {
    return absl::UnavailableError(absl::StrCat("device ", rank, " is gone"));
  }

  const int size_;
  Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> left_ ABSL_GUARDED_BY(mutex_);
  std::map<std::vector<int>, std::shared_ptr<LocalGroup>> groups_
      ABSL_GUARDED_BY(mutex_);
};

namespace {

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    RETURN_IF_ERROR(CheckExchange(rank_, size(), send, receive));
    return group_->Exchange(rank_, send, receive);
  }

 private:
  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
};

}  // namespace

LocalWorld::LocalWorld(std::shared_ptr<LocalDevices> devices, int rank)
    : devices_(std::move(devices)), rank_(rank) {}

LocalWorld::~LocalWorld() { Leave(); }

void LocalWorld::Leave() { devices_->Leave(rank_); }

int LocalWorld::size() const { return devices_->size(); }

absl::StatusOr<Communicator*> LocalWorld::Group(absl::Span<const int> ranks) {
  std::vector<int> key(ranks.begin(), ranks.end());
  if (const auto found = groups_.find(key); found != groups_.end()) {
    return found->second.get();
  }
  ASSIGN_OR_RETURN(const int position, RankInGroup(rank_, size(), ranks));
  ASSIGN_OR_RETURN(std::shared_ptr<LocalGroup> group, devices_->Group(key));
  std::unique_ptr<Communicator>& communicator = groups_[std::move(key)];
  communicator =
      std::make_unique<LocalCommunicator>(std::move(group), position);
  return communicator.get();
}

void LocalWorld::Abort(const absl::Status& why) { devices_->Abort(why); }

std::vector<std::unique_ptr<LocalWorld>> LocalWorlds(int size) {
  CHECK(size > 0);
  const auto devices = std::make_shared<LocalDevices>(size);
  std::vector<std::unique_ptr<LocalWorld>> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(std::make_unique<LocalWorld>(devices, rank));
  }
  return worlds;
}

absl::Status RunOnDevices(int size,
                          const std::function<absl::Status(World&)>& device) {
  std::vector<std::unique_ptr<LocalWorld>> worlds = LocalWorlds(size);
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = device(*worlds[rank]);
      // Abort first, so that the others' errors are recognized as consequences.
      if (!statuses[rank].ok()) worlds[rank]->Abort(statuses[rank]);
      worlds[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();

  absl::Status first;
  for (int rank = 0; rank < size; ++rank) {
    if (statuses[rank].ok()) continue;
    if (first.ok() ||
        (absl::IsCancelled(first) && !absl::IsCancelled(statuses[rank]))) {
      first = Annotate(statuses[rank], absl::StrCat("device ", rank));
    }
  }
  return first;
}

}  // namespace gshard
