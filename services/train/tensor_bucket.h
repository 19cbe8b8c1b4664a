// TensorBucket: a list of float32 tensors addressed as one flat buffer that can
// be split at any element.

#ifndef SERVICES_TRAIN_TENSOR_BUCKET_H_
#define SERVICES_TRAIN_TENSOR_BUCKET_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/base/status_macros.h"
#include "services/graph/device.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Shares memory with the tensors.
class TensorBucket {
 public:
  explicit TensorBucket(std::vector<Tensor> tensors)
      : tensors_(std::move(tensors)) {
    for (const Tensor& tensor : tensors_) size_ += tensor.size();
  }

  int64_t size() const { return size_; }  // elements
  std::vector<Tensor>& tensors() { return tensors_; }

  // Copies elements [begin, end) of the bucket to or from `buffer`, where they
  // begin at element `at`. Tensors and buffer are on the device of `run`, which
  // queues the copies, or on the host if it is null. REQUIRES: 0 <= begin <=
  // end <= size(). Errors: those of DeviceRun::CopyRanges.
  absl::Status CopyOut(DeviceRun* run, int64_t begin, int64_t end,
                       Tensor& buffer, int64_t at) const {
    return Visit(
        tensors_, begin, end,
        [&](const Tensor& tensor, int64_t from, int64_t to, int64_t count) {
          return CopyRange(run, tensor, {from, at + to, count}, buffer);
        });
  }
  absl::Status CopyIn(DeviceRun* run, int64_t begin, int64_t end,
                      const Tensor& buffer, int64_t at) {
    return Visit(
        tensors_, begin, end,
        [&](Tensor& tensor, int64_t to, int64_t from, int64_t count) {
          return CopyRange(run, buffer, {at + from, to, count}, tensor);
        });
  }

 private:
  static absl::Status CopyRange(DeviceRun* run, const Tensor& from,
                                const ElementRange& range, Tensor& to) {
    if (run != nullptr) return run->CopyRanges(from, {&range, 1}, to);
    std::memcpy(to.f32() + range.to, from.f32() + range.from,
                range.count * sizeof(float));
    return absl::OkStatus();
  }

  // Calls piece(tensor, first element of it, the same counted from `begin`,
  // number of elements).
  template <typename Tensors, typename Piece>
  static absl::Status Visit(Tensors& tensors, int64_t begin, int64_t end,
                            const Piece& piece) {
    int64_t start = 0;
    for (auto& tensor : tensors) {
      const int64_t from = std::max(begin, start);
      const int64_t to = std::min(end, start + tensor.size());
      if (from < to) {
        RETURN_IF_ERROR(piece(tensor, from - start, from - begin, to - from));
      }
      start += tensor.size();
    }
    return absl::OkStatus();
  }

  std::vector<Tensor> tensors_;
  int64_t size_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_TENSOR_BUCKET_H_
