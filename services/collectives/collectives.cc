#include "services/collectives/collectives.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"
#include "services/collectives/dim_parts.h"

namespace gshard {
namespace {

// Tensors up to this size are sent whole to everyone, which takes one exchange
// instead of two.
constexpr size_t kAllReduceAtOnceBytes = 4096;

absl::Status CheckDim(const char* what, const Tensor& tensor, int dim) {
  if (tensor.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected a tensor, got an absent one"));
  }
  if (dim < 0 || dim >= tensor.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected a dimension of ", tensor.TypeString(),
                     ", got ", dim));
  }
  return absl::OkStatus();
}

absl::Status CheckDivides(const char* what, const Tensor& tensor, int dim,
                          int parts) {
  RETURN_IF_ERROR(CheckDim(what, tensor, dim));
  if (tensor.dim(dim) % parts != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": expected dimension ", dim, " of ", tensor.TypeString(),
        " to divide by the ", parts, " members"));
  }
  return absl::OkStatus();
}

// Sends one part to each rank and collects the received ones in `received`, in
// rank order. The own part is not sent: it is sent[rank].
struct Parts {
  std::vector<const std::byte*> sent;
  std::vector<std::byte*> received;
};

absl::Status ExchangeParts(Communicator& comm, const Parts& parts,
                           absl::Span<const size_t> sent_bytes,
                           absl::Span<const size_t> received_bytes) {
  const int n = comm.size();
  std::vector<SendBytes> send(n);
  std::vector<ReceiveBytes> receive(n);
  for (int r = 0; r < n; ++r) {
    if (r == comm.rank()) continue;
    send[r] = {parts.sent[r], sent_bytes[r]};
    receive[r] = {parts.received[r], received_bytes[r]};
  }
  return comm.Exchange(send, receive);
}

absl::Status ExchangeEqualParts(Communicator& comm, const Parts& parts,
                                size_t bytes) {
  const std::vector<size_t> sizes(comm.size(), bytes);
  return ExchangeParts(comm, parts, sizes, sizes);
}

// Reduces the own part and the received ones into `result`.
void Fold(Communicator& comm, const Tensor& tensor, Reduction reduction,
          const Parts& parts, int64_t count, std::byte* result) {
  std::vector<const std::byte*> in_order(parts.received.begin(),
                                         parts.received.end());
  in_order[comm.rank()] = parts.sent[comm.rank()];
  ReduceInRankOrder(tensor.type(), reduction, in_order, count, result);
}

// The n parts of a tensor: where they are, or copied to `packed` where they are
// not contiguous.
std::vector<const std::byte*> PartsOf(const Tensor& tensor, const DimParts& cut,
                                      int n, Tensor& packed) {
  if (!cut.contiguous()) packed = Tensor(tensor.type(), tensor.dims());
  std::vector<const std::byte*> parts;
  for (int r = 0; r < n; ++r) {
    const size_t offset = r * cut.part_bytes();
    if (cut.contiguous()) {
      parts.push_back(tensor.raw() + offset);
    } else {
      cut.Take(tensor.raw(), r, packed.raw() + offset);
      parts.push_back(packed.raw() + offset);
    }
  }
  return parts;
}

// A tensor of these dims, whose parts along `dim` are those that were received.
absl::StatusOr<Tensor> ExchangeAndJoin(Communicator& comm,
                                       std::vector<const std::byte*> sent,
                                       ElementType type, const Dims& dims,
                                       int dim) {
  const int n = comm.size();
  const DimParts joined(type, dims, dim, n);
  Tensor result(type, dims);
  Tensor incoming = result;
  if (!joined.contiguous()) incoming = Tensor(type, dims);
  Parts parts{.sent = std::move(sent), .received = {}};
  for (int r = 0; r < n; ++r) {
    parts.received.push_back(incoming.raw() + r * joined.part_bytes());
  }
  RETURN_IF_ERROR(ExchangeEqualParts(comm, parts, joined.part_bytes()));
  for (int r = 0; r < n; ++r) {
    if (r == comm.rank()) {
      joined.Put(parts.sent[r], r, result.raw());
    } else if (!joined.contiguous()) {
      joined.Put(parts.received[r], r, result.raw());
    }
  }
  return result;
}

absl::StatusOr<Tensor> AllReduceAtOnce(Communicator& comm, const Tensor& tensor,
                                       Reduction reduction) {
  const int n = comm.size();
  Tensor incoming(ElementType::kUint8,
                  {n, static_cast<int64_t>(tensor.bytes())});
  Parts parts;
  for (int r = 0; r < n; ++r) {
    parts.sent.push_back(tensor.raw());
    parts.received.push_back(incoming.raw() + r * tensor.bytes());
  }
  RETURN_IF_ERROR(ExchangeEqualParts(comm, parts, tensor.bytes()));
  Tensor result(tensor.type(), tensor.dims());
  Fold(comm, tensor, reduction, parts, tensor.size(), result.raw());
  return result;
}

}  // namespace

