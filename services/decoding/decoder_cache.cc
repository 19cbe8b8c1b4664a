#include "services/decoding/decoder_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {

DecoderCache::DecoderCache(const Program& decode, int64_t max_pages)
    : pages_(max_pages) {
  for (const Node* node : decode.NodesOf("input")) {
    const std::string& name = StringAttribute(node->attributes, "name");
    if (!absl::StartsWith(name, "key/") && !absl::StartsWith(name, "value/")) {
      continue;
    }
    const Shape& shape = ShapeAttribute(node->attributes, "shape");
    tensors_[name] =
        Tensor(ElementType::kFloat32,
               {0, kPagePositions, shape[2].size(), shape[3].size()});
  }
}

void DecoderCache::Reserve(int64_t pages) {
  CHECK(pages <= pages_.max_pages());
  if (pages <= capacity_) return;
  capacity_ = std::min(std::max(pages, 2 * capacity_), pages_.max_pages());
  for (auto& [name, tensor] : tensors_) {
    Tensor larger(ElementType::kFloat32,
                  {capacity_, kPagePositions, tensor.dim(2), tensor.dim(3)});
    std::memcpy(larger.raw(), tensor.raw(), tensor.bytes());
    tensor = std::move(larger);
  }
}

void DecoderCache::CopyPage(int32_t from, int32_t to, int64_t positions) {
  for (auto& [name, tensor] : tensors_) {
    const int64_t width = tensor.dim(2) * tensor.dim(3);
    std::memcpy(tensor.f32() + to * kPagePositions * width,
                tensor.f32() + from * kPagePositions * width,
                positions * width * sizeof(float));
  }
}

PageTable DecoderCache::AddSource(const TensorMap& memory, int64_t b,
                                  int64_t length) {
  PageTable table;
  for (int64_t t = 0; t < PagesFor(length); ++t) table.push_back(pages_.Take());
  for (auto& [name, tensor] : tensors_) {
    const Tensor& source = memory.at(absl::StrCat("cross_", name));
    const int64_t width = tensor.dim(2) * tensor.dim(3);
    const float* from = source.f32() + b * source.dim(1) * width;
    for (int64_t t = 0; t < PagesFor(length); ++t) {
      const int64_t count =
          std::min(kPagePositions, length - t * kPagePositions) * width;
      std::copy_n(from, count,
                  tensor.f32() + table[t] * kPagePositions * width);
      from += count;
    }
  }
  return table;
}

void DecoderCache::MoveTo(TensorMap& inputs) {
  for (auto& [name, tensor] : tensors_) inputs[name] = std::move(tensor);
}

void DecoderCache::TakeBack(const std::string& output, Tensor& tensor) {
  const auto found = tensors_.find(output);
  if (found != tensors_.end()) found->second = std::move(tensor);
}

}  // namespace gshard
