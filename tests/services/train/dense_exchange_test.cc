// Members that sum gradients and gather parameters among themselves get the
// same bits as one process that sums all microbatches in order.

#include "services/train/dense_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/train/ordered_sum.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/gloo_members.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

std::vector<ParameterSpec> Specs() {
  std::vector<ParameterSpec> specs;
  const std::vector<Dims> shapes = {{7, 5}, {3}, {}, {2, 3, 4}, {11}, {1, 1}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    ParameterSpec& spec = specs.emplace_back();
    spec.name = absl::StrCat("t", shapes.size() - i);
    spec.dims = shapes[i];
  }
  return specs;
}

// Values of many magnitudes, so that their sum depends on its order.
TensorMap Gradients(int64_t microbatch) {
  TensorMap gradients;
  uint64_t seed = 100 * microbatch;
  for (const ParameterSpec& spec : Specs()) {
    gradients[spec.name] =
        RandomTensor(spec.dims, ++seed, microbatch % 3 == 0 ? 1e6f : 1e-2f);
  }
  return gradients;
}

// The sums as one process computes them.
TensorMap Sums(int64_t count) {
  OrderedSum sum(count, 0);
  for (int64_t m = 0; m < count; ++m) {
    TensorMap gradients = Gradients(m);
    std::vector<Tensor> values;
    for (const auto& spec : Specs()) values.push_back(gradients[spec.name]);
    EXPECT_OK(sum.Add(m, std::move(values)));
  }
  std::vector<Tensor> values = sum.Take();
  TensorMap sums;
  for (const auto& spec : Specs()) {
    sums[spec.name] = values[sums.size()];
  }
  return sums;
}

std::map<int32_t, TensorMap> GradientsOf(int rank,
                                         const std::vector<int>& ran) {
  std::map<int32_t, TensorMap> gradients;
  for (size_t m = 0; m < ran.size(); ++m) {
    if (ran[m] == rank) gradients[m] = Gradients(m);
  }
  return gradients;
}

struct Case {
  std::string name;
  std::vector<int> ran;
  int members;
  size_t round_bytes;
};

// A member: sums gradients, then gathers the sums in place of new parameters.
absl::Status SumAndGather(const Case& c, Communicator& comm,
                          TensorMap* gathered, Device* device = nullptr) {
  DenseExchange exchange(Specs(), DivideAmong(Specs(), c.members), &comm,
                         c.round_bytes, device);
  std::map<int32_t, TensorMap> gradients = GradientsOf(comm.rank(), c.ran);
  for (auto& [microbatch, tensors] : gradients) {
    for (auto& [name, tensor] : tensors) {
      if (device == nullptr) break;
      ASSIGN_OR_RETURN(tensor, CopyToDevice(*device, tensor));
    }
  }
  ASSIGN_OR_RETURN(const GradientList sums,
                   exchange.SumGradients(c.ran, gradients));
  EXPECT_EQ(sums.size(), exchange.own().size());
  const TensorMap own(sums.begin(), sums.end());
  ASSIGN_OR_RETURN(*gathered, exchange.GatherParameters(own));
  for (auto& [name, tensor] : *gathered) {
    EXPECT_EQ(tensor.on_host(), device == nullptr);
    if (device == nullptr) continue;
    ASSIGN_OR_RETURN(tensor, CopyToHost(*device, tensor));
  }
  return absl::OkStatus();
}

// Exchanges the memory of a FakeDevice, as NCCL does that of a GPU.
class OnDevice final : public Communicator {
 public:
  explicit OnDevice(Communicator* comm) : comm_(comm) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  bool on_device() const override { return true; }
  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    return comm_->Exchange(send, receive);
  }

 private:
  Communicator* const comm_;
};

void ExpectSums(const Case& c, const std::vector<TensorMap>& gathered) {
  const TensorMap expected = Sums(static_cast<int64_t>(c.ran.size()));
  for (const TensorMap& tensors : gathered) {
    ASSERT_EQ(tensors.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(TensorEqual(tensors.at(name), tensor)) << name;
    }
  }
}

class DenseExchangeTest : public ::testing::TestWithParam<Case> {};

TEST_P(DenseExchangeTest, HasTheBitsOfOneProcess) {
  const Case& c = GetParam();
  std::vector<TensorMap> gathered(c.members);
  ASSERT_OK(RunOnDevices(c.members, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    return SumAndGather(c, *comm, &gathered[world.rank()]);
  }));
  ExpectSums(c, gathered);
}

TEST_P(DenseExchangeTest, HasTheSameBitsOverGloo) {
  const Case& c = GetParam();
  std::vector<TensorMap> gathered(c.members);
  for (const absl::Status& status :
       RunOnGlooThreads(c.members, [&](World& world) -> absl::Status {
         ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
         return SumAndGather(c, *comm, &gathered[world.rank()]);
       })) {
    ASSERT_OK(status);
  }
  ExpectSums(c, gathered);
}

TEST_P(DenseExchangeTest, HasTheSameBitsOnDevices) {
  const Case& c = GetParam();
  std::vector<TensorMap> gathered(c.members);
  ASSERT_OK(RunOnDevices(c.members, [&](World& world) -> absl::Status {
    FakeDevice device;
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    return SumAndGather(c, *comm, &gathered[world.rank()], &device);
  }));
  ExpectSums(c, gathered);
}

