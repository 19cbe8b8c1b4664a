// The models of a file are served as it says; other models are left alone.

#include "services/coordinator/serving/models_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/services/coordinator/served_models_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ModelRequest Model(const std::string& name, const std::string& checkpoint,
                   int64_t replicas = 1) {
  return {.name = name,
          .checkpoint = checkpoint,
          .version = "",
          .replicas = replicas};
}

TEST(PlanModelsTest, ServesWhatIsNewAndUnloadsWhatIsGone) {
  const std::map<std::string, ModelRequest> before = {{"a", Model("a", "/1")},
                                                      {"b", Model("b", "/1")},
                                                      {"c", Model("c", "/1")}};
  EXPECT_EQ(
      PlanModels(before, {Model("a", "/1"), Model("b", "/2"),
                          Model("c", "/1", 2), Model("d", "/1")}),
      (ModelsChange{{Model("b", "/2"), Model("c", "/1", 2), Model("d", "/1")},
                    {}}));
  EXPECT_EQ(PlanModels(before, {}), (ModelsChange{{}, {"a", "b", "c"}}));
}

class ModelsFileLookTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const ScratchDirectory scratch_;
  const std::string path_ = scratch_ / "models.textproto";
  ModelsFile file_{path_, [](std::string* path) -> absl::Status {
                     if (*path == "/secret") {
                       return absl::PermissionDeniedError("not there");
                     }
                     *path = "/resolved" + *path;
                     return absl::OkStatus();
                   }};
};

TEST_F(ModelsFileLookTest, SaysWhatIsNewOnceItHasSettled) {
  EXPECT_THAT(file_.Look(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("models.text")));
  Write("models { name: 'a' checkpoint: '/1' }");
  EXPECT_THAT(*file_.Look(),
              Optional(ElementsAre(Model("a", "/resolved/1", 0))));
  EXPECT_EQ(*file_.Look(), std::nullopt);
  // An empty file may be a write in progress.
  Write("");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  Write("models { name: 'a' checkpoint: '/2' }");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  EXPECT_THAT(*file_.Look(),
              Optional(ElementsAre(Model("a", "/resolved/2", 0))));
  Write("");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  EXPECT_THAT(*file_.Look(), Optional(IsEmpty()));
}

// A link may be swapped, as in mounted ConfigMaps: the content counts, not the
// file.
TEST_F(ModelsFileLookTest, ALinkMayBeSwapped) {
  for (const char* version : {"1", "2"}) {
    std::filesystem::create_directory(scratch_ / version);
    std::ofstream(scratch_ / version + "/models.textproto")
        << "models { name: 'a' checkpoint: '/" << version << "' }";
  }
  std::filesystem::create_symlink("1", scratch_ / "data");
  std::filesystem::create_symlink("data/models.textproto", path_);
  EXPECT_THAT(*file_.Look(), Optional(SizeIs(1)));
  std::filesystem::create_symlink("2", scratch_ / "new");
  std::filesystem::rename(scratch_ / "new", scratch_ / "data");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  EXPECT_THAT(*file_.Look(),
              Optional(ElementsAre(Model("a", "/resolved/2", 0))));
}

TEST_F(ModelsFileLookTest, AnErrorLastsUntilItIsMended) {
  Write("models { name: 'a' checkpoint: '/secret' }");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(file_.Look(), StatusIs(absl::StatusCode::kPermissionDenied,
                                       HasSubstr("checkpoint of model 'a'")));
  }
  Write("models {");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  EXPECT_THAT(file_.Look(), StatusIs(kInvalid, HasSubstr("line 1")));
  Write("models { name: 'a' checkpoint: '/1' }");
  EXPECT_EQ(*file_.Look(), std::nullopt);
  EXPECT_THAT(*file_.Look(), Optional(SizeIs(1)));
}

class ModelsFileTest : public ServedModelsTest {
 protected:
  ~ModelsFileTest() override { cluster_ = nullptr; }  // it uses the metrics

