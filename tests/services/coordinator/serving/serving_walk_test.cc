// After any events in any order, no router calls a released session or a worker
// that was let go, no router lacks a version of a served model, and the system
// settles as wanted, without the workers that asked to leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/random.h"
#include "tests/services/coordinator/serving_world.h"

namespace gshard {
namespace {

using ::testing::IsEmpty;

class Walk {
 public:
  explicit Walk(uint64_t seed) : seed_(seed) {
    for (const char* router : {"r0", "r1"}) world_.AddRouter(router);
    for (const char* worker : {"w0", "w1", "w2"}) world_.AddWorker(worker);
    world_.Want("m@1", 5);
    world_.Settle();
  }

  void Run() {
    for (int i = 0; i < 60; ++i) {
      Step();
      world_.Decide();
      ASSERT_THAT(world_.violations, IsEmpty()) << Log();
      world_.ended.clear();
    }
    // No command fails from here on.
    RejoinAll();
    for (int i = 0; i < 8; ++i) {
      if (i == 4) LoseLeavingRouters();
      world_.EndPauses();
      world_.Settle();
      world_.Look();
    }
    ASSERT_THAT(world_.Settle(), IsEmpty()) << Log();
    ASSERT_THAT(world_.violations, IsEmpty()) << Log();
    CheckRest();
  }

 private:
  std::string Log() const { return absl::StrJoin(world_.log, "\n"); }
  uint64_t Draw(uint64_t below) { return FoldIn(seed_, ++draws_) % below; }

  void Step() {
    const std::vector<std::string> under_way = world_.UnderWay();
    const uint64_t dice = Draw(100);
    if (dice < 70) {
      if (under_way.empty()) return;
      const std::vector<std::string> next =
          absl::StrSplit(under_way[Draw(under_way.size())], ' ');
      // Only loads fail, and only on members that do not have the session.
      const bool refused =
          !world_.IsRelease(next[0], next[1]) && Draw(8) == 0 &&
          !world_.processes.at(next[0]).sessions.contains(next[1]);
      world_.Answer(next[0], next[1],
                    !refused       ? absl::OkStatus()
                    : Draw(2) == 0 ? absl::UnavailableError("not now")
                                   : absl::ResourceExhaustedError("no room"));
    } else if (dice < 76) {
      world_.EndPauses();
    } else if (dice < 82) {
      world_.Look();
    } else if (dice < 89) {
      const std::string worker = absl::StrCat("w", Draw(4));
      const uint64_t event = Draw(3);
      if (!world_.processes.contains(worker)) {
        world_.AddWorker(worker);
      } else if (event == 0) {
        world_.AskToLeave(worker);
      } else if (event == 1 && world_.processes.size() > 3) {
        world_.Lose(worker);
      } else if (world_.IsCutOff(worker)) {
        world_.Rejoin(worker);
      } else {
        world_.CutOff(worker);
      }
    } else if (dice < 92) {
      const std::string router = absl::StrCat("r", 1 + Draw(2));
      const std::string away = absl::StrCat("r", Draw(3));
      if (world_.processes.contains(away) && world_.IsCutOff(away)) {
        world_.Rejoin(away);
      } else if (!world_.processes.contains(router)) {
        world_.AddRouter(router);
      } else if (!world_.processes.at(router).leaving && Draw(2) == 0) {
        world_.AskToLeave(router);
      } else {
        world_.Lose(router);
      }
    } else if (dice < 94) {
      for (auto& [session, model] : world_.desired.models) {
        model.replicas = static_cast<int32_t>(1 + Draw(3));
        model.homes.clear();
      }
    } else if (dice < 96) {
      for (auto& [session, model] : world_.desired.models) {
        model.load.assign(model.experts, 100.0);
        model.load[Draw(model.load.size())] = 1e5;
      }
    } else if (dice < 98) {
      const std::string session = absl::StrCat("m@", 1 + Draw(3));
      if (!world_.desired.models.contains(session)) world_.Want(session, 5);
    } else if (dice < 99) {
      world_.Restart();
    } else {
      // The coordinator is paused for longer than a lease.
      for (const auto& [name, process] : world_.processes) {
        if (!world_.IsCutOff(name)) world_.CutOff(name);
      }
    }
  }

  void RejoinAll() {
    for (const auto& [name, process] : world_.processes) {
      if (world_.IsCutOff(name)) world_.Rejoin(name);
    }
  }

  void LoseLeavingRouters() {
    const auto processes = world_.processes;
    for (const auto& [name, process] : processes) {
      if (process.leaving) world_.Lose(name);
    }
  }

  void CheckRest() {
    size_t workers = 0;
    for (const auto& [name, process] : world_.processes) {
      workers += process.member.info.role == MemberRole::kExpertWorker;
      EXPECT_FALSE(process.leaving) << name << Log();
    }
    std::set<std::string> wanted, bundles;
    for (const auto& [session, model] : world_.desired.models) {
      EXPECT_EQ(model.phase, ServedModel::Phase::kAnswering) << session;
      wanted.insert(session);
      std::map<int32_t, std::set<std::string>> holders;
      for (const v1::WorkerPlacement& bundle : model.placement.workers()) {
        if (workers == 0) continue;  // the placement is what it was
        bundles.insert(bundle.name() + " " + bundle.session());
        for (const int32_t e : bundle.experts())
          holders[e].insert(bundle.name());
      }
      for (int32_t e = 0; e < model.experts; ++e) {
        EXPECT_GE(holders[e].size(), std::min<size_t>(model.replicas, workers));
      }
    }
    for (const auto& [name, process] : world_.processes) {
      if (process.member.info.role == MemberRole::kRouter) {
        EXPECT_EQ(process.sessions, wanted) << name;
        EXPECT_THAT(process.standbys, IsEmpty()) << name;
        for (const auto& [session, placement] : process.placements) {
          EXPECT_EQ(ServingWorld::Text(placement),
                    ServingWorld::Text(world_.model(session).placement));
        }
        continue;
      }
      for (const std::string& session : process.sessions) {
        EXPECT_EQ(bundles.erase(name + " " + session), 1u) << session;
      }
    }
    EXPECT_THAT(bundles, IsEmpty());
  }

  const uint64_t seed_;
  uint64_t draws_ = 0;
  ServingWorld world_;
};

TEST(ServingWalkTest, NoCallIsWithoutItsExpertsAndAllComesToRest) {
  for (uint64_t seed = 0; seed < 1000 && !::testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(seed);
    Walk(seed).Run();
  }
}

}  // namespace
}  // namespace gshard
