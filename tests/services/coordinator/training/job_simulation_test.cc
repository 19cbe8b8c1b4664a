// A job, its members and its disk on one thread and in virtual time: an event
// at any message and any order of messages give the same trained bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/training/job_run.h"
#include "tests/services/coordinator/fake_job.h"
#include "tests/services/coordinator/fake_member.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

constexpr const char* kMembers[] = {"r0", "r1", "w0", "w1"};

// Delivers messages one at a time: commands to members, disk work, and members
// that join.
class Simulation {
 public:
  // `what` happens before message number `at`.
  using Event = std::function<void(Simulation&)>;

  // Messages of different senders arrive in an order derived from `seed`; 0: in
  // the order in which they were sent. Routers report `text`.
  explicit Simulation(Event what = nullptr, int64_t at = -1, uint64_t seed = 0,
                      std::optional<v1::TextLoaded> text = std::nullopt)
      : what_(std::move(what)),
        at_(at),
        seed_(seed),
        text_(std::move(text)),
        members_({.lease = absl::Hours(1'000'000),
                  .clock = [this] { return now(); },
                  .on_change = [this] { mailbox_->TellMembersChanged(); }}) {
    for (const char* name : kMembers) Join(name);
  }

  v1::JobProgress Run(const TrainingJob& job, bool restored = false) {
    ProgressFeed feed(progress_);
    JobEnvironment environment;
    environment.members = &members_;
    environment.on_disk = [this](std::function<void()> work) {
      Send("disk", std::move(work));
    };
    environment.sums = &sums_;
    environment.clock = [this] { return now(); };
    environment.next_placement_version = [this] { return ++version_; };
    RunJob({.job = job,
            .resume = restored,
            .attempt = progress_.attempt() + 1,
            .restored = restored,
            .durable = true},
           environment, mailbox_, &feed, &status_);
    progress_ = feed.Latest();
    return progress_;
  }
  // Replaces the coordinator.
  void Restart() {
    mailbox_ = std::make_shared<Mailbox>(this);
    pending_.clear();
    for (const auto& [name, member] : fakes_) member->OnLost();
  }

  // Loses a member, which joins again after the messages now pending.
  void Lose(const std::string& name) {
    members_.OnEnd(keys_.at(name), absl::UnavailableError("killed"));
    fakes_.at(name)->OnLost();
    pending_.erase(name);
    pending_.erase(name + " writes");
    Send(name + " joins", [this, name] { Join(name); });
  }
  // Tells all members to stop: routers leave at once, and workers say that they
  // want to.
  void StopMembers() {
    for (const char* name : kMembers) {
      if (name[0] == 'r') {
        members_.OnEnd(keys_.at(name), absl::OkStatus());
        pending_.erase(name);
        continue;
      }
      v1::Heartbeat heartbeat;
      heartbeat.set_leaving(true);
      EXPECT_OK(members_.OnHeartbeat(keys_.at(name), heartbeat));
    }
  }
  // The coordinator is told to stop after the messages now pending.
  void StopSoon() {
    Send("stop", [this] { mailbox_->Stop(); });
  }
  // All members are started again.
  void StartMembers() {
    for (const char* name : kMembers) {
      members_.OnEnd(keys_.at(name), absl::OkStatus());
      Join(name);
    }
  }
  // The member's next command is not done and fails with a transient error.
  void Refuse(const std::string& name) { refuses_ = name; }
  const std::optional<v1::Command>& refused() const { return refused_; }

  JobMailbox& mailbox() { return *mailbox_; }
  int64_t messages() const { return count_; }
  // What a member was told since it was started.
  std::vector<std::string> commands(const std::string& name) const {
    return fakes_.at(name)->commands();
  }
  // The step after which a worker's last session began.
  int64_t StartOf(const std::string& name) const {
    return fakes_.at(name)->last_load().worker().step();
  }

 private:
  // Delivers a message when no other work is left.
  class Mailbox final : public JobMailbox {
   public:
    explicit Mailbox(Simulation* all) : all_(all) {}
    void Next(MonotonicTime until) override {
      while (!RunOne()) {
        if (!all_->Deliver(until)) return;
      }
    }

   private:
    Simulation* const all_;
  };

  class Sender final : public StreamSender<v1::JoinResponse> {
   public:
    Sender(Simulation* all, std::string name)
        : all_(all), name_(std::move(name)) {}
    absl::Status Send(v1::JoinResponse message) override {
      if (!message.has_command()) return absl::OkStatus();
      all_->Send(name_,
                 [all = all_, name = name_, command = message.command()] {
                   all->Do(name, command);
                 });
      return absl::OkStatus();
    }
    void Finish(const absl::Status&) override {}
    void Cancel() override {}

   private:
    Simulation* const all_;
    const std::string name_;
  };

