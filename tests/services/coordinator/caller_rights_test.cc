// What callers with limited rights can do to jobs and models, and what the
// audit log says of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/serving/visible_models.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

Requester As(const std::string& name, const std::string& grants) {
  return {{name, ParseGrants(grants).value()}, "request-of-" + name};
}

// Calls a method of the coordinator and waits for the outcome.
template <typename Response, typename Request>
absl::StatusOr<Response> Call(
    Coordinator& coordinator,
    void (Coordinator::*method)(const Request&, const Requester&,
                                Coordinator::Done<Response>),
    const Request& request, const Requester& who) {
  std::promise<absl::StatusOr<Response>> done;
  (coordinator.*method)(request, who, [&](absl::StatusOr<Response> response) {
    done.set_value(std::move(response));
  });
  return done.get_future().get();
}

absl::Status Submit(FakeCluster& cluster, const TrainingJob& job,
                    const Requester& who, bool resume = false) {
  v1::SubmitJobRequest request;
  *request.mutable_job() = TrainingJobToProto(job);
  request.set_resume(resume);
  return Call(cluster.coordinator(), &Coordinator::SubmitJob, request, who)
      .status();
}

absl::Status Cancel(FakeCluster& cluster, const std::string& job,
                    const Requester& who) {
  v1::CancelJobRequest request;
  request.set_job(job);
  return Call(cluster.coordinator(), &Coordinator::CancelJob, request, who)
      .status();
}

absl::Status Load(FakeCluster& cluster, const std::string& name,
                  const std::string& directory, const Requester& who) {
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_checkpoint_directory(directory);
  return Call(cluster.coordinator(), &Coordinator::LoadModel, request, who)
      .status();
}

absl::Status Unload(FakeCluster& cluster, const std::string& session,
                    const Requester& who) {
  v1::UnloadModelRequest request;
  request.set_session(session);
  return Call(cluster.coordinator(), &Coordinator::UnloadModel, request, who)
      .status();
}

std::vector<std::string> Sessions(const v1::DescribeResponse& state) {
  std::vector<std::string> sessions;
  for (const auto& info : state.sessions()) sessions.push_back(info.session());
  return sessions;
}

// The audit lines of a log.
std::vector<std::string> AuditLines(const std::string& log) {
  std::vector<std::string> lines;
  std::istringstream all(log);
  for (std::string line; std::getline(all, line);) {
    if (absl::StrContains(line, "\"message\":\"audit\"")) {
      lines.push_back(line);
    }
  }
  return lines;
}

// A cluster on which "boss" can serve "translator@3" by its job "demo".
class CallerRightsTest : public ::testing::Test {
 protected:
  explicit CallerRightsTest(CoordinatorOptions options = {})
      : cluster_(WithRoot(std::move(options), scratch_), /*keep=*/true) {
    // Folders for the jobs of each team.
    fs::create_directories(At("data/team-a"));
    fs::create_directories(At("data/team-b"));
    cluster_.AddRouter("r");
    cluster_.AddWorker("w");
  }

  static CoordinatorOptions WithRoot(CoordinatorOptions options,
                                     const ScratchDirectory& scratch) {
    options.data_roots = {scratch / "data"};
    return options;
  }
  std::string At(const std::string& path) const {
    return fs::canonical(scratch_.path()).string() + "/" + path;
  }
  // A job with all its files in data/TEAM.
  TrainingJob Job(const std::string& name, const std::string& team) {
    TrainingJob job = cluster_.MakeJob(name);
    const std::string folder = At("data/" + team + "/");
    job.data.train_path = folder + "train.tsv";
    job.data.source_tokenizer_path = folder + "tokenizer.model";
    job.checkpoint.directory = folder + name;
    Spill(job.data.train_path, "de\teins\tone\nde\tzwei\ttwo\n");
    Spill(job.data.source_tokenizer_path, Slurp(FakeTokenizerPath()));
    return job;
  }
  void ServeTranslator() {
    TrainingJob job = Job("demo", "team-a");
    job.serve_as = "translator";
    ASSERT_OK(Submit(cluster_, job, boss_));
    const v1::JobProgress last = cluster_.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    checkpoint_ = last.checkpoint_directory();
  }

  const ScratchDirectory scratch_;
  FakeCluster cluster_;
  const Requester boss_ = As("boss", "train,admin");
  std::string checkpoint_;  // of the model that is served
};

