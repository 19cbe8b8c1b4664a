#include "services/rpc/process/member_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/thread_priority.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/services/rpc/fake_coordinator.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kCancelled = absl::StatusCode::kCancelled;

// Records its calls. PrepareStep commands last until Release() or until their
// session is interrupted.
class Recorder final : public MemberHandler {
 public:
  v1::CommandReply Handle(const v1::Command& command) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::string& session = SessionOf(command);
    Add(absl::StrCat("begin ", command.command_id()));
    niceness_[session] = ThreadNiceness();
    ++running_;
    v1::CommandReply reply;
    if (command.has_prepare_step()) {
      changed_.wait(
          lock, [&] { return released_ || interrupted_.count(session) > 0; });
      if (interrupted_.count(session) > 0) {
        reply = ReplyWith(absl::CancelledError("interrupted"));
      }
    }
    --running_;
    Add(absl::StrCat("end ", command.command_id()));
    return reply;
  }
  // WriteCheckpoint commands return a rest, which lasts as long as PrepareStep.
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override {
    if (!command.has_write_checkpoint()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    Add(absl::StrCat("begin ", command.command_id()));
    v1::Command rest;
    rest.set_command_id(10 * command.command_id());
    rest.mutable_prepare_step()->set_session(SessionOf(command));
    return [this, rest] { return Handle(rest); };
  }
  void Interrupt(const std::string& session) override {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted_.insert(session);
    changed_.notify_all();
  }
  void OnLost() override {
    std::lock_guard<std::mutex> lock(mutex_);
    Add("lost");
  }
  v1::Heartbeat Load() override {
    v1::Heartbeat heartbeat;
    heartbeat.set_queued(17);
    std::lock_guard<std::mutex> lock(mutex_);
    heartbeat.set_in_flight(running_);
    return heartbeat;
  }
  void OnAccepted(const v1::MemberAccepted&) override {
    std::unique_lock<std::mutex> lock(mutex_);
    Add("accepted");
    changed_.wait(lock, [&] { return released_ || !holds_accepted_; });
  }
  void OnRefused(const absl::Status& status) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Add(absl::StrCat("refused ", status.message()));
  }

  // Makes OnAccepted() last until Release().
  void HoldAccepted() {
    std::lock_guard<std::mutex> lock(mutex_);
    holds_accepted_ = true;
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void WaitFor(const std::string& event) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      return std::count(events_.begin(), events_.end(), event) > 0;
    });
  }
  // The niceness of the thread that ran the session's last command.
  int NicenessFor(const std::string& session) {
    std::lock_guard<std::mutex> lock(mutex_);
    return niceness_.at(session);
  }
  std::vector<std::string> events() {
    std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

 private:
  void Add(std::string event) {
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::set<std::string> interrupted_;
  std::map<std::string, int> niceness_;
  int running_ = 0;
  bool released_ = false;
  bool holds_accepted_ = false;
};

v1::Command Slow(uint64_t id, const std::string& session) {
  v1::Command command;
  command.set_command_id(id);
  command.mutable_prepare_step()->set_session(session);
  return command;
}
v1::Command Quick(uint64_t id, const std::string& session) {
  v1::Command command;
  command.set_command_id(id);
  command.mutable_commit_step()->set_session(session);
  return command;
}
v1::Command Abort(uint64_t id, const std::string& session) {
  v1::Command command;
  command.set_command_id(id);
  command.mutable_abort_session()->set_session(session);
  return command;
}

v1::Command Write(uint64_t id, const std::string& session) {
  v1::Command command;
  command.set_command_id(id);
  command.mutable_write_checkpoint()->set_session(session);
  return command;
}

void ExpectReply(JoinedMember& member, uint64_t id, absl::StatusCode code) {
  const v1::CommandReply reply = member.WaitForReply();
  EXPECT_EQ(reply.command_id(), id);
  EXPECT_EQ(FromProtoStatus(reply.status()).code(), code)
      << reply.status().message();
}

class MemberClientTest : public ::testing::Test {
 protected:
  MemberClientTest() {
    char name[] = "/tmp/gshard_member_XXXXXX";
    directory_ = mkdtemp(name);
    options_.coordinator = "unix:" + directory_ + "/coordinator";
    options_.role = v1::MEMBER_ROLE_ROUTER;
    options_.name = "router-1";
    options_.address = "host:7001";
    options_.build_version = "1.2.3";
    options_.memory_bytes = 5;
    options_.min_backoff = milliseconds(1);
    options_.max_backoff = milliseconds(4);
  }
  ~MemberClientTest() override {
    client_.reset();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartServer() {
    server_ = std::make_unique<ServerShell>(
        ServerOptions{.address = options_.coordinator});
    server_->AddService(&coordinator_,
                        v1::CoordinatorService::service_full_name());
    ASSERT_OK(server_->Start());
  }
  void StartClient() {
    client_ = std::make_unique<MemberClient>(options_, &recorder_);
    ASSERT_OK(client_->Start());
  }
  std::shared_ptr<JoinedMember> Join() {
    auto member = coordinator_.WaitForMember();
    member->WaitForRegistration();
    member->Accept();
    return member;
  }

  std::string directory_;
  MemberOptions options_;
  FakeCoordinator coordinator_;
  std::unique_ptr<ServerShell> server_;
  Recorder recorder_;
  std::unique_ptr<MemberClient> client_;
};

TEST_F(MemberClientTest, RegistersAndSendsHeartbeats) {
  StartServer();
  StartClient();
  const auto member = coordinator_.WaitForMember();
  const v1::RegisterMember registration = member->WaitForRegistration();
  EXPECT_EQ(registration.role(), v1::MEMBER_ROLE_ROUTER);
  EXPECT_EQ(registration.name(), "router-1");
  EXPECT_EQ(registration.address(), "host:7001");
  EXPECT_EQ(registration.protocol_version(), kProtocolVersions.newest);
  EXPECT_EQ(registration.oldest_protocol_version(), kProtocolVersions.oldest);
  EXPECT_EQ(registration.build_version(), "1.2.3");
  EXPECT_EQ(registration.memory_bytes(), 5);
  EXPECT_FALSE(client_->joined());
  member->Accept();
  EXPECT_EQ(member->WaitForHeartbeat().queued(), 17);
  EXPECT_EQ(member->WaitForHeartbeat().queued(), 17);
  EXPECT_TRUE(client_->joined());
}

// Heartbeats continue while a command runs, so that a long commit or checkpoint
// load does not cost the lease.
TEST_F(MemberClientTest, HeartbeatsGoOnWhileACommandRuns) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Slow(1, "a"));
  for (int sent = 0; sent < 3;) {
    if (member->WaitForHeartbeat().in_flight() == 1) ++sent;
  }
  recorder_.Release();
  ExpectReply(*member, 1, absl::StatusCode::kOk);
}