  MonotonicTime now() const {
    return MonotonicTime() + absl::Nanoseconds(now_.load());
  }

  void Send(const std::string& from, std::function<void()> message) {
    pending_[from].emplace_back(++sent_, std::move(message));
  }

  // False if the time reaches `until` without a message.
  bool Deliver(MonotonicTime until) {
    if (pending_.empty()) {
      // Without a deadline, the job would wait forever.
      CHECK(until != MonotonicTime::InfiniteFuture());
      now_ = std::max(now_.load(),
                      absl::ToInt64Nanoseconds(until - MonotonicTime()));
      return false;
    }
    if (count_++ == at_ && what_ != nullptr) {
      what_(*this);
      return true;
    }
    auto next = pending_.begin();
    if (seed_ != 0) {
      std::advance(next, RandomBelow(seed_, count_, pending_.size()));
    } else {
      next = std::min_element(
          pending_.begin(), pending_.end(), [](const auto& a, const auto& b) {
            return a.second.front().first < b.second.front().first;
          });
    }
    const std::function<void()> message =
        std::move(next->second.front().second);
    next->second.pop_front();
    if (next->second.empty()) pending_.erase(next);
    message();
    return true;
  }

  void Join(const std::string& name) {
    v1::RegisterMember member;
    member.set_name(name);
    member.set_address("unix:/tmp/" + name);
    member.set_protocol_version(1);
    member.set_role(name[0] == 'r' ? v1::MEMBER_ROLE_ROUTER
                                   : v1::MEMBER_ROLE_EXPERT_WORKER);
    fakes_.insert_or_assign(name, std::make_unique<FakeMember>(TransferTo()));
    if (text_.has_value()) fakes_.at(name)->SetText(*text_);
    const auto key =
        members_.Register(member, std::make_shared<Sender>(this, name));
    CHECK(key.ok());
    keys_[name] = *key;
  }

  void Do(const std::string& name, const v1::Command& command) {
    if (refuses_ == name) {
      refuses_.clear();
      refused_ = command;
      return Reply(name, command,
                   ReplyWith(absl::UnavailableError("not at the moment")));
    }
    FakeMember& member = *fakes_.at(name);
    if (auto rest = member.Begin(command)) {
      return Send(name + " writes", [this, name, command, rest] {
        Reply(name, command, rest());
      });
    }
    Reply(name, command, member.Handle(command));
  }
  void Reply(const std::string& name, const v1::Command& command,
             v1::CommandReply reply) {
    reply.set_command_id(command.command_id());
    (void)members_.OnCommandReply(keys_.at(name), std::move(reply));
  }

  FakeMember::Transfer TransferTo() {
    const auto find = [this](const std::string& session)
        -> absl::StatusOr<std::shared_ptr<DenseParameters>> {
      const auto dense = status_.dense();
      if (dense != nullptr && dense->session() == session) return dense;
      return absl::NotFoundError("no such session");
    };
    return {.pull = [find](const v1::PullParametersRequest& pull,
                           const auto&) -> absl::Status {
              const auto dense = find(pull.session());
              if (!dense.ok()) return dense.status();
              return (*dense)->Pull(pull.version()).status();
            },
            .push = [find](const v1::TensorFrameHeader& header,
                           NamedTensors gradients) -> absl::Status {
              const auto dense = find(header.session());
              if (!dense.ok()) return dense.status();
              std::promise<absl::Status> done;
              (*dense)->Push(
                  header.step(), header.microbatch(), header.attempt(),
                  std::move(gradients),
                  [&](const absl::Status& status) { done.set_value(status); });
              return done.get_future().get();
            }};
  }

  const Event what_;
  const int64_t at_;
  const uint64_t seed_;
  const std::optional<v1::TextLoaded> text_;
  std::atomic<int64_t> now_{1};  // nanoseconds
  TaskQueue sums_;
  JobStatus status_;
  v1::JobProgress progress_;
  std::shared_ptr<JobMailbox> mailbox_ = std::make_shared<Mailbox>(this);
  Members members_;
  std::map<std::string, MemberKey> keys_;
  std::map<std::string, std::unique_ptr<FakeMember>> fakes_;
  // By sender, with their places in the order of all messages.
  std::map<std::string, std::deque<std::pair<int64_t, std::function<void()>>>>
      pending_;
  std::string refuses_;  // member; empty: none
  std::optional<v1::Command> refused_;
  int64_t sent_ = 0;
  int64_t count_ = 0;
  int64_t version_ = 0;
};

TrainingJob SimulatedJob(const ScratchDirectory& scratch, bool buddies) {
  TrainingJob job = MakeFakeJob("demo", scratch);
  job.min_workers = 2;
  job.min_routers = 2;
  job.checkpoint.every_steps = 2;
  job.recovery.buddies = buddies;
  return job;
}

