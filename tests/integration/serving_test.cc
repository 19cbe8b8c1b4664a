// A model trained on one cluster is served identically by any other, and calls
// that clients abandon leave nothing behind.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <filesystem>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class ServingTest : public ::testing::Test {
 protected:
  // Trains one short job for all tests, on four workers.
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    TrainingJob job = NamesJob(directory_->path());
    job.steps = 30;
    Cluster cluster(2, 4);
    cluster.WaitForMembers();
    const auto lines = cluster.Train(job);
    ASSERT_TRUE(lines.ok()) << lines.status();
    const auto path = LatestCheckpoint(directory_->path());
    ASSERT_TRUE(path.ok()) << path.status();
    *checkpoint_ = *path;
  }
  static void TearDownTestSuite() { delete directory_; }

  static v1::TranslateRequest Request() {
    v1::TranslateRequest request;
    request.set_model("names");
    for (const char* text :
         {"Deutschland", "Vereinigte Staaten", "Niederländisch", "Euro",
          "Amerikanisch-Samoa", "St. Pierre und Miquelon"}) {
      v1::Sentence* sentence = request.add_sentences();
      sentence->set_text(text);
      sentence->set_source_language("de");
    }
    request.mutable_options()->set_beam_size(3);
    request.mutable_options()->set_n_best(2);
    return request;
  }

  static absl::StatusOr<v1::TranslateResponse> Translate(
      Cluster& cluster, const v1::TranslateRequest& request, int router = 0) {
    v1::TranslateResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    RETURN_IF_ERROR(FromGrpcStatus(
        cluster.Translation(router)->Translate(&context, request, &response)));
    return response;
  }

  static TemporaryDirectory* directory_;
  static std::string* const checkpoint_;
};

TemporaryDirectory* ServingTest::directory_ = nullptr;
std::string* const ServingTest::checkpoint_ = new std::string;

TEST_F(ServingTest, AnyNumberOfWorkersGivesTheSameTranslations) {
  std::string first;
  for (const int workers : {1, 2, 3, 8}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers"));
    Cluster cluster(workers == 2 ? 2 : 1, workers);
    ASSERT_OK(cluster.Load("names", *checkpoint_));
    ASSERT_OK_AND_ASSIGN(v1::TranslateResponse response,
                         Translate(cluster, Request()));
    ASSERT_EQ(response.results_size(), Request().sentences_size());
    EXPECT_EQ(response.results(0).hypotheses_size(), 2);
    const std::string bytes = response.SerializeAsString();
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
    if (workers == 2) {
      ASSERT_OK_AND_ASSIGN(response, Translate(cluster, Request(), 1));
      EXPECT_EQ(response.SerializeAsString(), first);
    }
  }
}

TEST_F(ServingTest, SentenceTranslatesTheSameAloneAndInAnyCall) {
  Cluster cluster(1, 2);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  const v1::TranslateRequest together = Request();
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse batch,
                       Translate(cluster, together));
  for (int i = 0; i < together.sentences_size(); ++i) {
    v1::TranslateRequest alone = together;
    alone.clear_sentences();
    *alone.add_sentences() = together.sentences(i);
    ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                         Translate(cluster, alone));
    EXPECT_EQ(response.results(0).SerializeAsString(),
              batch.results(i).SerializeAsString());
  }
}

TEST_F(ServingTest, AbandonedCallsLeaveNothingBehind) {
  Cluster cluster(1, 2);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  v1::TranslateRequest request = Request();
  request.mutable_options()->set_beam_size(32);
  request.mutable_options()->set_n_best(32);
  request.mutable_options()->set_max_length(64);
  const auto stub = cluster.Translation();
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    v1::TranslateResponse response;
    grpc::Status status;
    auto call = stub->AsyncTranslate(&context, request, &queue);
    call->Finish(&response, &status, nullptr);
    context.TryCancel();
    void* tag;
    bool ok;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] {
    const std::string metrics = cluster.router(0).Metrics();
    return metrics.find("gshard_requests_in_flight 0\n") != std::string::npos &&
           metrics.find("gshard_requests_queued 0\n") != std::string::npos;
  })) << cluster.router(0).Metrics();
  // Abandoned calls have freed their slots.
  EXPECT_OK(Translate(cluster, Request()));
  // All rows went through shared memory instead of sockets.
  for (const std::string& metrics :
       {cluster.router(0).Metrics(), cluster.worker(0).Metrics()}) {
    EXPECT_THAT(metrics,
                ::testing::Not(HasSubstr("gshard_shared_memory_bytes 0\n")));
  }
}