TEST_F(MemberClientTest, KeepsTheOrderOfASession) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Slow(1, "a"));
  member->Send(Quick(2, "a"));
  member->Send(Quick(3, "b"));
  ExpectReply(*member, 3, absl::StatusCode::kOk);
  recorder_.WaitFor("begin 1");
  recorder_.Release();
  ExpectReply(*member, 1, absl::StatusCode::kOk);
  ExpectReply(*member, 2, absl::StatusCode::kOk);
  std::vector<std::string> of_a;
  for (const std::string& event : recorder_.events()) {
    if (event.find('1') != event.npos || event.find('2') != event.npos) {
      of_a.push_back(event);
    }
  }
  EXPECT_THAT(of_a, ElementsAre("begin 1", "end 1", "begin 2", "end 2"));
}

TEST_F(MemberClientTest, AbortOvertakes) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Slow(1, "a"));
  member->Send(Slow(4, "b"));
  recorder_.WaitFor("begin 1");
  recorder_.WaitFor("begin 4");
  member->Send(Quick(2, "a"));
  member->Send(Abort(3, "a"));
  ExpectReply(*member, 2, kCancelled);
  ExpectReply(*member, 1, kCancelled);
  ExpectReply(*member, 3, absl::StatusCode::kOk);
  recorder_.Release();
  ExpectReply(*member, 4, absl::StatusCode::kOk);
  EXPECT_THAT(recorder_.events(),
              ::testing::Not(::testing::Contains("begin 2")));
}