// The checksums of the last checkpoint's tensors.
std::map<std::string, std::string> Sums(const TrainingJob& job) {
  const auto reader = CheckpointReader::Open(
      CheckpointPath(job.checkpoint.directory, job.steps));
  EXPECT_OK(reader);
  std::map<std::string, std::string> sums;
  if (!reader.ok()) return sums;
  for (const TensorEntry& entry : (*reader)->manifest().tensors) {
    sums[entry.name] = entry.sha256;
  }
  return sums;
}

// The result of an undisturbed run.
struct Calm {
  std::map<std::string, std::string> sums;
  int64_t messages = 0;
};
const Calm& CalmRun() {
  static const Calm& calm = *[] {
    auto* const calm = new Calm;
    const ScratchDirectory scratch;
    const TrainingJob job = SimulatedJob(scratch, /*buddies=*/false);
    Simulation simulation;
    EXPECT_EQ(simulation.Run(job).state(), v1::JOB_STATE_SUCCEEDED);
    ExpectTrained(job, 3);
    calm->sums = Sums(job);
    calm->messages = simulation.messages();
    EXPECT_GT(calm->messages, 30);
    return calm;
  }();
  return calm;
}

TEST(JobSimulationTest, AMemberIsLostAtAnyMessage) {
  for (const char* name : {"r1", "w1"}) {
    for (int64_t at = 0; at < CalmRun().messages; ++at) {
      const bool buddies = at % 2 > 0;
      SCOPED_TRACE(absl::StrCat(name, " at ", at));
      const ScratchDirectory scratch;
      const TrainingJob job = SimulatedJob(scratch, buddies);
      Simulation simulation([&](Simulation& all) { all.Lose(name); }, at);
      const v1::JobProgress last = simulation.Run(job);
      ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED)
          << last.status().message();
      EXPECT_EQ(last.step(), 3);
      EXPECT_LE(last.attempt(), name[0] == 'w' ? 2 : 1);
      ASSERT_EQ(Sums(job), CalmRun().sums);
    }
  }
}

// A worker that fails a command stays a member. A commit that has begun is
// finished, and its step is not run again, with or without buddies.
TEST(JobSimulationTest, ACommandFailsAtAnyMessage) {
  int commits = 0;
  for (int64_t at = 0; at < 2 * CalmRun().messages; ++at) {
    const bool buddies = at % 2 > 0;
    SCOPED_TRACE(
        absl::StrCat(buddies ? "with" : "without", " buddies at ", at / 2));
    const ScratchDirectory scratch;
    const TrainingJob job = SimulatedJob(scratch, buddies);
    Simulation simulation([](Simulation& all) { all.Refuse("w1"); }, at / 2);
    const v1::JobProgress last = simulation.Run(job);
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    ASSERT_EQ(Sums(job), CalmRun().sums);
    EXPECT_LE(last.attempt(), 2);
    const auto& refused = simulation.refused();
    if (!refused.has_value() || !refused->has_commit_step()) continue;
    ++commits;
    const int64_t step = refused->commit_step().step();
    EXPECT_EQ(last.attempt(), step < job.steps ? 2 : 1);
    EXPECT_EQ(simulation.StartOf("w0"), step < job.steps ? step : 0);
  }
  EXPECT_GE(commits, 6);
}

TEST(JobSimulationTest, MessagesComeInAnyOrder) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    const ScratchDirectory scratch;
    const TrainingJob job = SimulatedJob(scratch, seed % 2 > 0);
    const auto at =
        static_cast<int64_t>(RandomBelow(seed, 0, CalmRun().messages));
    const std::string name = absl::StrCat("w", seed / 2 % 2);
    Simulation simulation([&](Simulation& all) { all.Lose(name); }, at, seed);
    const v1::JobProgress last = simulation.Run(job);
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    ASSERT_EQ(Sums(job), CalmRun().sums);
  }
}

// The coordinator stops, gracefully or not, and another one resumes the job.
TEST(JobSimulationTest, TheCoordinatorEndsAtAnyMessage) {
  for (const bool halts : {false, true}) {
    for (int64_t at = 0; at < CalmRun().messages; at += 2) {
      SCOPED_TRACE(absl::StrCat(halts ? "halt" : "stop", " at ", at));
      const ScratchDirectory scratch;
      const TrainingJob job = SimulatedJob(scratch, /*buddies=*/false);
      Simulation simulation(
          [&](Simulation& all) {
            halts ? all.mailbox().Halt() : all.mailbox().Stop();
          },
          at);
      v1::JobProgress last = simulation.Run(job);
      if (halts) {
        EXPECT_FALSE(IsOver(last.state()));
        EXPECT_NE(last.state(), v1::JOB_STATE_QUEUED);
      } else if (last.state() != v1::JOB_STATE_SUCCEEDED) {
        ASSERT_EQ(last.state(), v1::JOB_STATE_QUEUED);
        EXPECT_EQ(last.step(), last.checkpoint_step());
      }
      simulation.Restart();
      if (!IsOver(last.state())) last = simulation.Run(job, /*restored=*/true);
      ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED)
          << last.status().message();
      ASSERT_EQ(Sums(job), CalmRun().sums);
    }
  }
}