  // Starts a router, two workers and a coordinator that follows the file.
  void Start(const std::string& text,
             const FakeMember::Intercept& intercept = nullptr) {
    Write(text);
    rejected_ = metrics_.AddGauge("gshard_rejected", "");
    of_file_ = metrics_.AddGaugeFamily("gshard_of_file", "", {"state"});
    cluster_ = std::make_unique<FakeCluster>(
        CoordinatorOptions{.min_workers = 2,  // else experts move later
                           .models_file = path_,
                           .models_file_interval = absl::Milliseconds(1),
                           .models_file_rejected = rejected_,
                           .models_file_models = of_file_,
                           .watch_interval = absl::Milliseconds(1),
                           .serving_retry = absl::Milliseconds(1)},
        /*keep=*/true);
    router_ = &cluster_->AddRouter("r");
    for (const char* worker : {"w0", "w1"}) {
      workers_.push_back(&cluster_->AddWorker(worker, intercept));
    }
  }
  // Replaces the file by rename, so that it is never partial.
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  static std::string Entry(const std::string& name, int replicas = 1,
                           const std::string& more = "") {
    return absl::StrCat("models { name: '", name, "' checkpoint: '",
                        *directory_, "' replicas: ", replicas, more, " }\n");
  }
  static std::string VersionEntry(const std::string& name,
                                  const std::string& version) {
    return absl::StrCat("models { name: '", name, "' checkpoint: '",
                        *directory_, "' version: '", version, "' }\n");
  }
  // Waits until a restart would know of `models` models of the file.
  void AwaitStored(int models) {
    while (of_file_.With({"served"}).Value() != models) {
      std::this_thread::yield();
    }
  }
  // Waits until exactly these sessions are served.
  void Await(const std::vector<std::string>& sessions) {
    while (true) {
      std::vector<std::string> served;
      const v1::DescribeResponse state = cluster_->Describe();
      for (const v1::SessionInfo& info : state.sessions()) {
        if (info.state() == v1::SessionInfo::READY) {
          served.push_back(absl::StrCat(info.session(), " ", info.replicas()));
        }
      }
      if (served == sessions) return;
      std::this_thread::yield();
    }
  }

  const ScratchDirectory scratch_;
  const std::string path_ = scratch_ / "models.textproto";
  Metrics metrics_{"coordinator", "1"};
  Gauge rejected_;
  GaugeFamily of_file_;
};

TEST_F(ModelsFileTest, IsFollowedAndOthersAreLeftAlone) {
  Start(Entry("a"));
  Await({"a@3 1"});
  ASSERT_OK(cluster_->LoadModel("mine", "1", *directory_));
  Write(Entry("a", 2) + Entry("b"));
  Await({"a@3 2", "b@3 1", "mine@1 1"});
  Write(Entry("b"));
  Await({"b@3 1", "mine@1 1"});
  // An invalid file changes nothing.
  Write(Entry("a") + "models {");
  while (rejected_.Value() == 0) std::this_thread::yield();
  Await({"b@3 1", "mine@1 1"});
  Write(Entry("b", 2));
  Await({"b@3 2", "mine@1 1"});
  EXPECT_EQ(rejected_.Value(), 0);
}

TEST_F(ModelsFileTest, ANewVersionReplacesTheOneBefore) {
  Start(Entry("a"));
  Await({"a@3 1"});
  // The same checkpoint as another version.
  Write(VersionEntry("a", "new"));
  Await({"a@new 1"});
  router_->WaitFor("unload a@3");
}

TEST_F(ModelsFileTest, ItsNamesAreNotLoadedOrUnloadedOtherwise) {
  Start(Entry("a"));
  Await({"a@3 1"});
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("models.textproto says"));
  EXPECT_THAT(cluster_->LoadModel("a", "1", *directory_), refused);
  EXPECT_THAT(cluster_->UnloadModel("a@3"), refused);
  EXPECT_THAT(Rollback("a"), refused);
  // A model loaded otherwise becomes the file's once the file names it.
  ASSERT_OK(cluster_->LoadModel("b", "", *directory_));
  Write(Entry("b", 2));
  Await({"b@3 2"});
  EXPECT_THAT(cluster_->UnloadModel("b@3"), refused);
  Write("");
  Await({});
  ASSERT_OK(cluster_->LoadModel("a", "1", *directory_));
}

