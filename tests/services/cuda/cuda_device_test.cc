// Tests CudaDevice and the kernels of its back end on a fake GPU.

#include "services/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expert_worker/worker_session.h"
#include "services/cuda/kernels/launch.h"
#include "services/cuda/ops/cuda_kernels.h"
#include "services/cuda/ops/open_device.h"
#include "services/ops/elementwise.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/services/cuda/fake_cuda.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using CudaDeviceTest = GpuTest;

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_->name(), "cuda:1");
  EXPECT_EQ(device_->backend(), Backend::kCuda);
  EXPECT_EQ(device_->memory_bytes(), int64_t{1} << 30);
}

TEST_F(CudaDeviceTest, IsOpenedByItsName) {
  ASSERT_OK_AND_ASSIGN(const auto cpu, OpenDevice("cpu"));
  EXPECT_EQ(cpu, nullptr);
  for (const char* name : {"", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:x"}) {
    EXPECT_THAT(OpenDevice(name), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("expected the device")))
        << name;
  }
  EXPECT_THAT(OpenDevice("cuda:2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("one of the 2 GPUs of this machine, got 2")));
  TheFakeCuda().too_old = true;
  EXPECT_THAT(OpenDevice("cuda:0"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("do not run on a fake with this driver: ")));
  TheFakeCuda().major = 7;
  EXPECT_THAT(OpenDevice("cuda:0"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("compute capability 8.0 or newer, got 7.0")));
}

TEST_F(CudaDeviceTest, CopiesThereAndBack) {
  for (const int64_t rows : {0, 1, 1000}) {
    const Tensor x = RandomTensor({rows, 7}, 1);
    ASSERT_OK_AND_ASSIGN(const Tensor there, CopyToDevice(*device_, x));
    EXPECT_FALSE(there.on_host());
    ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
    ASSERT_OK_AND_ASSIGN(const Tensor back, run->ToHost(there));
    ASSERT_OK(run->Finish());
    EXPECT_TRUE(TensorEqual(back, x));
  }
}

// Pinned blocks are reused. Larger tensors are copied without one, and may be
// read after the caller has dropped them.
TEST_F(CudaDeviceTest, PinsNoMoreThanItTurnsOver) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(CopyToDevice(*device_, RandomTensor({1000}, i)));
  }
  EXPECT_EQ(TheFakeCuda().pinned_bytes, 4096);
  Tensor large = Tensor::Zeros(ElementType::kFloat32, {17 << 20});
  large.f32()[(17 << 20) - 1] = 1.0f;
  ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
  ASSERT_OK_AND_ASSIGN(const Tensor there, run->ToDevice(large));
  EXPECT_FALSE(large.unique());
  large = Tensor();
  ASSERT_OK_AND_ASSIGN(const Tensor back, run->ToHost(there));
  ASSERT_OK(run->Finish());
  EXPECT_EQ(back.f32()[0], 0.0f);
  EXPECT_EQ(back.f32()[(17 << 20) - 1], 1.0f);
  EXPECT_EQ(TheFakeCuda().pinned_bytes, 4096);
}

// The last holder of a tensor or pinned block frees it, on any thread.
TEST_F(CudaDeviceTest, IsTheDeviceOfEveryThread) {
  std::vector<Tensor> tensors;
  std::thread([&] {
    const auto run = device_->BeginRun();
    ASSERT_OK(run.status());
    auto there = (*run)->ToDevice(RandomTensor({1000}, 1));
    ASSERT_OK(there.status());
    auto back = (*run)->ToHost(*there);
    ASSERT_OK(back.status());
    ASSERT_OK((*run)->Finish());
    tensors = {*there, *back};
  }).join();
  std::thread([&] {
    tensors.clear();
    device_ = nullptr;
  }).join();
}

// The end of an unfinished run waits for its work, since the next run may reuse
// its stream and blocks.
TEST_F(CudaDeviceTest, ARunThatIsGivenUpIsWaitedFor) {
  ASSERT_OK_AND_ASSIGN(auto run, device_->BeginRun());
  ASSERT_OK(run->ToDevice(RandomTensor({100}, 1)));
  EXPECT_EQ(TheFakeCuda().pending, 1);
  run = nullptr;
  EXPECT_EQ(TheFakeCuda().pending, 0);
}

