#include "services/decoding/decoder_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

DecoderCache::DecoderCache(const Program& decode, int64_t max_pages,
                           Device* device)
    : device_(device), pages_(max_pages) {
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

absl::Status DecoderCache::Reserve(int64_t pages) {
  CHECK(pages <= pages_.max_pages());
  if (pages <= capacity_) return absl::OkStatus();
  const int64_t capacity =
      std::min(std::max(pages, 2 * capacity_), pages_.max_pages());
  std::unique_ptr<DeviceRun> run;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(run, device_->BeginRun());
  }
  TensorMap larger;
  for (const auto& [name, tensor] : tensors_) {
    const Dims dims = {capacity, kPagePositions, tensor.dim(2), tensor.dim(3)};
    ASSIGN_OR_RETURN(larger[name],
                     run == nullptr
                         ? AllocateTensor(ElementType::kFloat32, dims)
                         : run->NewTensor(ElementType::kFloat32, dims));
  }
  if (run != nullptr) RETURN_IF_ERROR(run->Finish());
  larger.swap(tensors_);
  const ElementRange all{.count = capacity_ * kPagePositions};
  if (capacity_ > 0) {
    const absl::Status copied =
        Copy({all}, [&](const std::string& name) -> const Tensor& {
          return larger.at(name);
        });
    if (!copied.ok()) {
      larger.swap(tensors_);
      return copied;
    }
  }
  capacity_ = capacity;
  return absl::OkStatus();
}

absl::Status DecoderCache::Copy(
    absl::Span<const ElementRange> positions,
    absl::FunctionRef<const Tensor&(const std::string&)> source) {
  std::unique_ptr<DeviceRun> run;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(run, device_->BeginRun());
  }
  std::vector<ElementRange> ranges(positions.begin(), positions.end());
  int64_t width = 1;  // of `ranges`
  for (auto& [name, to] : tensors_) {
    const Tensor& from = source(name);
    const int64_t wanted = to.dim(2) * to.dim(3);
    for (ElementRange& range : ranges) {
      range.from = range.from / width * wanted;
      range.to = range.to / width * wanted;
      range.count = range.count / width * wanted;
    }
    width = wanted;
    if (run != nullptr) {
      RETURN_IF_ERROR(run->CopyRanges(from, ranges, to));
      continue;
    }
    for (const ElementRange& range : ranges) {
      std::copy_n(from.f32() + range.from, range.count, to.f32() + range.to);
    }
  }
  return run == nullptr ? absl::OkStatus() : run->Finish();
}

absl::Status DecoderCache::CopyPages(absl::Span<const PageCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  std::vector<ElementRange> ranges;
  for (const PageCopy& copy : copies) {
    ranges.push_back({.from = copy.from * kPagePositions,
                      .to = copy.to * kPagePositions,
                      .count = copy.positions});
  }
  return Copy(ranges, [&](const std::string& name) -> const Tensor& {
    return tensors_.at(name);
  });
}

absl::StatusOr<std::vector<PageTable>> DecoderCache::AddSources(
    const TensorMap& memory, absl::Span<const int64_t> lengths) {
  std::vector<PageTable> tables(lengths.size());
  std::vector<ElementRange> ranges;
  const int64_t Ls =
      tensors_.empty()
          ? 0
          : memory.at(absl::StrCat("cross_", tensors_.begin()->first)).dim(1);
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int64_t at = 0; at < lengths[b]; at += kPagePositions) {
      tables[b].push_back(pages_.Take());
      ranges.push_back({.from = static_cast<int64_t>(b) * Ls + at,
                        .to = tables[b].back() * kPagePositions,
                        .count = std::min(kPagePositions, lengths[b] - at)});
    }
  }
  const absl::Status copied =
      Copy(ranges, [&](const std::string& name) -> const Tensor& {
        return memory.at(absl::StrCat("cross_", name));
      });
  if (copied.ok()) return tables;
  for (const PageTable& table : tables) {
    for (const int32_t page : table) pages_.Release(page);
  }
  return copied;
}

void DecoderCache::MoveTo(TensorMap& inputs) {
  for (auto& [name, tensor] : tensors_) inputs[name] = std::move(tensor);
}

void DecoderCache::TakeBack(const std::string& output, Tensor& tensor) {
  const auto found = tensors_.find(output);
  if (found != tensors_.end()) found->second = std::move(tensor);
}

}  // namespace gshard
