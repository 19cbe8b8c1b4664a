// PlanTraining: which worker gets which experts and buddy in a training job.

#include "services/coordinator/membership/session_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/services/coordinator/fake_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

// Failure domains by address, or domains of buddies by domain.
using Domains = std::map<std::string, std::string>;

Domains BuddyDomains(const std::vector<std::string>& domains,
                     int64_t experts = 8) {
  const ScratchDirectory scratch;
  TrainingJob job = MakeFakeJob("demo", scratch);
  job.model.experts = experts;
  job.recovery.buddies = true;
  std::vector<Member> workers;
  Domains domain_of;
  for (const std::string& domain : domains) {
    Member& worker = workers.emplace_back();
    worker.info.id = "w" + std::to_string(workers.size());
    worker.info.role = MemberRole::kExpertWorker;
    worker.info.address = "unix:/" + worker.info.id;
    worker.info.failure_domain = domain;
    domain_of[worker.info.address] = domain;
  }
  const auto plan = PlanTraining("demo/1", job, TrainingStart(), workers, 0, 1);
  EXPECT_OK(plan.status());
  Domains buddies;
  if (!plan.ok()) return buddies;
  for (size_t w = 0; w < plan->workers.size(); ++w) {
    buddies[domain_of.at("unix:/" + plan->workers[w].name)] +=
        domain_of.at(plan->worker_loads[w].worker().buddy_address());
  }
  return buddies;
}

TEST(PlanTrainingTest, ABuddyIsInAnotherDomainIfThereIsOne) {
  EXPECT_EQ(BuddyDomains({"a", "a", "b", "b"}),
            (Domains{{"a", "bb"}, {"b", "aa"}}));
  EXPECT_EQ(BuddyDomains({"a", "a"}), (Domains{{"a", "aa"}}));
}

TEST(PlanTrainingTest, FewExpertsAreOnWorkersInDifferentDomains) {
  EXPECT_EQ(BuddyDomains({"a", "a", "a", "b", "c"}, /*experts=*/3),
            (Domains{{"a", "c"}, {"b", "a"}, {"c", "b"}}));
}

}  // namespace
}  // namespace gshard
