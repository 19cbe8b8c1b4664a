// TensorBucket: a list of float32 tensors addressed as one flat buffer that can
// be split at any element.

#ifndef SERVICES_TRAIN_TENSOR_BUCKET_H_
#define SERVICES_TRAIN_TENSOR_BUCKET_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

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

  // Copies elements [begin, end) of the bucket to or from memory.
  // REQUIRES: 0 <= begin <= end <= size().
  void CopyOut(int64_t begin, int64_t end, float* to) const {
    Visit(tensors_, begin, end, [&](const float* piece, int64_t count) {
      std::memcpy(to, piece, count * sizeof(float));
      to += count;
    });
  }
  void CopyIn(int64_t begin, int64_t end, const float* from) {
    Visit(tensors_, begin, end, [&](float* piece, int64_t count) {
      std::memcpy(piece, from, count * sizeof(float));
      from += count;
    });
  }

 private:
  template <typename Tensors, typename Piece>
  static void Visit(Tensors& tensors, int64_t begin, int64_t end,
                    const Piece& piece) {
    int64_t start = 0;
    for (auto& tensor : tensors) {
      const int64_t from = std::max(begin, start);
      const int64_t to = std::min(end, start + tensor.size());
      if (from < to) piece(tensor.f32() + (from - start), to - from);
      start += tensor.size();
    }
  }

  std::vector<Tensor> tensors_;
  int64_t size_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_TENSOR_BUCKET_H_