TEST_F(ServingTest, LosingTheWorkersIsUnavailableAndTheRouterLivesOn) {
  Cluster cluster(1, 1);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  ASSERT_OK(Translate(cluster, Request()));
  cluster.worker(0).Drain(std::chrono::seconds(5));
  EXPECT_THAT(Translate(cluster, Request()),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  v1::TranslateRequest unknown = Request();
  unknown.set_model("nothing");
  EXPECT_THAT(Translate(cluster, unknown),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
}

// Whether grpc.health.v1 reports the router's translations as SERVING. The
// messages used here have the same fields as those of the health service.
bool IsReady(Cluster& cluster) {
  const auto channel = cluster.Channel(cluster.router(0).address());
  grpc::TemplatedGenericStub<v1::WatchJobRequest, v1::Status> stub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_job(v1::TranslationService::service_full_name());
  v1::Status response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request,
                 &response,
                 [&](grpc::Status status) { done.set_value(status); });
  return done.get_future().get().ok() && response.code() == 1;
}

TEST_F(ServingTest, IsReadyWhenAndAsLongAsAllExpertsWereReached) {
  Cluster cluster(1, 2);
  cluster.WaitForMembers();
  EXPECT_FALSE(IsReady(cluster));
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  EXPECT_TRUE(IsReady(cluster));
  // Clients need no coordinator.
  cluster.RestartCoordinator();
  EXPECT_TRUE(IsReady(cluster));
  // Answers without one expert are degraded, which beats an outage.
  cluster.WaitForMembers();
  ASSERT_TRUE(Eventually([&] {  // then routers hear of lost workers
    const v1::DescribeResponse state = cluster.Describe();
    return state.sessions_size() == 1 &&
           state.sessions(0).state() == v1::SessionInfo::READY;
  }));
  cluster.DropWorker(0);
  EXPECT_TRUE(IsReady(cluster));
  // Without any worker nothing can be answered.
  cluster.DropWorker(0);
  EXPECT_TRUE(Eventually([&] { return !IsReady(cluster); }));
  cluster.AddWorker("another");
  EXPECT_TRUE(Eventually([&] { return IsReady(cluster); }));
}

TEST_F(ServingTest, KnowsByItselfThatItIsNotReady) {
  Cluster cluster(1, 2);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  cluster.RestartCoordinator([&] {
    cluster.DropWorker(0);
    cluster.DropWorker(0);
    // The first call discovers the loss.
    EXPECT_THAT(Translate(cluster, Request()),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker")));
    EXPECT_TRUE(Eventually([&] { return !IsReady(cluster); }));
  });
  cluster.AddWorker("another");
  EXPECT_TRUE(Eventually([&] { return IsReady(cluster); }));
  EXPECT_OK(Translate(cluster, Request()));
}

TEST_F(ServingTest, ANewVersionFailsNoCall) {
  Cluster cluster(2, 2);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse before,
                       Translate(cluster, Request()));
  const std::string next = directory_->path() + "/next";
  std::filesystem::copy(*checkpoint_, next,
                        std::filesystem::copy_options::recursive);
  std::future<absl::Status> loading = std::async(
      std::launch::async, [&] { return cluster.Load("names", next); });
  bool loaded = false;
  for (int router = 0; !loaded; router = 1 - router) {
    loaded =
        loading.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    ASSERT_OK_AND_ASSIGN(v1::TranslateResponse response,
                         Translate(cluster, Request(), router));
    if (response.model() != before.model()) {
      EXPECT_EQ(response.model(), before.model() + "-2");
      // A router serves the new version only once the other has it, too.
      v1::TranslateRequest request = Request();
      request.set_model(response.model());
      EXPECT_OK(Translate(cluster, request, 1 - router));
      response.set_model(before.model());
    }
    EXPECT_EQ(response.SerializeAsString(), before.SerializeAsString());
  }
  ASSERT_OK(loading.get());
  for (const int router : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                         Translate(cluster, Request(), router));
    EXPECT_EQ(response.model(), before.model() + "-2");
  }
}