// A caller that may train but not load a model cannot replace it by serve_as.
TEST_F(CallerRightsTest, AJobServesOnlyWhatItsSubmitterMayLoad) {
  ServeTranslator();
  TrainingJob job = Job("mine", "team-a");
  job.serve_as = "translator";
  for (const std::string grants :
       {"train", "train,translate", "train,admin:other-*,translate"}) {
    EXPECT_THAT(Submit(cluster_, job, As("shop", grants)),
                StatusIs(kDenied,
                         AllOf(HasSubstr("serve_as"), HasSubstr("'translator'"),
                               HasSubstr("role admin"))));
  }
  EXPECT_FALSE(fs::exists(job.checkpoint.directory));
  EXPECT_THAT(Sessions(cluster_.Describe()), ElementsAre("translator@3"));
  // With a right to the name, the job is accepted.
  job.steps = 4;
  ASSERT_OK(Submit(cluster_, job, As("shop", "train,admin:trans*")));
  EXPECT_EQ(cluster_.Watch("mine").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Sessions(cluster_.Describe()), ElementsAre("translator@4"));
}

TEST(JobQueueTest, OneCallersJobsLeaveRoomForOthers) {
  FakeCluster cluster({.max_jobs = 4});  // without members no job begins
  int made = 0;
  const auto submit = [&](const std::string& who) {
    return Submit(cluster, cluster.MakeJob(absl::StrCat("job-", ++made)),
                  As(who, "train"));
  };
  const auto refused = StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("at most 4 jobs"));
  EXPECT_OK(submit("greedy"));
  EXPECT_OK(submit("greedy"));
  EXPECT_THAT(submit("greedy"), refused);
  EXPECT_OK(submit("second"));
  EXPECT_OK(submit("third"));
  EXPECT_THAT(submit("fourth"), refused);
  EXPECT_OK(Cancel(cluster, "job-2", As("greedy", "train")));
  EXPECT_OK(submit("fourth"));
}

TEST_F(CallerRightsTest, ModelsAreThoseOfTheRole) {
  ServeTranslator();
  const Requester other = As("o", "admin:other-*,translate");
  EXPECT_THAT(Load(cluster_, "translator", checkpoint_, other),
              StatusIs(kDenied, HasSubstr("'translator'")));
  EXPECT_THAT(Unload(cluster_, "translator@3", other), StatusIs(kDenied, _));
  EXPECT_THAT(Sessions(cluster_.Describe()), ElementsAre("translator@3"));
  EXPECT_OK(Load(cluster_, "other-1", checkpoint_, other));
  EXPECT_OK(Unload(cluster_, "other-1@3", other));
  // A missing session gives the same error as a forbidden one.
  EXPECT_THAT(Unload(cluster_, "translator@9", other), StatusIs(kDenied, _));
}

TEST_F(CallerRightsTest, NoLinkLeadsOutOfTheDataRoots) {
  ServeTranslator();
  fs::create_directories(At("outside"));
  Spill(At("outside/train.tsv"), "de\teins\tone\n");
  fs::create_symlink(At("outside"), At("data/exit"));
  fs::create_symlink(At("outside/train.tsv"), At("data/team-a/link-1.tsv"));
  const auto denied = StatusIs(kDenied, HasSubstr("--data_roots"));
  for (const std::string& directory :
       {At("data/exit/run"), At("data/../outside/run"), At("outside"),
        At("data/team-a/new/../../exit/run")}) {
    TrainingJob job = Job("out", "team-a");
    job.checkpoint.directory = directory;
    EXPECT_THAT(Submit(cluster_, job, boss_), denied);
    EXPECT_THAT(Load(cluster_, "m", directory, boss_), denied);
  }
  TrainingJob job = Job("out", "team-a");
  // Files that match a pattern are checked, too.
  job.data.train_files.emplace_back().path = At("data/team-a/link-*.tsv");
  EXPECT_THAT(Submit(cluster_, job, boss_), denied);
  EXPECT_THAT(*ListDirectory(At("outside")), ElementsAre("train.tsv"));
  // A link that stays inside the roots is allowed.
  fs::create_symlink(checkpoint_, At("data/latest"));
  EXPECT_OK(Load(cluster_, "m", At("data/latest"), boss_));
}