// A tensor of an earlier run is freed in that run's stream, which another run
// may have by then, but not before the run that uses the tensor is done.
TEST_F(CudaDeviceTest, KeepsWhatARunUses) {
  const Tensor x = RandomTensor({1000}, 1);
  ASSERT_OK_AND_ASSIGN(Tensor there, CopyToDevice(*device_, x));
  ASSERT_OK_AND_ASSIGN(const auto other, device_->BeginRun());  // same stream
  ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
  ASSERT_OK_AND_ASSIGN(Tensor used, run->ToDevice(there));
  auto& cuda_run = static_cast<CudaRun&>(*run);
  ASSERT_OK_AND_ASSIGN(const Tensor result,
                       cuda_run.NewTensor(ElementType::kFloat32, {1000}));
  ASSERT_EQ(cuda::LaunchElements(
                cuda::Relu{reinterpret_cast<const float*>(used.device_data()),
                           const_cast<float*>(reinterpret_cast<const float*>(
                               result.device_data()))},
                1000, cuda_run.stream()),
            cudaSuccess);
  used = Tensor();
  there = Tensor();
  ASSERT_OK(other->Finish());
  ASSERT_OK_AND_ASSIGN(const Tensor back, run->ToHost(result));
  ASSERT_OK(run->Finish());
  EXPECT_TRUE(TensorEqual(back, Relu(x.Clone())));
}

