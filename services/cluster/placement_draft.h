// PlacementDraft: a replica placement under construction, with the state to
// evaluate changes. Pure functions.

#ifndef SERVICES_CLUSTER_PLACEMENT_DRAFT_H_
#define SERVICES_CLUSTER_PLACEMENT_DRAFT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/cluster/failure_domains.h"
#include "services/cluster/replica_placement.h"

namespace gshard {

// [E] load of each expert; 1 each if unknown.
std::vector<double> LoadOf(const ReplicaProblem& problem);

FailureDomains DomainsOf(const ReplicaProblem& problem);

// [E] workers of each expert, ascending.
std::vector<std::vector<int32_t>> HoldersOf(const ReplicaProblem& problem,
                                            const ExpertLists& lists);

// `problem` outlives it. REQUIRES: as RepairReplicas.
class PlacementDraft {
 public:
  PlacementDraft(const ReplicaProblem& problem, ExpertLists lists);

  const ExpertLists& lists() const { return lists_; }
  const std::vector<int32_t>& holders(int32_t expert) const {
    return holders_[expert];
  }
  int32_t count(int32_t expert) const {
    return static_cast<int32_t>(holders_[expert].size());
  }
  int32_t experts() const { return static_cast<int32_t>(holders_.size()); }
  double load(int32_t expert) const { return load_[expert]; }

  // Seconds of work per second.
  double Busy(int32_t w) const {
    return busy_[w] / problem_.workers[w].rows_per_second;
  }
  double Cost() const;
  // The objective for single changes: the cost alone does not tell which of
  // several busy workers to relieve first.
  double Roughness() const;

  bool Holds(int32_t w, int32_t expert) const;
  bool HasRoom(int32_t w) const {
    return static_cast<int64_t>(lists_[w].size()) <
           problem_.workers[w].max_experts;
  }
  // How near a replica on worker w is, or would be, to the expert's others,
  // ignoring the one on `without`; see FailureDomains.
  int64_t Nearness(int32_t w, int32_t expert, int32_t without = -1) const;

  void Add(int32_t w, int32_t expert);
  void Remove(int32_t w, int32_t expert);
  void Move(int32_t from, int32_t to, int32_t expert) {
    Remove(from, expert);
    Add(to, expert);
  }

  // The decrease of Roughness().
  double GainOfMoving(int32_t from, int32_t to, int32_t expert) const;
  double GainOfAdding(int32_t to, int32_t expert) const;

  // The best worker for the expert, instead of the replica on `from`, or as an
  // additional one if that is -1: as far from the others as possible, and of
  // these the least busy. Ties are broken pseudo-randomly, so that it is not
  // always the same workers that share experts.
  std::optional<int32_t> BestFor(int32_t expert, int32_t from = -1) const;

 private:
  // Rows per replica.
  double Share(int32_t expert) const {
    return count(expert) == 0 ? 0.0 : load_[expert] / count(expert);
  }
  // The decrease of worker w's part of Roughness() if it gets `rows` more.
  double Fall(int32_t w, double rows) const;
  // Updates shares after the number of an expert's replicas has changed.
  void Reshare(int32_t expert, double before);

  const ReplicaProblem& problem_;
  const FailureDomains domains_;
  const std::vector<double> load_;
  std::vector<std::vector<int32_t>> holders_;  // [E], ascending
  ExpertLists lists_;
  std::vector<double> busy_;  // [W] rows
};

// Moves one replica further from the expert's others, in failure domains, to a
// worker with room, or where room can be made: if all better workers are full,
// replicas of other experts move on, none nearer to its own. False if
// impossible.
bool Separate(PlacementDraft& draft);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_DRAFT_H_
