// Runs with or without GPUs; without one, expects errors that say so.

#include "services/collectives/nccl_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/cuda_status.h"
#include "tests/services/collectives/collectives_cases.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

int Gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Memory of the current GPU, which grows: to free some may wait for other
// members.
class GpuBytes {
 public:
  ~GpuBytes() { cudaFree(data_); }

  absl::Status Reserve(size_t size) {
    if (size <= size_) return absl::OkStatus();
    // As CudaDevice allocates.
    RETURN_IF_ERROR(
        CudaStatus(cudaMallocAsync(&data_, size, nullptr), "cudaMallocAsync"));
    size_ = size;
    return CudaStatus(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Passes the host's bytes through GPUs, as the collectives' cases need it.
class StagedCommunicator final : public Communicator {
 public:
  explicit StagedCommunicator(std::unique_ptr<NcclCommunicator> nccl)
      : nccl_(std::move(nccl)),
        sending_(nccl_->size()),
        receiving_(nccl_->size()) {}

  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }

  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    std::vector<SendBytes> sent(send.begin(), send.end());
    std::vector<ReceiveBytes> received(receive.begin(), receive.end());
    for (size_t r = 0; r < send.size(); ++r) {
      RETURN_IF_ERROR(sending_[r].Reserve(send[r].size));
      RETURN_IF_ERROR(receiving_[r].Reserve(receive[r].size));
      sent[r].data = sending_[r].data();
      received[r].data = receiving_[r].data();
      RETURN_IF_ERROR(Copy(sent[r].data, send[r].data, send[r].size));
    }
    RETURN_IF_ERROR(nccl_->Exchange(sent, received));
    // No error is left, not even that of asking whether it is done.
    RETURN_IF_ERROR(CudaStatus(cudaPeekAtLastError(), "after an exchange"));
    for (size_t r = 0; r < receive.size(); ++r) {
      RETURN_IF_ERROR(Copy(receive[r].data, received[r].data, receive[r].size));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Copy(const void* to, const void* from, size_t size) {
    if (size == 0) return absl::OkStatus();
    return CudaStatus(
        cudaMemcpy(const_cast<void*>(to), from, size, cudaMemcpyDefault),
        "cudaMemcpy");
  }

  const std::unique_ptr<NcclCommunicator> nccl_;
  std::vector<GpuBytes> sending_, receiving_;
};

// Groups of GPUs, which learn their ids through threads' groups.
class NcclTestWorld final : public World {
 public:
  explicit NcclTestWorld(World* threads) : threads_(threads) {}

  int rank() const override { return threads_->rank(); }
  int size() const override { return threads_->size(); }

  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override {
    auto& group = groups_[{ranks.begin(), ranks.end()}];
    if (group != nullptr) return group.get();
    ASSIGN_OR_RETURN(Communicator* const threads, threads_->Group(ranks));
    std::string id(128, '\0');
    std::vector<SendBytes> send(threads->size());
    std::vector<ReceiveBytes> receive(threads->size());
    if (threads->rank() == 0) {
      ASSIGN_OR_RETURN(id, NewNcclId());
      for (int r = 1; r < threads->size(); ++r) {
        send[r] = {id.data(), id.size()};
      }
    } else {
      receive[0] = {id.data(), id.size()};
    }
    RETURN_IF_ERROR(threads->Exchange(send, receive));
    ASSIGN_OR_RETURN(
        auto nccl, NcclCommunicator::Create(id, threads->rank(),
                                            threads->size(), {.gpu = rank()}));
    group = std::make_unique<StagedCommunicator>(std::move(nccl));
    return group.get();
  }

 private:
  World* const threads_;
  std::map<std::vector<int>, std::unique_ptr<StagedCommunicator>> groups_;
};

// One member for each GPU, or a single one without a GPU.
absl::Status OnEveryGpu(
    const std::function<absl::Status(World& world)>& device) {
  return RunOnDevices(std::max(1, Gpus()), [&](World& local) -> absl::Status {
    NcclTestWorld world(&local);
    return device(world);
  });
}

TEST(NcclCommunicatorTest, CollectivesAreThoseOfThePlainLoopsIfThereIsAGpu) {
  const absl::Status status = OnEveryGpu(RunCollectivesCases);
  if (Gpus() > 0) {
    EXPECT_OK(status);
  } else {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("no usable GPU")));
  }
}

TEST(NcclCommunicatorTest, AnIdNeedsAGpu) {
  const auto id = NewNcclId();
  if (Gpus() > 0) {
    EXPECT_OK(id);
  } else {
    EXPECT_THAT(id, StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("no usable GPU")));
  }
}

TEST(NcclCommunicatorTest, AGpuThatDoesNotExistIsRefused) {
  NcclOptions options;
  options.gpu = Gpus();
  EXPECT_THAT(
      NcclCommunicator::Create(std::string(128, 'x'), 0, 1, options),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr(Gpus() > 0 ? "GPUs of this machine" : "no usable")));
}

TEST(NcclCommunicatorTest, CreateChecksItsArguments) {
  NcclOptions options;
  const std::string id(128, 'x');
  EXPECT_THAT(NcclCommunicator::Create("short", 0, 1, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an id of 128 bytes, got 5")));
  EXPECT_THAT(NcclCommunicator::Create(id, 1, 1, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got rank 1 of 1")));
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_THAT(
      NcclCommunicator::Create(id, 0, 1, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
}

}  // namespace
}  // namespace gshard
