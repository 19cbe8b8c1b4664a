#include "services/train/dense_exchange.h"

#include <algorithm>
#include <utility>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/train/ordered_sum.h"
#include "services/train/tensor_bucket.h"

namespace gshard {
namespace {

using Specs = std::vector<ParameterSpec>;

int64_t Elements(const Specs& specs) {
  int64_t elements = 0;
  for (const ParameterSpec& spec : specs) elements += NumElements(spec.dims);
  return elements;
}

// The tensors of `specs`, as one bucket.
TensorBucket BucketOf(const Specs& specs, const TensorMap& tensors) {
  std::vector<Tensor> bucket;
  for (const ParameterSpec& spec : specs) {
    const auto found = tensors.find(spec.name);
    CHECK(found != tensors.end() && found->second.dims() == spec.dims);
    bucket.push_back(found->second);
  }
  return TensorBucket(std::move(bucket));
}

TensorBucket NewBucket(const Specs& specs) {
  std::vector<Tensor> bucket;
  for (const ParameterSpec& spec : specs) {
    bucket.emplace_back(ElementType::kFloat32, spec.dims);
  }
  return TensorBucket(std::move(bucket));
}

}  // namespace

DenseExchange::DenseExchange(const std::vector<ParameterSpec>& specs,
                             const TensorOwners& owners, Communicator* group,
                             size_t max_round_bytes)
    : group_(group), max_round_bytes_(max_round_bytes) {
  CHECK(owners.size() == static_cast<size_t>(group->size()));
  CHECK(max_round_bytes >= sizeof(float));
  CHECK(CheckOwners(specs, owners).ok());
  std::map<std::string, const ParameterSpec*> by_name;
  for (const ParameterSpec& spec : specs) by_name[spec.name] = &spec;
  for (const std::vector<std::string>& names : owners) {
    Specs& part = parts_.emplace_back();
    for (const std::string& name : names) part.push_back(*by_name.at(name));
    sizes_.push_back(Elements(part));
  }
}

const std::vector<ParameterSpec>& DenseExchange::own() const {
  return parts_[group_->rank()];
}

int64_t DenseExchange::Chunk(int64_t copies) const {
  const int64_t elements =
      static_cast<int64_t>(max_round_bytes_ / sizeof(float));
  return std::max<int64_t>(1, elements / copies);
}

int64_t DenseExchange::Rounds(int64_t chunk) const {
  const int64_t largest = *std::max_element(sizes_.begin(), sizes_.end());
  return (largest + chunk - 1) / chunk;
}

DenseExchange::Range DenseExchange::RangeOf(int owner, int64_t chunk,
                                            int64_t round) const {
  return {.begin = std::min(sizes_[owner], chunk * round),
          .end = std::min(sizes_[owner], chunk * (round + 1))};
}

absl::StatusOr<GradientList> DenseExchange::SumGradients(
    absl::Span<const int> ran, const std::map<int32_t, TensorMap>& gradients) {
  const int rank = group_->rank();
  const int size = group_->size();
  const int64_t count = static_cast<int64_t>(ran.size());
  std::vector<int64_t> of_rank(size, 0);  // microbatches per rank
  for (const int r : ran) ++of_rank[r];
  const int64_t most = *std::max_element(of_rank.begin(), of_rank.end());
  const int64_t chunk = Chunk(std::max(count, most * (size - 1)));

  // Indexed by microbatch that was run here, then by owner.
  std::vector<std::vector<TensorBucket>> mine;
  for (int64_t m = 0; m < count; ++m) {
    if (ran[m] != rank) continue;
    std::vector<TensorBucket>& buckets = mine.emplace_back();
    for (const Specs& part : parts_) {
      buckets.push_back(BucketOf(part, gradients.at(static_cast<int32_t>(m))));
    }
  }

  std::vector<Tensor> sending(size), receiving(size);
  for (int r = 0; r < size; ++r) {
    const int64_t out = r == rank ? 0 : std::min(chunk, sizes_[r]);
    const int64_t in = std::min(chunk, sizes_[rank]);
    sending[r] = Tensor(ElementType::kFloat32, {of_rank[rank] * out});
    // This member's own contributions are not sent, but copied to the same
    // place.
    receiving[r] = Tensor(ElementType::kFloat32, {of_rank[r] * in});
  }
  TensorBucket sums = NewBucket(own());
  for (int64_t round = 0; round < Rounds(chunk); ++round) {
    std::vector<SendBytes> send(size);
    std::vector<ReceiveBytes> receive(size);
    const Range in = RangeOf(rank, chunk, round);
    for (int r = 0; r < size; ++r) {
      const Range out = RangeOf(r, chunk, round);
      float* to = r == rank ? receiving[r].f32() : sending[r].f32();
      for (const std::vector<TensorBucket>& buckets : mine) {
        buckets[r].CopyOut(out.begin, out.end, to);
        to += out.size();
      }
      if (r == rank) continue;
      send[r] = {sending[r].raw(), mine.size() * out.bytes()};
      receive[r] = {receiving[r].raw(), of_rank[r] * in.bytes()};
    }
    RETURN_IF_ERROR(group_->Exchange(send, receive));
    if (in.size() == 0) continue;
    OrderedSum sum(count, /*max_pending=*/0);
    std::vector<int64_t> next(size, 0);
    for (int64_t m = 0; m < count; ++m) {
      const int64_t begin = next[ran[m]]++ * in.size();
      RETURN_IF_ERROR(
          sum.Add(m, {receiving[ran[m]].Rows(begin, begin + in.size())}));
    }
    sums.CopyIn(in.begin, in.end, sum.Take()[0].f32());
  }

  GradientList list;
  for (size_t i = 0; i < own().size(); ++i) {
    list.emplace_back(own()[i].name, std::move(sums.tensors()[i]));
  }
  return list;
}

absl::StatusOr<TensorMap> DenseExchange::GatherParameters(
    const TensorMap& own_tensors) {
  const int rank = group_->rank();
  const int size = group_->size();
  const int64_t chunk = Chunk(std::max(1, size - 1));
  std::vector<TensorBucket> parts;
  std::vector<Tensor> receiving(size);
  for (int r = 0; r < size; ++r) {
    parts.push_back(r == rank ? BucketOf(parts_[r], own_tensors)
                              : NewBucket(parts_[r]));
    receiving[r] = Tensor(ElementType::kFloat32,
                          {r == rank ? 0 : std::min(chunk, sizes_[r])});
  }
  Tensor sending(ElementType::kFloat32, {std::min(chunk, sizes_[rank])});
  for (int64_t round = 0; round < Rounds(chunk); ++round) {
    std::vector<SendBytes> send(size);
    std::vector<ReceiveBytes> receive(size);
    const Range out = RangeOf(rank, chunk, round);
    parts[rank].CopyOut(out.begin, out.end, sending.f32());
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      send[r] = {sending.raw(), out.bytes()};
      receive[r] = {receiving[r].raw(), RangeOf(r, chunk, round).bytes()};
    }
    RETURN_IF_ERROR(group_->Exchange(send, receive));
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      const Range in = RangeOf(r, chunk, round);
      parts[r].CopyIn(in.begin, in.end, receiving[r].f32());
    }
  }
  TensorMap all;
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < parts_[r].size(); ++i) {
      all[parts_[r][i].name] = std::move(parts[r].tensors()[i]);
    }
  }
  return all;
}

}  // namespace gshard
