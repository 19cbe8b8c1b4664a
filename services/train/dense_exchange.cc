#include "services/train/dense_exchange.h"

#include <algorithm>
#include <iterator>
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

absl::StatusOr<Tensor> NewTensor(DeviceRun* run, Dims dims) {
  if (run == nullptr) {
    return AllocateTensor(ElementType::kFloat32, std::move(dims));
  }
  return run->NewTensor(ElementType::kFloat32, std::move(dims));
}

absl::StatusOr<TensorBucket> NewBucket(DeviceRun* run, const Specs& specs) {
  std::vector<Tensor> bucket;
  for (const ParameterSpec& spec : specs) {
    ASSIGN_OR_RETURN(bucket.emplace_back(), NewTensor(run, spec.dims));
  }
  return TensorBucket(std::move(bucket));
}

// Sums the contributions of all microbatches, of which there is at least one.
absl::StatusOr<Tensor> SumInOrder(DeviceRun* run,
                                  absl::Span<const Tensor> contributions) {
  if (run == nullptr) {
    OrderedSum sum(std::ssize(contributions), /*max_early=*/0);
    for (size_t m = 0; m < contributions.size(); ++m) {
      RETURN_IF_ERROR(sum.Add(static_cast<int64_t>(m), {contributions[m]}));
    }
    return sum.Take()[0];
  }
  Tensor sum;
  for (const Tensor& contribution : contributions) {
    ASSIGN_OR_RETURN(const Tensor there, run->ToDevice(contribution));
    if (sum.empty()) {
      ASSIGN_OR_RETURN(sum, run->Copy(there));
    } else {
      RETURN_IF_ERROR(run->Add(there, sum));
    }
  }
  return sum;
}

// Where the tensor is, on the host or on a device.
std::byte* AddressOf(Tensor& tensor) {
  return tensor.on_host() ? tensor.raw() : tensor.device_data();
}

}  // namespace