TEST_F(MemberClientTest, TheRestOfACommandHoldsUpNothing) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Write(1, "a"));
  member->Send(Quick(2, "a"));
  member->Send(Write(3, "a"));
  member->Send(Quick(4, "a"));
  ExpectReply(*member, 2, absl::StatusCode::kOk);
  ExpectReply(*member, 4, absl::StatusCode::kOk);
  recorder_.WaitFor("begin 10");
  recorder_.Release();
  ExpectReply(*member, 1, absl::StatusCode::kOk);
  ExpectReply(*member, 3, absl::StatusCode::kOk);
  std::vector<std::string> events;
  for (const std::string& event : recorder_.events()) {
    if (event != "begin 10") events.push_back(event);  // may come at any time
  }
  EXPECT_THAT(events,
              ElementsAre("accepted", "begin 1", "begin 2", "end 2", "begin 3",
                          "begin 4", "end 4", "end 10", "begin 30", "end 30"));
}

TEST_F(MemberClientTest, TheCommandsOfJobsMakeWayForOthers) {
  const int before = ThreadNiceness();
  options_.training_niceness = before + 2;
  StartServer();
  StartClient();
  const auto member = Join();
  recorder_.Release();
  v1::Command load;
  load.mutable_load_session()->set_session("model@1");
  member->Do(load);
  EXPECT_EQ(recorder_.NicenessFor("model@1"), before);
  load.mutable_load_session()->set_session("job/1");
  load.mutable_load_session()->set_training(true);
  member->Do(load);
  EXPECT_EQ(recorder_.NicenessFor("job/1"), before + 2);
  member->Do(Quick(0, "job/2"));
  EXPECT_EQ(recorder_.NicenessFor("job/2"), before + 2);
  member->Do(Write(0, "job/3"));  // has a rest, on another thread
  EXPECT_EQ(recorder_.NicenessFor("job/3"), before + 2);
}

TEST_F(MemberClientTest, AbortReachesTheRestsOfCommands) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Write(1, "a"));
  member->Send(Write(2, "a"));
  member->Send(Quick(3, "a"));
  ExpectReply(*member, 3, absl::StatusCode::kOk);
  recorder_.WaitFor("begin 10");
  member->Send(Abort(4, "a"));
  ExpectReply(*member, 2, kCancelled);  // had not begun
  std::set<uint64_t> replied;
  for (int i = 0; i < 2; ++i)
    replied.insert(member->WaitForReply().command_id());
  EXPECT_EQ(replied, (std::set<uint64_t>{1, 4}));
  EXPECT_THAT(recorder_.events(),
              ::testing::Not(::testing::Contains("begin 20")));
}

TEST_F(MemberClientTest, NothingRunsWhenTheStreamIsLost) {
  StartServer();
  StartClient();
  const auto first = Join();
  first->Send(Write(1, "a"));
  recorder_.WaitFor("begin 10");
  first->End(absl::DeadlineExceededError("the lease ran out"));
  recorder_.WaitFor("lost");
  EXPECT_THAT(recorder_.events(),
              ElementsAre("accepted", "begin 1", "begin 10", "end 10", "lost"));
}

