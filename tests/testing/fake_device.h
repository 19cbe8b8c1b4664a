// A device in host memory, with the CPU's kernels. Tests see any access that
// bypasses the device or does not wait for the run to finish: host accessors
// refuse the device's tensors, and copies for the host are NaN until Finish().

#ifndef TESTS_TESTING_FAKE_DEVICE_H_
#define TESTS_TESTING_FAKE_DEVICE_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/graph/device.h"
#include "services/ops/cast.h"
#include "services/train/gradient_norm.h"
#include "services/train/optimizer_kinds.h"

namespace gshard {

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(int64_t memory_bytes = int64_t{1} << 40)
      : memory_bytes_(memory_bytes) {}

  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override { return "fake"; }
  int gpu() const override { return gpu_number; }
  int64_t memory_bytes() const override { return memory_bytes_; }
  absl::Status status() const override {
    return lost ? absl::UnavailableError("the fake device is lost")
                : absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() override {
    ++runs_;
    niceness_ = ThreadNiceness();
    RETURN_IF_ERROR(begin_error);
    return std::make_unique<Run>(this);
  }

  int64_t runs() const { return runs_; }
  // The nice value of the thread that began the last run.
  int niceness() const { return niceness_; }
  int64_t copies_to_device() const { return copies_to_device_; }

  int gpu_number = -1;
  std::atomic<bool> lost = false;
  absl::Status begin_error;    // from BeginRun
  absl::Status finish_error;   // from Finish
  absl::Status round_error;    // from RoundToBf16
  absl::Status squares_error;  // from SumsOfSquares
  absl::Status copy_error;     // from CopyRanges, which copies nevertheless
  // From Add and Update, which take effect nevertheless.
  absl::Status add_error, update_error;
  std::function<void()> on_add;  // called by Add

 private:
  class Run final : public DeviceRun {
   public:
    explicit Run(FakeDevice* device) : device_(device) {}

    absl::StatusOr<Tensor> ToDevice(const Tensor& tensor) override {
      if (!tensor.on_host()) return tensor;
      ++device_->copies_to_device_;
      return Moved(tensor.Clone());
    }

    absl::StatusOr<Tensor> ToHost(const Tensor& tensor) override {
      if (tensor.on_host()) return tensor;
      Tensor copy(tensor.type(), tensor.dims());
      std::memset(copy.raw(), 0xff, copy.bytes());
      pending_.emplace_back(copy, tensor);
      return copy;
    }

    absl::Status Finish() override {
      RETURN_IF_ERROR(device_->finish_error);
      for (auto& [host, device] : pending_) {
        std::memcpy(host.raw(), device.device_data(), host.bytes());
      }
      pending_.clear();
      return absl::OkStatus();
    }

    absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) override {
      return Moved(Tensor(type, std::move(dims)));
    }
    absl::Status CopyRanges(const Tensor& from,
                            absl::Span<const ElementRange> ranges,
                            Tensor& to) override {
      const absl::Span<float> x = Part(from, 1, 0), out = Part(to, 1, 0);
      for (const ElementRange& range : ranges) {
        const auto begin = x.begin() + range.from;
        std::copy(begin, begin + range.count, out.begin() + range.to);
      }
      return device_->copy_error;
    }
    absl::StatusOr<std::vector<std::vector<TokenScore>>> TopTokensOfRows(
        const Tensor& logits, absl::Span<const TokensWanted> wanted) override {
      CHECK(!logits.on_host());
      RETURN_IF_ERROR(Finish());
      return gshard::TopTokensOfRows(Seen(logits), wanted);
    }

    // Computed at once, as by the CPU.
    absl::StatusOr<Tensor> Copy(const Tensor& x) override {
      return Moved(Seen(x).Clone());
    }
    absl::StatusOr<Tensor> RoundToBf16(const Tensor& x) override {
      RETURN_IF_ERROR(device_->round_error);
      return Moved(Cast(Seen(x).Clone(), ElementType::kBFloat16));
    }
    absl::Status Add(const Tensor& x, Tensor& sum) override {
      if (device_->on_add) device_->on_add();
      const Tensor from = Seen(x);
      Tensor to = Seen(sum);
      for (int64_t i = 0; i < to.size(); ++i) to.f32()[i] += from.f32()[i];
      return device_->add_error;
    }
    absl::StatusOr<std::vector<double>> SumsOfSquares(const Tensor& x,
                                                      int64_t parts) override {
      RETURN_IF_ERROR(device_->squares_error);
      std::vector<double> sums;
      for (int64_t i = 0; i < parts; ++i) {
        sums.push_back(SumOfSquares(Part(x, parts, i)));
      }
      return sums;
    }
    absl::Status Update(const AdamStep& step, const Tensor& gradient,
                        Tensor& weight, Tensor& first,
                        Tensor& second) override {
      const auto g = Part(gradient, 1, 0), w = Part(weight, 1, 0),
                 a = Part(first, 1, 0), b = Part(second, 1, 0);
      for (size_t i = 0; i < w.size(); ++i) step.Update(g[i], w[i], a[i], b[i]);
      return device_->update_error;
    }
    absl::Status Update(const AdafactorStep& step, int64_t parts,
                        absl::Span<const int64_t> dims, const Tensor& gradient,
                        Tensor& weight, absl::Span<Tensor> state) override {
      for (int64_t i = 0; i < parts; ++i) {
        std::vector<absl::Span<float>> of_part;
        for (Tensor& tensor : state) of_part.push_back(Part(tensor, parts, i));
        UpdateByAdafactor(step, dims, Part(weight, parts, i),
                          Part(gradient, parts, i), of_part);
      }
      return device_->update_error;
    }

   private:
    // The elements of part `part` of `parts`.
    static absl::Span<float> Part(const Tensor& x, int64_t parts,
                                  int64_t part) {
      const int64_t size = x.size() / parts;
      return {Seen(x).f32() + part * size, static_cast<size_t>(size)};
    }

    FakeDevice* const device_;
    std::vector<std::pair<Tensor, Tensor>> pending_;
  };