TEST_F(CallerRightsTest, TeamsKeepToTheirJobs) {
  const Requester a = As("a", "train:" + At("data/team-a"));
  const Requester b = As("b", "train:" + At("data/team-b"));
  EXPECT_THAT(Submit(cluster_, Job("a", "team-a"), b),
              StatusIs(kDenied, HasSubstr("may train")));
  ASSERT_OK(Submit(cluster_, Job("a", "team-a"), a));
  ASSERT_OK(Submit(cluster_, Job("b", "team-b"), b));
  cluster_.Watch("b");
  cluster_.RestartCoordinator();
  Coordinator& coordinator = cluster_.coordinator();
  const auto list = [&](const Requester& who, const std::string& name = "") {
    v1::ListJobsRequest request;
    request.set_job(name);
    std::vector<std::string> names;
    const auto jobs = coordinator.ListJobs(request, who.caller);
    if (!jobs.ok()) return std::vector<std::string>{jobs.status().ToString()};
    for (const auto& job : jobs->jobs()) names.push_back(job.progress().job());
    return names;
  };
  EXPECT_THAT(list(a), ElementsAre("a"));
  EXPECT_THAT(list(b), ElementsAre("b"));
  EXPECT_THAT(list(boss_), ElementsAre("a", "b"));
  EXPECT_THAT(list(b, "a"), ElementsAre(HasSubstr("PERMISSION_DENIED")));
  EXPECT_THAT(coordinator.WatchJob("a", b.caller), StatusIs(kDenied, _));
  EXPECT_OK(coordinator.WatchJob("a", a.caller).status());
  EXPECT_THAT(coordinator.WatchJob("c", b.caller),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(Cancel(cluster_, "a", b), StatusIs(kDenied, _));
  EXPECT_OK(Cancel(cluster_, "a", a));
  // The record of another caller's job is not overwritten.
  TrainingJob same = Job("a", "team-b");
  EXPECT_THAT(Submit(cluster_, same, b, /*resume=*/true),
              StatusIs(kDenied, HasSubstr("another caller's")));
}

TEST_F(CallerRightsTest, DescribeShowsWhatIsTheirs) {
  ServeTranslator();
  ASSERT_OK(Load(cluster_, "other", checkpoint_, boss_));
  const auto describe = [&](const std::string& grants) {
    return cluster_.coordinator().Describe({}, As("x", grants).caller);
  };
  const std::string train_b = "train:" + At("data/team-b");
  EXPECT_THAT(Sessions(describe("translate")),
              ElementsAre("other@3", "translator@3"));
  EXPECT_THAT(Sessions(describe("translate:other")), ElementsAre("other@3"));
  EXPECT_THAT(Sessions(describe("admin:trans*")), ElementsAre("translator@3"));
  EXPECT_THAT(Sessions(describe(train_b)), IsEmpty());
  EXPECT_EQ(describe("translate").jobs_size(), 1);
  EXPECT_EQ(describe(train_b).jobs_size(), 0);
  EXPECT_EQ(describe("translate:other").jobs_size(), 0);
  EXPECT_EQ(describe("train:" + At("data")).jobs_size(), 1);
  // Clients find routers through Describe().
  EXPECT_EQ(describe("translate:other").members_size(), 2);
}

TEST(VisibleModelsTest, AwaitedModelsAreHiddenAsWell) {
  v1::DescribeResponse state;
  for (const char* name : {"mine", "theirs"}) state.add_awaited_models(name);
  HideModels(As("x", "translate:mine").caller, &state);
  EXPECT_THAT(state.awaited_models(), ElementsAre("mine"));
}

// Every act has one audit line, whatever its outcome.
TEST_F(CallerRightsTest, ActsHaveOneLineEach) {
  ::testing::internal::CaptureStderr();
  ServeTranslator();
  TrainingJob job = Job("mine", "team-a");
  job.serve_as = "translator";
  const Requester shop = As("shop", "train,admin:other");
  EXPECT_FALSE(Submit(cluster_, job, shop).ok());
  EXPECT_FALSE(Load(cluster_, "translator", checkpoint_, shop).ok());
  EXPECT_OK(Load(cluster_, "other", checkpoint_, shop));
  EXPECT_FALSE(Unload(cluster_, "translator@3", shop).ok());
  EXPECT_OK(Unload(cluster_, "other@3", shop));
  EXPECT_FALSE(Cancel(cluster_, std::string(1 << 20, 'x'), shop).ok());
  EXPECT_OK(Cancel(cluster_, "demo", shop));
  const std::vector<std::string> lines =
      AuditLines(::testing::internal::GetCapturedStderr());
  const auto line = [](const std::string& act, const std::string& caller,
                       const std::string& target, const std::string& outcome) {
    return AllOf(HasSubstr("\"act\":\"" + act + "\",\"caller\":\"" + caller +
                           "\",\"request_id\":\"request-of-" + caller +
                           "\",\"target\":\"" + target),
                 HasSubstr("\"outcome\":\"" + outcome),
                 SizeIs(::testing::Lt(5000)));
  };
  EXPECT_THAT(lines,
              ElementsAre(line("submit", "boss", "demo", "OK"),
                          line("serve_as", "boss", "translator", "OK"),
                          line("submit", "shop", "mine", "PERMISSION_DENIED"),
                          line("load", "shop", "translator", "PERMISSION_DEN"),
                          line("load", "shop", "other", "OK"),
                          line("unload", "shop", "translator@3", "PERMISSION"),
                          line("unload", "shop", "other@3", "OK"),
                          line("cancel", "shop", "xxx", "NOT_FOUND"),
                          line("cancel", "shop", "demo", "OK")));
  EXPECT_THAT(lines[1], HasSubstr("\"directory\":\"" + checkpoint_));
}

// A stored job without a submitter, on a coordinator that does or does not
// authenticate callers.
class OlderStoreTest : public CallerRightsTest,
                       public ::testing::WithParamInterface<bool> {
 protected:
  OlderStoreTest()
      : CallerRightsTest(CoordinatorOptions{.asks_callers = GetParam()}) {}
};

TEST_P(OlderStoreTest, ServesOnlyWhereEverybodyMay) {
  ServeTranslator();
  StoredJob old{.job = Job("old", "team-a"), .progress = {}};
  old.job.serve_as = "translator";
  old.job.steps = 4;
  old.progress.set_job("old");
  old.progress.set_state(v1::JOB_STATE_QUEUED);
  cluster_.RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         JobStore::Open(cluster_.scratch / "state"));
    ASSERT_OK(store->Submit(old));
  });
  const v1::JobProgress last = cluster_.Watch("old").back();
  EXPECT_EQ(last.step(), 4);
  EXPECT_TRUE(fs::exists(last.checkpoint_directory()));
  if (GetParam()) {
    EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
    EXPECT_THAT(last.status().message(), HasSubstr("cannot be served"));
  } else {
    EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED);
  }
  while (Sessions(cluster_.Describe()).empty()) std::this_thread::yield();
  EXPECT_THAT(Sessions(cluster_.Describe()),
              ElementsAre(GetParam() ? "translator@3" : "translator@4"));
}