TEST_F(MemberClientTest, AnswersCommandsThatItDoesNotKnow) {
  StartServer();
  StartClient();
  const auto member = Join();
  v1::Command command;
  command.set_command_id(9);
  member->Send(command);
  ExpectReply(*member, 9, absl::StatusCode::kInvalidArgument);
  member->Send(Quick(10, ""));
  ExpectReply(*member, 10, absl::StatusCode::kInvalidArgument);
}

TEST_F(MemberClientTest, DropsAllAndJoinsAgainWhenTheStreamIsLost) {
  StartServer();
  StartClient();
  const auto first = Join();
  first->Send(Slow(1, "a"));
  first->Send(Quick(2, "a"));
  recorder_.WaitFor("begin 1");
  first->End(absl::DeadlineExceededError("the lease ran out"));
  const auto second = Join();
  second->Send(Quick(5, "a"));
  ExpectReply(*second, 5, absl::StatusCode::kOk);
  EXPECT_THAT(recorder_.events(),
              ElementsAre("accepted", "begin 1", "end 1", "lost", "accepted",
                          "begin 5", "end 5"));
}

TEST_F(MemberClientTest, JoinsACoordinatorThatComesLater) {
  StartClient();
  StartServer();
  Join();
  recorder_.WaitFor("accepted");
  server_->Drain(milliseconds(0));
  recorder_.WaitFor("lost");
  StartServer();
  Join()->WaitForHeartbeat();
}

TEST_F(MemberClientTest, GivesUpWhenRefused) {
  StartServer();
  StartClient();
  coordinator_.WaitForMember()->End(absl::AlreadyExistsError("name taken"));
  coordinator_.WaitForMember()->End(absl::UnavailableError("starting"));
  coordinator_.WaitForMember()->End(
      absl::FailedPreconditionError("protocol version 2"));
  recorder_.WaitFor("refused protocol version 2");
  client_->Stop();
  EXPECT_THAT(recorder_.events(), ElementsAre("refused protocol version 2"));
}

TEST_F(MemberClientTest, TriesAgainWhenNotAcceptedInTime) {
  options_.accept_timeout = milliseconds(5);
  StartServer();
  StartClient();
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(coordinator_.WaitForMember()->WaitForEnd(),
                StatusIs(kCancelled, HasSubstr("")));
  }
  EXPECT_FALSE(client_->joined());
  EXPECT_THAT(recorder_.events(), ElementsAre());
}

TEST_F(MemberClientTest, WhoIsAcceptedAfterItGaveUpIsLost) {
  options_.accept_timeout = milliseconds(200);
  recorder_.HoldAccepted();
  StartServer();
  StartClient();
  const auto member = coordinator_.WaitForMember();
  member->Accept();
  EXPECT_THAT(member->WaitForEnd(), StatusIs(kCancelled, HasSubstr("")));
  recorder_.Release();
  coordinator_.WaitForMember();
  EXPECT_THAT(recorder_.events(), ElementsAre("accepted", "lost"));
}

TEST_F(MemberClientTest, LeavesInOrder) {
  StartServer();
  StartClient();
  const auto member = Join();
  member->Send(Slow(1, "a"));
  recorder_.WaitFor("begin 1");
  client_->Stop();
  EXPECT_OK(member->WaitForEnd());
  EXPECT_FALSE(client_->joined());
  EXPECT_THAT(recorder_.events(), ElementsAre("accepted", "begin 1", "end 1"));
  client_->Stop();  // a second Stop() does nothing
}

