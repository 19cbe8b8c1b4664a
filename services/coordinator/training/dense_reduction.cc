#include "services/coordinator/training/dense_reduction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/base/check.h"
#include "services/collectives/rendezvous.h"

namespace gshard {
namespace {

// For a message between routers, including the wait for slower ones.
constexpr absl::Duration kMessageTimeout = absl::Minutes(2);

}  // namespace

absl::string_view ReduceWayName(ReduceWay way) {
  switch (way) {
    case ReduceWay::kCoordinator:
      return "coordinator";
    case ReduceWay::kGloo:
      return "gloo";
    case ReduceWay::kNccl:
      return "nccl";
  }
  return "unknown";
}

absl::StatusOr<ReduceWay> ReduceWayFromName(absl::string_view name) {
  for (const ReduceWay way :
       {ReduceWay::kCoordinator, ReduceWay::kGloo, ReduceWay::kNccl}) {
    if (name == ReduceWayName(way)) return way;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected coordinator, gloo or nccl, got '", name, "'"));
}

DenseReduction::DenseReduction(ReduceWay way, const TrainingJob& job,
                               const TrainingStart& start,
                               std::vector<MemberKey> routers)
    : routers_(std::move(routers)),
      owners_(DivideAmong(ParametersOf(job.model, /*per_expert=*/false),
                          static_cast<int>(routers_.size()))),
      loaded_(routers_.size()) {
  CHECK(way != ReduceWay::kCoordinator && !routers_.empty());
  group_.set_transport(way == ReduceWay::kGloo ? v1::DenseGroup::GLOO
                                               : v1::DenseGroup::NCCL);
  for (size_t r = 0; r < routers_.size(); ++r) {
    v1::DenseOwner* const owner = group_.add_owners();
    owner->set_router(routers_[r].name);
    owner->mutable_tensors()->Add(owners_[r].begin(), owners_[r].end());
  }
  *group_.mutable_source() = SourceOf(job, start);
  group_.set_step(start.step);
  group_.set_skipped_steps(start.skipped_steps);
  group_.set_timeout_ms(absl::ToInt64Milliseconds(kMessageTimeout));
}

std::optional<int> DenseReduction::RankOf(const MemberKey& router) const {
  const auto found = std::find(routers_.begin(), routers_.end(), router);
  if (found == routers_.end()) return std::nullopt;
  return static_cast<int>(found - routers_.begin());
}

v1::DenseGroup DenseReduction::GroupOf(int rank) const {
  v1::DenseGroup group = group_;
  group.set_rank(rank);
  return group;
}

absl::Status DenseReduction::OnLoaded(int rank,
                                      const v1::SessionLoaded& loaded) {
  if (loaded.addresses_size() != static_cast<int>(routers_.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router '", routers_[rank].name, "': expected addresses for ",
        routers_.size(), " routers, got ", loaded.addresses_size()));
  }
  for (const std::string& address : loaded.addresses()) {
    if (address.size() <= kMaxRendezvousAddressBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "router '", routers_[rank].name, "': expected addresses of at most ",
        kMaxRendezvousAddressBytes, " bytes, got ", address.size()));
  }
  loaded_[rank] = loaded;
  return absl::OkStatus();
}

bool DenseReduction::all_loaded() const {
  return std::all_of(loaded_.begin(), loaded_.end(),
                     [](const auto& loaded) { return loaded.has_value(); });
}

MemberCommands DenseReduction::Connect(const std::string& session) const {
  MemberCommands commands;
  for (size_t r = 0; r < routers_.size(); ++r) {
    v1::ConnectRouters* const connect =
        AddCommand(commands, routers_[r]).mutable_connect_routers();
    connect->set_session(session);
    for (const std::optional<v1::SessionLoaded>& loaded : loaded_) {
      connect->add_addresses(loaded->addresses(static_cast<int>(r)));
    }
  }
  return commands;
}

std::vector<ShardHolder> DenseReduction::holders() const {
  std::vector<ShardHolder> holders;
  for (size_t r = 0; r < routers_.size(); ++r) {
    holders.push_back({.member = routers_[r],
                       .role = MemberRole::kRouter,
                       .tensors = owners_[r]});
  }
  return holders;
}

}  // namespace gshard