INSTANTIATE_TEST_SUITE_P(AsksCallers, OlderStoreTest, ::testing::Bool());

// After a restart, a stored job keeps its submitter's rights but is checked
// against the data roots of the new coordinator.
TEST_F(CallerRightsTest, ARestartJudgesAgain) {
  StoredJob good{.job = Job("good", "team-a"), .progress = {}};
  good.job.serve_as = "translator";
  good.progress.set_job("good");
  good.progress.set_state(v1::JOB_STATE_QUEUED);
  good.submitter = As("shop", "train,admin:trans*");
  StoredJob bad = good;
  bad.job = Job("bad", "team-b");
  bad.job.checkpoint.directory = At("outside");
  bad.progress.set_job("bad");
  StoredJob thief = good;
  thief.job = Job("thief", "team-b");
  thief.job.serve_as = "translator";
  thief.progress.set_job("thief");
  thief.submitter = As("shop", "train");
  cluster_.RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         JobStore::Open(cluster_.scratch / "state"));
    for (const StoredJob* job : {&good, &bad, &thief}) {
      ASSERT_OK(store->Submit(*job));
    }
  });
  EXPECT_EQ(cluster_.Watch("good").back().state(), v1::JOB_STATE_SUCCEEDED);
  const v1::JobProgress denied = cluster_.Watch("bad").back();
  EXPECT_EQ(denied.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(denied.status().message(), HasSubstr("--data_roots"));
  EXPECT_FALSE(fs::exists(At("outside")));
  const v1::JobProgress stolen = cluster_.Watch("thief").back();
  EXPECT_EQ(stolen.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(stolen.status().message(), HasSubstr("needs the role admin"));
}

// When a mount hangs, calls that name a path on it wait, but other calls and
// gRPC's threads do not.
TEST(HungDiskTest, OnlyWhoNamesAPathThereWaits) {
  std::promise<void> reached, mounted;
  auto is_mounted = mounted.get_future().share();
  FakeCluster cluster(
      {.resolve = [&](absl::string_view path) -> absl::StatusOr<std::string> {
        if (path == "/hung/m") reached.set_value();
        if (absl::StartsWith(path, "/hung")) is_mounted.wait();
        return std::string(path);
      }});
  Coordinator& coordinator = cluster.coordinator();
  v1::LoadModelRequest load;
  load.set_name("m");
  load.set_checkpoint_directory("/hung/m");
  std::promise<void> loaded;
  coordinator.LoadModel(load, As("boss", "admin"),
                        [&](const auto&) { loaded.set_value(); });
  reached.get_future().wait();
  const Requester team = As("a", "train:/hung/a");
  EXPECT_TRUE(coordinator.ListJobs({}, team.caller).ok());
  EXPECT_EQ(coordinator.Describe({}, team.caller).jobs_size(), 0);
  EXPECT_THAT(coordinator.WatchJob("a", team.caller),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(Cancel(cluster, "a", team),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(Unload(cluster, "x", As("boss", "admin")),
              StatusIs(absl::StatusCode::kNotFound, _));
  mounted.set_value();
  loaded.get_future().wait();
}

// Opening a checkpoint may hang, too.
TEST(HungDiskTest, NothingServedWaitsForACheckpointThatIsOpened) {
  std::promise<void> reached, mounted;
  auto is_mounted = mounted.get_future().share();
  FakeCluster cluster({.open_to_serve = [&](const std::string& directory)
                           -> absl::StatusOr<ServableCheckpoint> {
    if (!absl::EndsWith(directory, "/hung")) return OpenToServe(directory);
    reached.set_value();
    is_mounted.wait();
    return absl::NotFoundError("it is empty");
  }});
  cluster.AddRouter("r");
  FakeMember& first = cluster.AddWorker("w0");
  ASSERT_OK(cluster.Submit(cluster.MakeJob("demo")));
  const std::string trained =
      cluster.Watch("demo").back().checkpoint_directory();
  ASSERT_OK(cluster.LoadModel("m", "1", trained));
  auto loading = std::async(std::launch::async, [&] {
    return cluster.LoadModel("m", "2", cluster.scratch / "hung");
  });
  reached.get_future().wait();
  first.Leave();
  cluster.AddWorker("w1").WaitFor("load m@1");
  EXPECT_OK(cluster.Submit(cluster.MakeJob("next")));
  // The load can be given up.
  EXPECT_OK(cluster.UnloadModel("m@2"));
  mounted.set_value();
  EXPECT_THAT(loading.get(), StatusIs(absl::StatusCode::kCancelled,
                                      HasSubstr("was unloaded")));
  EXPECT_THAT(Sessions(cluster.Describe()), ElementsAre("m@1"));
}

// The coordinator comes back although the disk of a job's files hangs.
TEST(HungDiskTest, ARestartWaitsForNoDiskOfAJob) {
  std::atomic<bool> hung = false;
  std::promise<void> mounted;
  auto is_mounted = mounted.get_future().share();
  FakeCluster cluster(
      {.resolve = [&](absl::string_view path) -> absl::StatusOr<std::string> {
        if (hung) is_mounted.wait();
        return CanonicalPath(path);
      }},
      /*keep=*/true);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("demo")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("later")));
  cluster.RestartCoordinator([&] { hung = true; });
  EXPECT_EQ(cluster.Describe().jobs_size(), 2);
  EXPECT_OK(cluster.Cancel("demo"));
  mounted.set_value();
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("later").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_CANCELLED);
}

// A folder that is missing at a restart, such as a late mount, fails no job.
TEST_F(CallerRightsTest, AFolderThatIsNotThereYetFailsNoJob) {
  fs::create_symlink("home", At("home"));
  StoredJob job{.job = Job("good", "team-a"), .progress = {}};
  job.progress.set_job("good");
  job.progress.set_state(v1::JOB_STATE_QUEUED);
  job.submitter = As("a", "train:" + At("home"));
  cluster_.RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         JobStore::Open(cluster_.scratch / "state"));
    ASSERT_OK(store->Submit(job));
  });
  EXPECT_EQ(cluster_.Watch("good").back().state(), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace gshard