TEST_F(CudaDeviceTest, SaysWhenItsMemoryIsShort) {
  TheFakeCuda().memory_bytes = 4096;
  EXPECT_THAT(CopyToDevice(*device_, RandomTensor({2000}, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cudaMallocAsync(&data")));
  EXPECT_OK(CopyToDevice(*device_, RandomTensor({100}, 1)));
  EXPECT_OK(device_->status());
}

TEST_F(CudaDeviceTest, SaysWhenTheHostsMemoryIsShort) {
  std::byte first;
  const Tensor vast = Tensor::OnDevice(
      ElementType::kUint8, {int64_t{1} << 60},
      std::shared_ptr<std::byte>(std::shared_ptr<void>(), &first));
  EXPECT_THAT(CopyToHost(*device_, vast),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for u8[1152921504606846976]")));
}

// Compares a worker's session, with kernels on the emulator, with the same
// session on the CPU: all expert operators, forward and backward.
class CudaSessionTest : public CudaDeviceTest,
                        public ::testing::WithParamInterface<ComputeType> {
 protected:
  OptimizerConfig Optimizer() const {
    if (GetParam() == ComputeType::kFloat32) return AdamConfig();
    AdafactorConfig config;
    config.min_dim_size_to_factor = 4;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CudaSessionTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16));

TEST_P(CudaSessionTest, TrainsAsTheCpuDoes) {
  TrainingJob job = SmallJob(Optimizer());
  job.model.compute_type = GetParam();
  job.model.expert_bias = true;
  job.model.dropout.moe = 0.2;
  SessionCluster host(job, 2);
  SessionCluster there(job, 2, /*buddies=*/false, kMemory, /*window=*/0,
                       device_.get());
  for (int step = 0; step < 2; ++step) {
    for (int32_t i = 0; i < kMicrobatches; ++i) {
      ASSERT_OK(host.Run(i, 0));
      ASSERT_OK(there.Run(i, 0));
    }
    ASSERT_OK(host.Commit());
    ASSERT_OK(there.Commit());
  }
  const float tolerance = GetParam() == ComputeType::kBFloat16 ? 2e-3f : 1e-4f;
  for (int w = 0; w < 2; ++w) {
    const TensorMap expected = host.Parameters(w);
    for (const auto& [name, tensor] : there.Parameters(w)) {
      EXPECT_TRUE(TensorNear(tensor, expected.at(name), tolerance)) << name;
    }
  }
}

TEST_P(CudaSessionTest, AFailedKernelIsTheEndOfTheDevice) {
  TrainingJob job = SmallJob();
  job.model.compute_type = GetParam();
  SessionCluster cluster(job, 1, /*buddies=*/false, kMemory, /*window=*/0,
                         device_.get());
  EXPECT_OK(device_->status());
  TheFakeCuda().launches_fail = true;
  const auto lost =
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("device cuda:1 is lost until the process is "
                               "started anew: "),
                     HasSubstr("a fake error")));
  EXPECT_THAT(cluster.Run(0, 0), lost);
  TheFakeCuda().launches_fail = false;
  EXPECT_THAT(cluster.Run(0, 1), lost);
  EXPECT_THAT(device_->BeginRun(), lost);
  EXPECT_THAT(device_->status(), lost);
}

// A serving session with weights of int8 has the CPU's bits and bytes.
TEST_F(CudaDeviceTest, ServesInt8AsTheCpuDoes) {
  TrainingJob job = SmallJob();
  job.model.compute_type = ComputeType::kInt8;
  job.model.expert_bias = true;
  WorkerSessionSpec spec;
  for (const Program& program :
       {*BuildEncodeProgram(job.model), *BuildDecodeProgram(job.model)}) {
    ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
    spec.segments.insert(spec.segments.end(), roles.segments.begin(),
                         roles.segments.end());
  }
  spec.parameters = SpecsOf(job.model, /*per_expert=*/true);
  spec.experts = {0, 2, 4};
  spec.total_experts = static_cast<int32_t>(job.model.experts);
  spec.source.initial_seed = 5;
  ASSERT_OK_AND_ASSIGN(const auto host, WorkerSession::Create(spec, kMemory));
  const int64_t free = TheFakeCuda().device_bytes;
  ASSERT_OK_AND_ASSIGN(const auto there,
                       WorkerSession::Create(spec, kMemory, device_.get()));
  EXPECT_EQ(there->memory_bytes(), host->memory_bytes());
  EXPECT_GE(TheFakeCuda().device_bytes - free, host->memory_bytes());
  SegmentRun run;
  run.segment = spec.segments[0].name;
  TensorMap inputs;
  for (const Node* node : spec.segments[0].program.NodesOf("input")) {
    inputs[StringAttribute(node->attributes, "name")] =
        spec.segments[0].program.type(node->outputs[0]).type ==
                ElementType::kInt32
            ? Tensor::Ints({3}, {2, 0, 40})
            : RandomTensor({42, job.model.model_width}, 3);
  }
  ASSERT_OK_AND_ASSIGN(const auto expected, host->RunSegment(run, inputs));
  ASSERT_OK_AND_ASSIGN(const auto replies, there->RunSegment(run, inputs));
  ASSERT_EQ(replies.size(), expected.size());
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_TRUE(TensorEqual(replies[i], expected[i]));
  }
}

// The fault of a kernel may show in whatever comes next: when memory is pinned,
// or only when the run is given up.
TEST_F(CudaDeviceTest, IsLostWhereverAFaultShows) {
  const auto lost = StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("device cuda:1 is lost"));
  TheFakeCuda().pinning_fails = true;
  EXPECT_THAT(CopyToDevice(*device_, RandomTensor({100}, 1)), lost);
  EXPECT_THAT(device_->status(), lost);

  TheFakeCuda().pinning_fails = TheFakeCuda().broken = false;
  ASSERT_OK_AND_ASSIGN(device_, OpenDevice("cuda:1"));
  ASSERT_OK_AND_ASSIGN(Tensor x,
                       CopyToDevice(*device_, RandomTensor({100}, 1)));
  ASSERT_OK_AND_ASSIGN(auto run, device_->BeginRun());
  TheFakeCuda().launches_fail = true;
  ASSERT_OK(run->Add(x, x));
  EXPECT_OK(device_->status());
  run = nullptr;
  EXPECT_THAT(device_->status(), lost);
}

// Prepare() fuses the bias and ReLU of a segment into the products before them.
TEST_F(CudaDeviceTest, FusesWhatASegmentDoes) {
  TrainingJob job = SmallJob();
  job.model.compute_type = ComputeType::kBFloat16;
  job.model.expert_bias = true;
  const RolePrograms roles = SplitTraining(job);
  const Program prepared = device_->Prepare(roles.segments[0].program);
  EXPECT_EQ(prepared.NodesOf("fused_ragged_dot").size(), 2u);
  EXPECT_TRUE(prepared.NodesOf("ragged_bias_add").empty());
  EXPECT_TRUE(prepared.NodesOf("relu").empty());
}

// The CUDA back end has a kernel for each operator that segments may contain.
TEST_F(CudaDeviceTest, HasTheKernelsOfExperts) {
  for (const std::string& op : ExpertOps()) {
    EXPECT_NE(FindKernel(op, Backend::kCuda), nullptr) << op;
  }
}

}  // namespace
}  // namespace gshard