TEST_F(ServingTest, ServesOnWithoutACoordinatorAndWithTheNextOne) {
  Cluster cluster(1, 2);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse expected,
                       Translate(cluster, Request()));
  cluster.RestartCoordinator();
  const auto taken_up = [&] {
    const v1::DescribeResponse state = cluster.Describe();
    return state.sessions_size() == 1 &&
           state.sessions(0).state() == v1::SessionInfo::READY &&
           state.sessions(0).routers_size() == 1 &&
           state.sessions(0).placement().workers_size() == 2;
  };
  bool before = false;
  do {
    before = taken_up();
    ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                         Translate(cluster, Request()));
    EXPECT_FALSE(response.degraded());
    EXPECT_EQ(response.SerializeAsString(), expected.SerializeAsString());
  } while (!before);
}

TEST_F(ServingTest, VocabulariesOfTheirOwnForSourceAndTarget) {
  const TemporaryDirectory directory;
  TrainingJob job = NamesJob(directory.path());
  job.model.shared_vocabulary = false;
  job.model.target_vocabulary_size = 200;
  job.steps = 2;
  Cluster cluster(1, 2);
  ASSERT_OK(cluster.Train(job));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       LatestCheckpoint(directory.path()));
  ASSERT_OK(cluster.Load("names", path));
  EXPECT_OK(Translate(cluster, Request()));
}

TEST_F(ServingTest, DamagedCheckpointIsRefusedByName) {
  const TemporaryDirectory copy;
  const std::string damaged = copy.path() + "/step-00000030";
  std::filesystem::copy(*checkpoint_, damaged,
                        std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::directory_iterator(damaged)) {
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::resize_file(entry.path(),
                                   std::filesystem::file_size(entry) - 1);
      break;
    }
  }
  Cluster cluster(1, 1);
  EXPECT_THAT(cluster.Load("names", damaged),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("safetensors")));
  EXPECT_THAT(cluster.Load("names", copy.path() + "/step-00000031"),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
}

// The number of calls that a worker has run.
double CallsOf(Cluster& cluster, int worker) {
  double sum = 0;
  const std::string metrics = cluster.worker(worker).Metrics();
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    double value;
    if (absl::StartsWith(line, "gshard_expert_calls_total{") &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return sum;
}

bool Says(Cluster& cluster, const std::string& metric) {
  return cluster.router(0).Metrics().find(metric + "\n") != std::string::npos;
}

// Once the router sees the cancellation, the worker runs at most the calls of
// the step in progress.
TEST_F(ServingTest, AnAbandonedCallCostsWorkersAStepAtMost) {
  Cluster cluster(1, 1);
  ASSERT_OK(cluster.Load("names", *checkpoint_));
  v1::TranslateRequest request = Request();
  request.mutable_options()->set_beam_size(32);
  request.mutable_options()->set_max_length(64);
  for (v1::Sentence& sentence : *request.mutable_sentences()) {
    sentence.set_text("Vereinigte Staaten und St. Pierre und Miquelon");
  }
  ASSERT_OK(Translate(cluster, request));
  const double whole = CallsOf(cluster, 0);
  ASSERT_GE(whole, 6);
  int stopped = 0;  // some calls may finish before they are cancelled
  for (int i = 0; i < 20 && stopped < 3; ++i) {
    const double before = CallsOf(cluster, 0);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    v1::TranslateResponse response;
    grpc::Status status;
    const auto stub = cluster.Translation();
    auto call = stub->AsyncTranslate(&context, request, &queue);
    call->Finish(&response, &status, nullptr);
    EXPECT_TRUE(Eventually([&] { return CallsOf(cluster, 0) > before + 1; }));
    context.TryCancel();
    EXPECT_TRUE(Eventually(
        [&] { return Says(cluster, "gshard_requests_in_flight 0"); }));
    const double then = CallsOf(cluster, 0);
    EXPECT_TRUE(
        Eventually([&] { return Says(cluster, "gshard_batch_sentences 0"); }));
    void* tag;
    bool ok;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    // The decoder has one MoE layer.
    EXPECT_LE(CallsOf(cluster, 0), then + 1);
    stopped += then - before < whole - 2;
  }
  EXPECT_GT(stopped, 0);
}

}  // namespace
}  // namespace gshard
