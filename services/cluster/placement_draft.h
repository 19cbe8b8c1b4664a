// PlacementDraft: a placement of replicas that is being changed, with what is
// needed to judge changes. Pure.

#ifndef SERVICES_CLUSTER_PLACEMENT_DRAFT_H_
#define SERVICES_CLUSTER_PLACEMENT_DRAFT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "services/cluster/failure_domains.h"
#include "services/cluster/replica_placement.h"

namespace gshard {

// [E] load of each expert; 1 of each if it is not known.
std::vector<double> LoadOf(const ReplicaProblem& problem);

FailureDomains DomainsOf(const ReplicaProblem& problem);

// [E] workers of each expert, ascending.
std::vector<std::vector<int32_t>> HoldersOf(const ReplicaProblem& problem,
                                            const ExpertLists& lists);

// `problem` outlives it. REQUIRES: CheckReplicas(problem, lists) is OK.
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

  // Seconds of work of a second.
  double Busy(int32_t w) const {
    return busy_[w] / problem_.workers[w].rows_per_second;
  }
  double Cost() const;
  // What single changes are judged by: the cost alone does not tell which of
  // several busy workers to relieve first.
  double Roughness() const;

  bool Holds(int32_t w, int32_t expert) const;
  bool HasRoom(int32_t w) const {
    return static_cast<int64_t>(lists_[w].size()) <
           problem_.workers[w].max_experts;
  }
  // How near a replica on worker w is, or would be, to the expert's others, but
  // for the one on `without`; see FailureDomains.
  int64_t Nearness(int32_t w, int32_t expert, int32_t without = -1) const;

  void Add(int32_t w, int32_t expert);
  void Remove(int32_t w, int32_t expert);
  void Move(int32_t from, int32_t to, int32_t expert) {
    Remove(from, expert);
    Add(to, expert);
  }

  // By how much Roughness() falls.
  double GainOfMoving(int32_t from, int32_t to, int32_t expert) const;
  double GainOfAdding(int32_t to, int32_t expert) const;

  // The worker for the expert, instead of the replica on `from`, or as one more
  // if that is -1: as far from the others as can be, and of these the one that
  // would be least busy. Which one of several is left to chance, so that not
  // always the same workers share their experts.
  std::optional<int32_t> BestFor(int32_t expert, int32_t from = -1) const;

 private:
  // Rows of one replica.
  double Share(int32_t expert) const {
    return count(expert) == 0 ? 0.0 : load_[expert] / count(expert);
  }
  // Of what worker w adds to Roughness(), if it has `rows` more.
  double Fall(int32_t w, double rows) const;
  // The number of an expert's replicas has changed, and so the shares of all.
  void Reshare(int32_t expert, double before);

  const ReplicaProblem& problem_;
  const FailureDomains domains_;
  const std::vector<double> load_;
  std::vector<std::vector<int32_t>> holders_;  // [E], ascending
  ExpertLists lists_;
  std::vector<double> busy_;  // [W] rows
};

// Takes one replica further from the expert's others, in failure domains, to
// wherever there is room for it, or can be: where all better workers are full,
// others' replicas move on, none nearer to its own. False if none can be.
bool Separate(PlacementDraft& draft);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_DRAFT_H_