// Nothing passes through the host.
TEST_P(DenseExchangeTest, HasTheSameBitsBetweenDevices) {
  const Case& c = GetParam();
  std::vector<TensorMap> gathered(c.members);
  ASSERT_OK(RunOnDevices(c.members, [&](World& world) -> absl::Status {
    FakeDevice device;
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    OnDevice on_device(comm);
    RETURN_IF_ERROR(
        SumAndGather(c, on_device, &gathered[world.rank()], &device));
    const int64_t gradients =
        std::count(c.ran.begin(), c.ran.end(), world.rank()) * Specs().size();
    EXPECT_EQ(device.copies_to_device(), gradients);
    return absl::OkStatus();
  }));
  ExpectSums(c, gathered);
}

INSTANTIATE_TEST_SUITE_P(
    , DenseExchangeTest,
    ::testing::Values(Case{"Alone", {0, 0, 0}, 1, kMaxRoundBytes},
                      Case{"OneRound", {0, 1, 0, 1, 1}, 2, kMaxRoundBytes},
                      Case{"ManyRounds", {0, 1, 0, 1, 1}, 2, 64},
                      Case{"AnElementARound", {1, 0, 2, 2, 1}, 3, 4},
                      Case{"OneRanAll", {2, 2, 2, 2}, 3, 100},
                      Case{"OneMicrobatch", {1}, 3, 100},
                      Case{"MoreMembersThanTensors", {7, 0, 3}, 8, 100}),
    [](const auto& info) { return info.param.name; });

// Records the bytes of the largest exchange; fails exchange number `fails_at`.
class Watched : public Communicator {
 public:
  Watched(Communicator* comm, int fails_at) : comm_(comm), left_(fails_at) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  bool on_device() const override { return comm_->on_device(); }
  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    if (left_-- == 0) return absl::AbortedError("killed");
    size_t sent = 0, received = 0;
    for (const SendBytes& bytes : send) sent += bytes.size;
    for (const ReceiveBytes& bytes : receive) received += bytes.size;
    largest = std::max({largest, sent, received});
    return comm_->Exchange(send, receive);
  }

  size_t largest = 0;

 private:
  Communicator* const comm_;
  int left_;
};

TEST(DenseExchangeRoundTest, BytesOfARoundAreLimited) {
  for (const auto& ran :
       std::vector<std::vector<int>>{{0, 1, 2, 0, 1, 2}, {1, 1, 1, 1, 1, 1}}) {
    const Case c{"", ran, 3, 96};
    TensorMap gathered[3];
    size_t largest = 0;
    ASSERT_OK(RunOnDevices(3, [&](World& world) -> absl::Status {
      ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
      Watched watched(comm, -1);
      RETURN_IF_ERROR(SumAndGather(c, watched, &gathered[world.rank()]));
      if (world.rank() == 1) largest = watched.largest;
      return absl::OkStatus();
    }));
    EXPECT_GT(largest, 0u);
    EXPECT_LE(largest, 96u);
  }
}

TEST(DenseExchangeRoundTest, AMemberThatIsLostInARoundEndsItForAll) {
  for (const int round : {0, 1, 5, 12}) {
    std::atomic<int> succeeded = 0;
    const absl::Status status = RunOnDevices(3, [&](World& world) {
      const Case c{"", {0, 1, 2, 0, 1, 2}, 3, 64};
      const auto comm = WholeGroup(world);
      if (!comm.ok()) return comm.status();
      Watched watched(*comm, world.rank() == 1 ? round : -1);
      TensorMap gathered;
      const absl::Status status = SumAndGather(c, watched, &gathered);
      if (status.ok()) ++succeeded;
      return status;
    });
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kAborted, HasSubstr("killed")));
    EXPECT_EQ(succeeded, 0);
  }
}

TEST(TensorOwnersTest, PartsAreAboutEqual) {
  std::vector<ParameterSpec> specs;
  int64_t total = 0, largest = 0;
  for (int i = 0; i < 200; ++i) {
    ParameterSpec& spec = specs.emplace_back();
    spec.name = absl::StrCat("layer.", i);
    spec.dims = {1 + static_cast<int64_t>(RandomBits(3, i) % 1000)};
    total += spec.dims[0];
    largest = std::max(largest, spec.dims[0]);
  }
  for (const int members : {1, 2, 3, 7}) {
    const TensorOwners owners = DivideAmong(specs, members);
    ASSERT_EQ(owners.size(), static_cast<size_t>(members));
    EXPECT_OK(CheckOwners(specs, owners));
    for (const auto& names : owners) {
      EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
      int64_t load = 0;
      for (const ParameterSpec& spec : specs) {
        if (std::count(names.begin(), names.end(), spec.name) > 0) {
          load += spec.dims[0];
        }
      }
      EXPECT_LE(load, total / members + largest);
      EXPECT_GE(load, total / members - largest);
    }
  }
}

TEST(TensorOwnersTest, EachTensorHasOneOwner) {
  const std::vector<ParameterSpec> specs = Specs();
  TensorOwners owners = DivideAmong(specs, 2);
  owners[0].push_back(owners[1].back());
  EXPECT_THAT(CheckOwners(specs, owners),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown, or another one's too")));
  owners[0].pop_back();
  owners[1].pop_back();
  EXPECT_THAT(
      CheckOwners(specs, owners),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no owner")));
}

}  // namespace
}  // namespace gshard