TEST_F(ModelsFileTest, WhatHasGoneWhileThereWasNoCoordinatorIsUnloaded) {
  Start(Entry("a") + Entry("b"));
  Await({"a@3 1", "b@3 1"});
  ASSERT_OK(cluster_->LoadModel("mine", "1", *directory_));
  cluster_->RestartCoordinator([&] { Write(Entry("b", 2)); });
  Await({"b@3 2", "mine@1 1"});
  AwaitStored(1);
  // A missing file changes nothing.
  cluster_->RestartCoordinator([&] { std::filesystem::remove(path_); });
  Await({"b@3 2", "mine@1 1"});
  while (rejected_.Value() == 0) std::this_thread::yield();
  Await({"b@3 2", "mine@1 1"});
}

TEST_F(ModelsFileTest, WithoutAFileItsNamesAreFree) {
  Start(Entry("a"));
  Await({"a@3 1"});
  AwaitStored(1);
  cluster_->RestartCoordinator(
      [&] { cluster_->options().models_file.clear(); });
  Await({"a@3 1"});
  ASSERT_OK(cluster_->LoadModel("a", "1", *directory_));
  ASSERT_OK(cluster_->UnloadModel("a@1"));
}

// What a restart restores is the file's with all that the file says of it.
TEST_F(ModelsFileTest, ARestartLoadsNothingAgain) {
  const std::string text =
      absl::StrCat("models { name: 'a' checkpoint: '", *directory_,
                   "' version: 'v' replicas: 1 weights: INT8 }\n", Entry("c"));
  Start(text);
  Await({"a@v 1", "c@3 1"});
  AwaitStored(2);
  cluster_->RestartCoordinator([&] {
    Write(text + Entry("b"));
    ::testing::internal::CaptureStderr();
  });
  Await({"a@v 1", "b@3 1", "c@3 1"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("\"models\":3,\"to_serve\":1,\"to_unload\":0"));
}

TEST_F(ModelsFileTest, WhatARestartCannotServeWaits) {
  const std::string checkpoint = scratch_ / "checkpoint";
  const std::string moved = checkpoint + ".moved";
  std::filesystem::copy(*directory_, checkpoint,
                        std::filesystem::copy_options::recursive);
  Start(absl::StrCat("models { name: 'a' checkpoint: '", checkpoint,
                     "' replicas: 1 }"));
  Await({"a@3 1"});
  AwaitStored(1);
  cluster_->RestartCoordinator(
      [&] { std::filesystem::rename(checkpoint, moved); });
  while (of_file_.With({"waiting"}).Value() != 1) std::this_thread::yield();
  EXPECT_EQ(cluster_->Describe().sessions_size(), 0);
  EXPECT_THAT(cluster_->Describe().awaited_models(), ElementsAre("a"));
  std::filesystem::rename(moved, checkpoint);
  AwaitStored(1);
  Await({"a@3 1"});
  EXPECT_THAT(cluster_->Describe().awaited_models(), IsEmpty());
}

// The file says another version when the next coordinator starts.
TEST_F(ModelsFileTest, WhatServesStaysWhileItsSuccessorCannotBeLoaded) {
  std::atomic<int> refusals{0};
  Start(VersionEntry("a", "old"),
        [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
          if (!command.load_session().session().starts_with("a@new")) {
            return std::nullopt;
          }
          ++refusals;
          return ReplyWith(absl::ResourceExhaustedError("no room"));
        });
  Await({"a@old 1"});
  AwaitStored(1);
  cluster_->RestartCoordinator([&] { Write(VersionEntry("a", "new")); });
  while (refusals < 20) std::this_thread::yield();
  std::vector<FakeMember*> members = workers_;
  members.push_back(router_);
  for (const FakeMember* member : members) {
    EXPECT_THAT(member->commands(), Not(Contains("unload a@old")));
  }
  // It is not only left alone.
  Await({"a@old 1"});
  cluster_ = nullptr;  // its workers use what is here
}

TEST_F(ModelsFileTest, WhatCannotBeServedIsTriedAgain) {
  const std::string later = scratch_ / "later";
  std::filesystem::create_directory(later);
  Start(absl::StrCat("models { name: 'a' checkpoint: '", later, "' }\n",
                     Entry("b")));
  Await({"b@3 1"});
  std::filesystem::copy(*directory_, scratch_ / "copy",
                        std::filesystem::copy_options::recursive);
  std::filesystem::rename(scratch_ / "copy", later);
  Await({"a@3 1", "b@3 1"});
}

// What the file said before is still being loaded when it changes.
class ChangedModelsFileTest : public ModelsFileTest {
 protected:
  // Returns once the file is followed, in which "c" is new.
  void AwaitC() {
    const auto has_c = [this] {
      const v1::DescribeResponse state = cluster_->Describe();
      for (const v1::SessionInfo& info : state.sessions()) {
        if (info.session() == "c@3") return true;
      }
      return false;
    };
    while (!has_c()) std::this_thread::yield();
  }
  // The file says `before` of "a", which is loaded as `session`, and then
  // `after`, which is served as `served`.
  void ExpectNotTriedAgain(const std::string& before,
                           const std::string& session, const std::string& after,
                           const std::string& served) {
    std::promise<void> reached, release;
    auto released = release.get_future().share();
    std::atomic<int> loads{0};
    Start(Entry("b"));
    Await({"b@3 1"});
    cluster_->AddWorker(
        "w2",
        [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
          const std::string& loaded = command.load_session().session();
          if (!absl::StartsWith(loaded, "a@")) return std::nullopt;
          const bool fails = absl::StartsWith(loaded, session + "#");
          if (fails && loads++ == 0) reached.set_value();
          released.wait();
          if (!fails) return std::nullopt;
          return ReplyWith(absl::DataLossError("damaged"));
        });
    WaitForMembers(4);
    Write(before + Entry("b"));
    reached.get_future().wait();
    Write(after + Entry("b") + Entry("c"));
    AwaitC();
    release.set_value();
    Await({served, "b@3 1", "c@3 1"});
    ASSERT_OK(cluster_->LoadModel("mine", "1", *directory_));
    EXPECT_EQ(loads, 1);
    cluster_ = nullptr;  // its worker uses what is here
  }
};

TEST_F(ChangedModelsFileTest, AnotherVersionIsNotTriedAgain) {
  ExpectNotTriedAgain(Entry("a", 3, " version: 'bad'"), "a@bad", Entry("a"),
                      "a@3 1");
}

TEST_F(ChangedModelsFileTest, GoingBackEndsTheLoadOfTheNextVersion) {
  std::promise<void> reached, release;
  auto released = release.get_future().share();
  std::atomic<bool> came = false;
  Start(VersionEntry("a", "old"),
        [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
          if (command.load_session().session().starts_with("a@new")) {
            if (!came.exchange(true)) reached.set_value();
            released.wait();
          }
          return std::nullopt;
        });
  Await({"a@old 1"});
  Write(VersionEntry("a", "new"));
  reached.get_future().wait();
  Write(VersionEntry("a", "old") + Entry("c"));
  AwaitC();
  const v1::DescribeResponse state = cluster_->Describe();
  for (const v1::SessionInfo& info : state.sessions()) {
    EXPECT_NE(info.session(), "a@new");
  }
  release.set_value();
  Await({"a@old 1", "c@3 1"});
  EXPECT_THAT(router_->commands(), Not(Contains("load a@new")));
  cluster_ = nullptr;  // its workers use what is here
}

TEST_F(ChangedModelsFileTest, OtherWeightsAreNotTriedAgain) {
  ExpectNotTriedAgain(Entry("a", 3), "a@3", Entry("a", 3, " weights: INT8"),
                      "a@3-int8 3");
}

}  // namespace
}  // namespace gshard