// Everything is stopped, in any order, and started again: no step that was
// committed is run again. The last one is, if it was being validated.
TEST(JobSimulationTest, AllAreStoppedAtAnyMessage) {
  v1::TextLoaded held_out;
  held_out.set_digest("text");
  held_out.set_validation_microbatches(2);
  int parked = 0, to_validate = 0;
  for (const bool members_first : {false, true}) {
    for (const bool validates : {false, true}) {
      for (int64_t at = 0; at < CalmRun().messages + 12; ++at) {
        SCOPED_TRACE(absl::StrCat(members_first ? "members first" : "all",
                                  validates ? ", validating, at " : ", at ",
                                  at));
        const ScratchDirectory scratch;
        TrainingJob job = SimulatedJob(scratch, /*buddies=*/false);
        // A stop uses up no recovery.
        job.recovery.max_recoveries = 0;
        const auto stop = [&](Simulation& all) {
          if (!members_first) all.mailbox().Stop();
          all.StopMembers();
          if (members_first) all.StopSoon();
        };
        Simulation simulation(
            stop, at, /*seed=*/at % 3,
            validates ? std::optional(held_out) : std::nullopt);
        v1::JobProgress last = simulation.Run(job);
        if (last.state() == v1::JOB_STATE_SUCCEEDED) {
          ASSERT_EQ(Sums(job), CalmRun().sums);
          continue;
        }
        ASSERT_EQ(last.state(), v1::JOB_STATE_QUEUED)
            << last.status().message();
        ++parked;
        if (validates && last.step() == job.steps) {
          ++to_validate;
          EXPECT_EQ(last.validation_step(), 2);
          EXPECT_EQ(last.checkpoint_step(), 2);
        } else {
          EXPECT_EQ(last.step(), last.checkpoint_step());
        }
        // One that was being written was finished.
        for (const char* const write : {"write 1", "write 2"}) {
          const std::vector<std::string> told = simulation.commands("w0");
          EXPECT_LE(std::count(told.begin(), told.end(), write), 1);
        }
        simulation.Restart();
        simulation.StartMembers();
        last = simulation.Run(job, /*restored=*/true);
        ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED)
            << last.status().message();
        ASSERT_EQ(Sums(job), CalmRun().sums);
        EXPECT_EQ(last.validation_step(), validates ? 3 : 0);
      }
    }
  }
  EXPECT_GE(parked, 4 * 30);
  EXPECT_GE(to_validate, 2);
}

// A worker is killed as the job is told to stop, which needs no recovery.
TEST(JobSimulationTest, AWorkerIsLostToAStopAtAnyMessage) {
  for (int64_t at = 0; at < CalmRun().messages; ++at) {
    SCOPED_TRACE(at);
    const ScratchDirectory scratch;
    TrainingJob job = SimulatedJob(scratch, /*buddies=*/false);
    job.recovery.max_recoveries = 0;
    Simulation simulation(
        [](Simulation& all) {
          all.mailbox().Stop();
          all.Lose("w1");
        },
        at);
    v1::JobProgress last = simulation.Run(job);
    if (last.state() != v1::JOB_STATE_SUCCEEDED) {
      ASSERT_EQ(last.state(), v1::JOB_STATE_QUEUED) << last.status().message();
      simulation.Restart();
      // A job that has not begun waits for both workers.
      if (!last.begun()) simulation.StartMembers();
      last = simulation.Run(job, /*restored=*/true);
    }
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    ASSERT_EQ(Sums(job), CalmRun().sums);
  }
}

TEST(JobSimulationTest, IsCancelledAtAnyMessage) {
  for (int64_t at = 0; at < CalmRun().messages; ++at) {
    SCOPED_TRACE(at);
    const ScratchDirectory scratch;
    const TrainingJob job = SimulatedJob(scratch, /*buddies=*/true);
    Simulation simulation([](Simulation& all) { all.mailbox().Cancel(); }, at);
    const v1::JobProgress last = simulation.Run(job);
    if (at >= CalmRun().messages - std::ssize(kMembers)) {
      // All is trained, and only the sessions are left to be released.
      ASSERT_TRUE(IsOver(last.state()));
      continue;
    }
    ASSERT_EQ(last.state(), v1::JOB_STATE_CANCELLED);
    for (const int64_t step : {2, 3}) {
      EXPECT_FALSE(
          IsDirectory(PartialCheckpointPath(job.checkpoint.directory, step)));
    }
  }
}

}  // namespace
}  // namespace gshard