TEST_F(MemberClientTest, WaitsUntilItMayLeaveAndDoesWhatItIsTold) {
  StartServer();
  StartClient();
  auto member = coordinator_.WaitForMember();
  member->Accept(60'000, 60'000, /*answers_leaving=*/true);
  recorder_.WaitFor("accepted");
  while (!client_->joined()) std::this_thread::yield();
  auto left = std::async(std::launch::async, [&] {
    return client_->AwaitMayLeave(milliseconds(60'000));
  });
  // Sent at once, without waiting for the heartbeat interval.
  EXPECT_TRUE(member->WaitForHeartbeat().leaving());
  EXPECT_OK(FromProtoStatus(member->Do(Quick(0, "a")).status()));
  // A new coordinator is told as well.
  member->End(absl::UnavailableError("killed"));
  member = coordinator_.WaitForMember();
  member->Accept(60'000, 60'000, /*answers_leaving=*/true);
  EXPECT_TRUE(member->WaitForHeartbeat().leaving());
  EXPECT_EQ(left.wait_for(milliseconds(0)), std::future_status::timeout);
  member->LetGo();
  EXPECT_OK(left.get());
  EXPECT_TRUE(client_->joined());
}

TEST_F(MemberClientTest, SaysThatItLeavesAndStays) {
  StartClient();
  client_->SayLeaving();  // also to a coordinator that comes later
  StartServer();
  const auto member = coordinator_.WaitForMember();
  member->Accept(60'000, 60'000, /*answers_leaving=*/true);
  EXPECT_TRUE(member->WaitForHeartbeat().leaving());
  EXPECT_OK(FromProtoStatus(member->Do(Quick(0, "a")).status()));
  EXPECT_TRUE(client_->joined());
}

TEST_F(MemberClientTest, IsNotLetGoForEver) {
  StartServer();
  StartClient();
  coordinator_.WaitForMember()->Accept(1, 60'000, /*answers_leaving=*/true);
  while (!client_->joined()) std::this_thread::yield();
  EXPECT_THAT(client_->AwaitMayLeave(milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1 ms")));
}

TEST_F(MemberClientTest, WaitsForNobodyWhoWillNotAnswer) {
  StartClient();  // there is no coordinator
  EXPECT_OK(client_->AwaitMayLeave(milliseconds(60'000)));
  client_ = nullptr;
  StartServer();
  StartClient();
  auto member = coordinator_.WaitForMember();
  member->Accept();
  while (!client_->joined()) std::this_thread::yield();
  EXPECT_OK(client_->AwaitMayLeave(milliseconds(60'000)));
  // A coordinator that shuts down lets its members leave first.
  client_ = nullptr;
  StartClient();
  member = coordinator_.WaitForMember();
  member->Accept(60'000, 60'000, /*answers_leaving=*/true);
  while (!client_->joined()) std::this_thread::yield();
  auto left = std::async(std::launch::async, [&] {
    return client_->AwaitMayLeave(milliseconds(60'000));
  });
  member->LetGo();
  member->End(absl::UnavailableError("the coordinator is shutting down"));
  EXPECT_OK(left.get());
}

TEST_F(MemberClientTest, ACoordinatorThatShutsDownIsNoWarning) {
  StartServer();
  StartClient();
  const auto member = Join();
  while (!client_->joined()) std::this_thread::yield();
  server_->OnDrain([&] {
    member->LetGo();
    member->End(absl::UnavailableError("the coordinator is shutting down"));
    recorder_.WaitFor("lost");
    // Rejoins fail, as they should, and are another matter.
    client_->Stop();
  });
  ::testing::internal::CaptureStderr();
  server_->Drain(milliseconds(60'000));
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("\"severity\":\"INFO\",\"message\":\"lost the "
                               "coordinator\""));
  // Such lines have a budget of their own. What is no warning may be left out,
  // since other tests have made many calls within this second.
  EXPECT_THAT(lines, Not(HasSubstr("\"severity\":\"WARNING\",\"message\":"
                                   "\"call\"")));
}

TEST_F(MemberClientTest, StopsWithoutACoordinator) {
  StartClient();
  client_->Stop();
  EXPECT_THAT(recorder_.events(), ElementsAre());

  options_.coordinator = "nowhere";
  client_ = std::make_unique<MemberClient>(options_, &recorder_);
  EXPECT_THAT(client_->Start(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("nowhere")));
}

}  // namespace
}  // namespace gshard