DenseExchange::DenseExchange(const std::vector<ParameterSpec>& specs,
                             const TensorOwners& owners, Communicator* group,
                             size_t max_round_bytes, Device* device)
    : group_(group), max_round_bytes_(max_round_bytes), device_(device) {
  CHECK(owners.size() == static_cast<size_t>(group->size()));
  CHECK(max_round_bytes >= sizeof(float));
  CHECK(device != nullptr || !group->on_device());
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

absl::StatusOr<std::unique_ptr<DeviceRun>> DenseExchange::BeginRun() const {
  if (device_ == nullptr) return nullptr;
  return device_->BeginRun();
}

absl::StatusOr<Tensor> DenseExchange::NewReceiving(DeviceRun* run,
                                                   int64_t elements) const {
  return NewTensor(group_->on_device() ? run : nullptr, {elements});
}

absl::Status DenseExchange::Exchange(DeviceRun* run,
                                     absl::Span<const Tensor> sending,
                                     absl::Span<const int64_t> send,
                                     std::vector<Tensor>& receiving,
                                     absl::Span<const int64_t> receive) {
  std::vector<Tensor> sent(sending.begin(), sending.end());
  if (run != nullptr && !group_->on_device()) {
    // One buffer may go to several members, then as much of it to each.
    std::map<const std::byte*, Tensor> on_host;
    for (size_t r = 0; r < sent.size(); ++r) {
      if (send[r] == 0) continue;
      Tensor& copy = on_host[sent[r].device_data()];
      if (copy.empty()) {
        ASSIGN_OR_RETURN(copy, run->ToHost(sent[r].Rows(0, send[r])));
      }
      sent[r] = copy;
    }
  }
  if (run != nullptr) RETURN_IF_ERROR(run->Finish());
  std::vector<SendBytes> send_bytes(send.size());
  std::vector<ReceiveBytes> receive_bytes(send.size());
  for (size_t r = 0; r < send.size(); ++r) {
    if (send[r] > 0) send_bytes[r].data = AddressOf(sent[r]);
    if (receive[r] > 0) receive_bytes[r].data = AddressOf(receiving[r]);
    send_bytes[r].size = send[r] * sizeof(float);
    receive_bytes[r].size = receive[r] * sizeof(float);
  }
  return group_->Exchange(send_bytes, receive_bytes);
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

  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, BeginRun());
  std::vector<Tensor> sending(size), receiving(size);
  for (int r = 0; r < size; ++r) {
    const int64_t in = of_rank[r] * std::min(chunk, sizes_[rank]);
    if (r == rank) {
      // This member's own contributions are not sent, but copied to the same
      // place.
      ASSIGN_OR_RETURN(receiving[r], NewTensor(run.get(), {in}));
      continue;
    }
    const int64_t out = of_rank[rank] * std::min(chunk, sizes_[r]);
    ASSIGN_OR_RETURN(receiving[r], NewReceiving(run.get(), in));
    ASSIGN_OR_RETURN(sending[r], NewTensor(run.get(), {out}));
  }
  ASSIGN_OR_RETURN(TensorBucket sums, NewBucket(run.get(), own()));
  for (int64_t round = 0; round < Rounds(chunk); ++round) {
    std::vector<int64_t> send(size, 0), receive(size, 0);
    const Range in = RangeOf(rank, chunk, round);
    for (int r = 0; r < size; ++r) {
      const Range out = RangeOf(r, chunk, round);
      int64_t at = 0;
      for (const std::vector<TensorBucket>& buckets : mine) {
        RETURN_IF_ERROR(
            buckets[r].CopyOut(run.get(), out.begin, out.end,
                               r == rank ? receiving[r] : sending[r], at));
        at += out.size();
      }
      if (r == rank) continue;
      send[r] = at;
      receive[r] = of_rank[r] * in.size();
    }
    RETURN_IF_ERROR(Exchange(run.get(), sending, send, receiving, receive));
    if (in.size() == 0) continue;
    std::vector<Tensor> contributions;
    std::vector<int64_t> next(size, 0);
    for (const int r : ran) {
      const int64_t begin = next[r]++ * in.size();
      contributions.push_back(receiving[r].Rows(begin, begin + in.size()));
    }
    ASSIGN_OR_RETURN(const Tensor sum, SumInOrder(run.get(), contributions));
    RETURN_IF_ERROR(sums.CopyIn(run.get(), in.begin, in.end, sum, /*at=*/0));
  }
  if (run != nullptr) RETURN_IF_ERROR(run->Finish());

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
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, BeginRun());
  std::vector<TensorBucket> parts;
  std::vector<Tensor> receiving(size);
  for (int r = 0; r < size; ++r) {
    if (r == rank) {
      parts.push_back(BucketOf(parts_[r], own_tensors));
      continue;
    }
    ASSIGN_OR_RETURN(TensorBucket part, NewBucket(run.get(), parts_[r]));
    parts.push_back(std::move(part));
    ASSIGN_OR_RETURN(receiving[r],
                     NewReceiving(run.get(), std::min(chunk, sizes_[r])));
  }
  ASSIGN_OR_RETURN(Tensor sending,
                   NewTensor(run.get(), {std::min(chunk, sizes_[rank])}));
  for (int64_t round = 0; round < Rounds(chunk); ++round) {
    std::vector<int64_t> send(size, 0), receive(size, 0);
    const Range out = RangeOf(rank, chunk, round);
    RETURN_IF_ERROR(parts[rank].CopyOut(run.get(), out.begin, out.end, sending,
                                        /*at=*/0));
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      send[r] = out.size();
      receive[r] = RangeOf(r, chunk, round).size();
    }
    RETURN_IF_ERROR(Exchange(run.get(), std::vector<Tensor>(size, sending),
                             send, receiving, receive));
    for (int r = 0; r < size; ++r) {
      if (receive[r] == 0) continue;
      Tensor received = receiving[r].Rows(0, receive[r]);
      if (run != nullptr) {
        ASSIGN_OR_RETURN(received, run->ToDevice(received));
      }
      const Range in = RangeOf(r, chunk, round);
      RETURN_IF_ERROR(
          parts[r].CopyIn(run.get(), in.begin, in.end, received, /*at=*/0));
    }
  }
  if (run != nullptr) RETURN_IF_ERROR(run->Finish());
  TensorMap all;
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < parts_[r].size(); ++i) {
      all[parts_[r][i].name] = std::move(parts[r].tensors()[i]);
    }
  }
  return all;
}

}  // namespace gshard