absl::StatusOr<Tensor> AllReduce(Communicator& comm, const Tensor& tensor,
                                 Reduction reduction) {
  if (tensor.empty()) {
    return absl::InvalidArgumentError(
        "all-reduce: expected a tensor, got an absent one");
  }
  RETURN_IF_ERROR(Annotate(CheckReducible(tensor.type()), "all-reduce"));
  const int n = comm.size(), rank = comm.rank();
  if (n == 1) return tensor;
  if (tensor.bytes() <= kAllReduceAtOnceBytes) {
    return AllReduceAtOnce(comm, tensor, reduction);
  }

  // Rank r reduces elements [begin(r), begin(r + 1)).
  const size_t element = ElementSize(tensor.type());
  const auto begin = [&](int r) { return tensor.size() * r / n; };
  std::vector<size_t> bytes(n);
  for (int r = 0; r < n; ++r) bytes[r] = (begin(r + 1) - begin(r)) * element;

  Tensor incoming(ElementType::kUint8, {n, static_cast<int64_t>(bytes[rank])});
  Parts scatter;
  for (int r = 0; r < n; ++r) {
    scatter.sent.push_back(tensor.raw() + begin(r) * element);
    scatter.received.push_back(incoming.raw() + r * bytes[rank]);
  }
  const std::vector<size_t> own_bytes(n, bytes[rank]);
  RETURN_IF_ERROR(ExchangeParts(comm, scatter, bytes, own_bytes));

  Tensor result(tensor.type(), tensor.dims());
  std::byte* const own = result.raw() + begin(rank) * element;
  Fold(comm, tensor, reduction, scatter, begin(rank + 1) - begin(rank), own);

  Parts gather;
  for (int r = 0; r < n; ++r) {
    gather.sent.push_back(own);
    gather.received.push_back(result.raw() + begin(r) * element);
  }
  RETURN_IF_ERROR(ExchangeParts(comm, gather, own_bytes, bytes));
  return result;
}

absl::StatusOr<Tensor> ReduceScatter(Communicator& comm, const Tensor& tensor,
                                     int dim) {
  const int n = comm.size();
  RETURN_IF_ERROR(CheckDivides("reduce-scatter", tensor, dim, n));
  RETURN_IF_ERROR(Annotate(CheckReducible(tensor.type()), "reduce-scatter"));
  if (n == 1) return tensor;

  const DimParts cut(tensor.type(), tensor.dims(), dim, n);
  Tensor packed;
  Tensor incoming(tensor.type(), tensor.dims());
  Parts parts{.sent = PartsOf(tensor, cut, n, packed), .received = {}};
  for (int r = 0; r < n; ++r) {
    parts.received.push_back(incoming.raw() + r * cut.part_bytes());
  }
  RETURN_IF_ERROR(ExchangeEqualParts(comm, parts, cut.part_bytes()));
  Tensor result(tensor.type(), cut.part_dims());
  Fold(comm, tensor, Reduction::kSum, parts, result.size(), result.raw());
  return result;
}

absl::StatusOr<Tensor> AllGather(Communicator& comm, const Tensor& tensor,
                                 int dim) {
  const int n = comm.size();
  RETURN_IF_ERROR(CheckDim("all-gather", tensor, dim));
  if (n == 1) return tensor;

  Dims dims = tensor.dims();
  dims[dim] *= n;
  return ExchangeAndJoin(comm, std::vector<const std::byte*>(n, tensor.raw()),
                         tensor.type(), dims, dim);
}

absl::StatusOr<Tensor> AllToAll(Communicator& comm, const Tensor& tensor,
                                int split_dim, int concat_dim) {
  const int n = comm.size();
  RETURN_IF_ERROR(CheckDivides("all-to-all", tensor, split_dim, n));
  RETURN_IF_ERROR(CheckDim("all-to-all", tensor, concat_dim));
  if (n == 1) return tensor;

  const DimParts cut(tensor.type(), tensor.dims(), split_dim, n);
  Dims dims = cut.part_dims();
  dims[concat_dim] *= n;
  Tensor packed;
  return ExchangeAndJoin(comm, PartsOf(tensor, cut, n, packed), tensor.type(),
                         dims, concat_dim);
}

absl::StatusOr<Tensor> Permute(Communicator& comm, const Tensor& tensor,
                               absl::Span<const int> source) {
  const int n = comm.size(), rank = comm.rank();
  if (tensor.empty()) {
    return absl::InvalidArgumentError(
        "permute: expected a tensor, got an absent one");
  }
  bool valid = source.size() == static_cast<size_t>(n);
  for (const int r : source) valid = valid && r >= -1 && r < n;
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("permute: expected ", n, " sources from -1 to ", n - 1,
                     ", got [", absl::StrJoin(source, ", "), "]"));
  }
  if (n == 1 && source[0] == 0) return tensor;

  std::vector<SendBytes> send(n);
  std::vector<ReceiveBytes> receive(n);
  for (int r = 0; r < n; ++r) {
    if (r != rank && source[r] == rank)
      send[r] = {tensor.raw(), tensor.bytes()};
  }
  Tensor result = tensor;
  if (source[rank] == -1) {
    result = Tensor::Zeros(tensor.type(), tensor.dims());
  } else if (source[rank] != rank) {
    result = Tensor(tensor.type(), tensor.dims());
    receive[source[rank]] = {result.raw(), result.bytes()};
  }
  RETURN_IF_ERROR(comm.Exchange(send, receive));
  return result;
}

}  // namespace gshard
