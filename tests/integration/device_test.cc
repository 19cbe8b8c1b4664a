// Routers and workers that compute on a fake device with the CPU's kernels give
// the bits of the CPU.

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// The roles that have a device.
struct Devices {
  bool routers = false;
  bool workers = false;
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
};

void Fill(Cluster& cluster, const Devices& devices) {
  for (const char* name : {"router-0", "router-1"}) {
    cluster.AddRouter(name, nullptr, /*debug_calls=*/true,
                      devices.routers ? devices.device : nullptr);
  }
  for (const char* name : {"worker-0", "worker-1"}) {
    cluster.AddWorker(name, devices.workers ? devices.device : nullptr);
  }
  cluster.WaitForMembers();
}

struct Outcome {
  std::map<int64_t, double> losses;       // by step
  std::map<std::string, Tensor> tensors;  // of the last checkpoint
  v1::TranslateResponse translations;
  v1::TranslateResponse translations_by_int8;
  v1::ExplainRoutingResponse routing;
};

void TrainAndServe(const Devices& devices, ReduceWay reduce, Outcome* outcome) {
  TemporaryDirectory directory;
  TrainingJob job = NamesJob(directory.path());
  job.min_routers = job.min_workers = 2;
  job.data.dev_path = "tests/data/names.tsv";
  job.steps = 3;
  Cluster cluster(0, 0, reduce);
  // The first members register the operators, which kernels need.
  {
    Cluster first(1, 1);
    first.WaitForMembers();
  }
  RegisterAllFakeDeviceKernels();
  Fill(cluster, devices);
  ASSERT_OK_AND_ASSIGN(const auto lines, cluster.Train(job));
  for (const auto& [step, line] : lines) outcome->losses[step] = line.loss();
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       LatestCheckpoint(directory.path()));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  for (const TensorEntry& entry : reader->manifest().tensors) {
    ASSERT_OK_AND_ASSIGN(outcome->tensors[entry.name],
                         reader->Read(entry.name));
  }

  ASSERT_OK(cluster.Load("names", path));
  v1::TranslateRequest request;
  request.set_model("names");
  for (const char* text : {"Deutschland", "St. Pierre und Miquelon"}) {
    v1::Sentence* const sentence = request.add_sentences();
    sentence->set_text(text);
    sentence->set_source_language("de");
  }
  request.mutable_options()->set_beam_size(3);
  request.mutable_options()->set_n_best(3);
  request.mutable_options()->set_max_length(20);
  grpc::ClientContext context, int8_context, explain_context;
  SetDeadline(context);
  ASSERT_OK(FromGrpcStatus(cluster.Translation()->Translate(
      &context, request, &outcome->translations)));
  // The same checkpoint with other weights.
  ASSERT_OK(
      cluster.Load("names8", path, /*replicas=*/0, v1::ModelConfig::INT8));
  request.set_model("names8");
  SetDeadline(int8_context);
  ASSERT_OK(FromGrpcStatus(cluster.Translation()->Translate(
      &int8_context, request, &outcome->translations_by_int8)));
  v1::ExplainRoutingRequest explain;
  explain.set_model("names");
  *explain.mutable_sentence() = request.sentences(0);
  explain.set_target("Germany");
  SetDeadline(explain_context);
  ASSERT_OK(FromGrpcStatus(cluster.Translation()->ExplainRouting(
      &explain_context, explain, &outcome->routing)));
  EXPECT_EQ(devices.device->runs() > 0, devices.routers || devices.workers);
}

TEST(DeviceTest, RoutersAndWorkersHaveTheCpusBits) {
  Outcome on_cpu;
  TrainAndServe({}, ReduceWay::kCoordinator, &on_cpu);
  ASSERT_FALSE(on_cpu.tensors.empty());
  ASSERT_EQ(on_cpu.translations.results_size(), 2);
  ASSERT_EQ(on_cpu.translations_by_int8.results_size(), 2);
  for (const auto& [routers, workers, reduce] :
       {std::tuple(true, true, ReduceWay::kCoordinator),
        std::tuple(true, false, ReduceWay::kGloo),
        std::tuple(false, true, ReduceWay::kCoordinator)}) {
    SCOPED_TRACE(absl::StrCat("routers ", routers, ", workers ", workers));
    Outcome outcome;
    TrainAndServe({.routers = routers, .workers = workers}, reduce, &outcome);
    EXPECT_EQ(outcome.losses, on_cpu.losses);
    ASSERT_EQ(outcome.tensors.size(), on_cpu.tensors.size());
    for (const auto& [name, tensor] : outcome.tensors) {
      EXPECT_TRUE(TensorEqual(tensor, on_cpu.tensors.at(name))) << name;
    }
    EXPECT_EQ(outcome.translations.DebugString(),
              on_cpu.translations.DebugString());
    EXPECT_EQ(outcome.translations_by_int8.DebugString(),
              on_cpu.translations_by_int8.DebugString());
    EXPECT_EQ(outcome.routing.DebugString(), on_cpu.routing.DebugString());
  }
}

TEST(DeviceTest, ARouterEndsIfItsDeviceIsLost) {
  Devices devices{.routers = true};
  Cluster cluster(0, 0);
  Fill(cluster, devices);
  const v1::DescribeResponse described = cluster.Describe();
  for (const v1::Member& member : described.members()) {
    EXPECT_EQ(member.device(),
              member.role() == v1::MEMBER_ROLE_ROUTER ? "cuda" : "cpu");
  }
  devices.device->lost = true;
  EXPECT_THAT(cluster.router(0).Wait(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the fake device is lost")));
}

}  // namespace
}  // namespace gshard