  // Moved() and Seen() give the same memory as the device's and as the host's.
  static Tensor Moved(const Tensor& host) {
    auto keeper = std::make_shared<Tensor>(host);
    return host.WithData({keeper, const_cast<std::byte*>(host.buffer())},
                         /*on_device=*/true);
  }
  static Tensor Seen(const Tensor& device) {
    if (device.on_host()) return device;
    auto keeper = std::make_shared<Tensor>(device);
    return device.WithData({keeper, keeper->device_data()},
                           /*on_device=*/false);
  }

  friend void RegisterFakeDeviceKernels(const std::vector<std::string>& ops);

  const int64_t memory_bytes_;
  std::atomic<int64_t> runs_ = 0;
  std::atomic<int> niceness_ = 0;
  std::atomic<int64_t> copies_to_device_ = 0;
};

// Registers the CPU's kernels of `ops` for Backend::kCuda: operands may be in
// either memory, results are on the device.
inline void RegisterFakeDeviceKernels(const std::vector<std::string>& ops) {
  std::map<std::string, Kernel> kernels;
  for (const std::string& op : ops) {
    kernels[op] = [kernel = *FindKernel(op, Backend::kCpu)](KernelContext& c) {
      for (Tensor& operand : c.operands) {
        // Kernels get copies, so that they cannot overwrite operands.
        if (!operand.empty()) operand = FakeDevice::Seen(operand).Clone();
      }
      RETURN_IF_ERROR(kernel(c));
      for (Tensor& result : c.results) result = FakeDevice::Moved(result);
      return absl::OkStatus();
    };
  }
  RegisterKernels(Backend::kCuda, std::move(kernels));
}

// Registers the kernels of all operators that have one for the CPU.
inline void RegisterAllFakeDeviceKernels() {
  std::vector<std::string> ops;
  for (const std::string& op : OpNames()) {
    if (FindKernel(op, Backend::kCpu) != nullptr) ops.push_back(op);
  }
  RegisterFakeDeviceKernels(ops);
}

// The operators in the segments of expert workers.
inline const std::vector<std::string>& ExpertOps() {
  static const auto* const ops =
      new std::vector<std::string>{"cast",
                                   "dropout_rows",
                                   "dropout_rows_part",
                                   "ragged_bias_add",
                                   "ragged_bias_gradient",
                                   "ragged_dot",
                                   "ragged_dot_rows_gradient",
                                   "ragged_dot_weights_gradient",
                                   "relu",
                                   "relu_gradient"};
  return *ops;
}

}  // namespace gshard

#endif  // TESTS_TESTING_FAKE_DEVICE_H_
