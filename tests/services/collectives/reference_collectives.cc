#include "tests/services/collectives/reference_collectives.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace gshard::reference {
namespace {

// Copies the element at flat index `from_index` whatever its type.
void CopyElement(const Tensor& from, int64_t from_index, Tensor* to,
                 int64_t to_index) {
  const size_t size = ElementSize(from.type());
  std::memcpy(to->raw() + to_index * size, from.raw() + from_index * size,
              size);
}

std::vector<int64_t> Unflatten(int64_t index, const Dims& dims) {
  std::vector<int64_t> indices(dims.size());
  for (int i = static_cast<int>(dims.size()) - 1; i >= 0; --i) {
    indices[i] = index % dims[i];
    index /= dims[i];
  }
  return indices;
}

int64_t Flatten(const std::vector<int64_t>& indices, const Dims& dims) {
  int64_t index = 0;
  for (size_t i = 0; i < dims.size(); ++i) index = index * dims[i] + indices[i];
  return index;
}

template <typename T>
Tensor Fold(const Tensors& tensors, Reduction reduction) {
  Tensor result = tensors[0].Clone();
  for (int64_t i = 0; i < result.size(); ++i) {
    T value = tensors[0].data<T>()[i];
    for (size_t r = 1; r < tensors.size(); ++r) {
      const T other = tensors[r].data<T>()[i];
      value =
          reduction == Reduction::kSum ? value + other : std::max(value, other);
    }
    result.data<T>()[i] = value;
  }
  return result;
}

// A row's expert, member, and index among the member's rows.
struct Row {
  int64_t expert;
  int source;
  int64_t position;
};

// Rows of experts [first, first + block), sorted; the range may exceed E.
RaggedRows Gather(const Tensors& rows, const Tensors& group_sizes,
                  int64_t first, int64_t block) {
  const int n = static_cast<int>(rows.size());
  std::vector<Row> chosen;
  RaggedRows result;
  result.group_sizes = Tensor::Zeros(ElementType::kInt32, {block});
  result.counts = Tensor::Zeros(ElementType::kInt32, {n, block});
  for (int source = 0; source < n; ++source) {
    int64_t position = 0;
    for (int64_t e = 0; e < group_sizes[source].dim(0); ++e) {
      for (int i = 0; i < group_sizes[source].i32()[e]; ++i, ++position) {
        if (e < first || e >= first + block) continue;
        chosen.push_back({e, source, position});
        ++result.group_sizes.i32()[e - first];
        ++result.counts.i32()[source * block + e - first];
      }
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const Row& a, const Row& b) {
    return std::tie(a.expert, a.source, a.position) <
           std::tie(b.expert, b.source, b.position);
  });
  Tensors ordered;
  for (const Row& row : chosen) {
    ordered.push_back(rows[row.source].Rows(row.position, row.position + 1));
  }
  ordered.push_back(Slice(rows[0], 0, 0, 0));  // dims if no row is chosen
  result.rows = Concatenate(ordered, 0);
  return result;
}

}  // namespace

Tensor Slice(const Tensor& tensor, int dim, int64_t begin, int64_t count) {
  Dims dims = tensor.dims();
  dims[dim] = count;
  Tensor result(tensor.type(), dims);
  for (int64_t i = 0; i < result.size(); ++i) {
    std::vector<int64_t> indices = Unflatten(i, dims);
    indices[dim] += begin;
    CopyElement(tensor, Flatten(indices, tensor.dims()), &result, i);
  }
  return result;
}

Tensor Concatenate(const Tensors& tensors, int dim) {
  Dims dims = tensors[0].dims();
  dims[dim] = 0;
  for (const Tensor& tensor : tensors) dims[dim] += tensor.dim(dim);
  Tensor result(tensors[0].type(), dims);
  int64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      std::vector<int64_t> indices = Unflatten(i, tensor.dims());
      indices[dim] += begin;
      CopyElement(tensor, i, &result, Flatten(indices, dims));
    }
    begin += tensor.dim(dim);
  }
  return result;
}

Tensor AllReduce(const Tensors& tensors, Reduction reduction) {
  switch (tensors[0].type()) {
    case ElementType::kFloat32:
      return Fold<float>(tensors, reduction);
    case ElementType::kFloat64:
      return Fold<double>(tensors, reduction);
    case ElementType::kInt32:
      return Fold<int32_t>(tensors, reduction);
    case ElementType::kInt64:
      return Fold<int64_t>(tensors, reduction);
    case ElementType::kBFloat16:
    case ElementType::kUint8:
    case ElementType::kInt8:
      break;
  }
  return Tensor();
}

Tensor ReduceScatter(const Tensors& tensors, int dim, int rank) {
  const int64_t part = tensors[0].dim(dim) / tensors.size();
  return Slice(AllReduce(tensors, Reduction::kSum), dim, rank * part, part);
}

Tensor AllToAll(const Tensors& tensors, int split_dim, int concat_dim,
                int rank) {
  const int64_t part = tensors[0].dim(split_dim) / tensors.size();
  Tensors parts;
  for (const Tensor& tensor : tensors) {
    parts.push_back(Slice(tensor, split_dim, rank * part, part));
  }
  return Concatenate(parts, concat_dim);
}

RaggedRows RaggedAllGather(const Tensors& rows, const Tensors& group_sizes) {
  return Gather(rows, group_sizes, 0, group_sizes[0].dim(0));
}

RaggedRows RaggedAllToAll(const Tensors& rows, const Tensors& group_sizes,
                          int rank) {
  const int64_t experts = group_sizes[0].dim(0);
  int64_t block = 1;
  while (block * static_cast<int64_t>(rows.size()) < experts) ++block;
  return Gather(rows, group_sizes, rank * block, block);
}

}  // namespace gshard::reference
