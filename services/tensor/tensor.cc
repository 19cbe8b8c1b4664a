#include "services/tensor/tensor.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/retry_delay.h"

namespace gshard {

int64_t NumElements(absl::Span<const int64_t> dims) {
  int64_t size = 1;
  for (const int64_t dim : dims) size *= dim;
  return size;
}

std::string DimsToString(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

Tensor::Tensor(ElementType type, Dims dims)
    : type_(type), dims_(std::move(dims)), size_(NumElements(dims_)) {
  for (const int64_t dim : dims_) CHECK(dim >= 0);
  data_ = AllocateBuffer(bytes());
}

Tensor Tensor::Zeros(ElementType type, Dims dims) {
  Tensor tensor(type, std::move(dims));
  std::memset(tensor.raw(), 0, tensor.bytes());
  return tensor;
}

Tensor Tensor::ZeroRows(ElementType type, Dims dims,
                        std::vector<bool> written) {
  CHECK(!dims.empty() && static_cast<size_t>(dims[0]) == written.size());
  Tensor tensor;
  tensor.type_ = type;
  tensor.dims_ = std::move(dims);
  tensor.size_ = NumElements(tensor.dims_);
  tensor.written_rows_ = std::make_shared<const std::vector<bool>>(written);
  const size_t row_bytes =
      written.empty() ? 0 : tensor.bytes() / written.size();
  tensor.data_ = AllocateZeroRows(row_bytes, std::move(written));
  return tensor;
}

Tensor Tensor::Scalar(float value) {
  Tensor tensor(ElementType::kFloat32, {});
  tensor.f32()[0] = value;
  return tensor;
}

Tensor Tensor::Int64Scalar(int64_t value) {
  Tensor tensor(ElementType::kInt64, {});
  *tensor.data<int64_t>() = value;
  return tensor;
}

Tensor Tensor::Wrap(ElementType type, Dims dims, std::byte* data,
                    std::shared_ptr<void> keeper) {
  Tensor tensor;
  tensor.type_ = type;
  tensor.dims_ = std::move(dims);
  tensor.size_ = NumElements(tensor.dims_);
  tensor.data_ = std::shared_ptr<std::byte>(std::move(keeper), data);
  return tensor;
}

Tensor Tensor::Panels(ElementType type, Dims dims, int64_t rows, size_t bytes) {
  CHECK(rows > 0);
  Tensor tensor;
  tensor.type_ = type;
  tensor.dims_ = std::move(dims);
  tensor.size_ = NumElements(tensor.dims_);
  tensor.data_ = AllocateBuffer(bytes);
  tensor.panel_rows_ = rows;
  tensor.panel_bytes_ = bytes;
  return tensor;
}

Tensor Tensor::OnDevice(ElementType type, Dims dims,
                        std::shared_ptr<std::byte> data) {
  Tensor tensor;
  tensor.type_ = type;
  tensor.dims_ = std::move(dims);
  tensor.size_ = NumElements(tensor.dims_);
  tensor.data_ = std::move(data);
  tensor.on_device_ = true;
  return tensor;
}

Tensor Tensor::WithData(std::shared_ptr<std::byte> data, bool on_device) const {
  Tensor tensor = *this;
  tensor.data_ = std::move(data);
  tensor.on_device_ = on_device;
  tensor.written_rows_ = nullptr;
  return tensor;
}

Tensor Tensor::Reshaped(Dims dims) const {
  CHECK(NumElements(dims) == size_ && panel_rows_ == 0);
  Tensor tensor = *this;
  tensor.dims_ = std::move(dims);
  if (written_rows_ != nullptr &&
      (tensor.rank() == 0 || tensor.dim(0) != dim(0))) {
    tensor.written_rows_ = std::make_shared<const std::vector<bool>>(
        tensor.rank() == 0 ? 0 : tensor.dim(0), true);
  }
  return tensor;
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  CHECK(rank() > 0 && 0 <= begin && begin <= end && end <= dim(0));
  CHECK(panel_rows_ == 0);
  const int64_t row = dim(0) == 0 ? 0 : size_ / dim(0);
  Tensor rows = *this;
  rows.dims_[0] = end - begin;
  if (written_rows_ != nullptr) {
    rows.written_rows_ = std::make_shared<const std::vector<bool>>(
        written_rows_->begin() + begin, written_rows_->begin() + end);
  }
  rows.size_ = row * (end - begin);
  rows.data_ = std::shared_ptr<std::byte>(
      data_, data_.get() + begin * row * ElementSize(type_));
  return rows;
}

Tensor Tensor::Clone() const {
  Tensor copy = panel_rows_ > 0
                    ? Panels(type_, dims_, panel_rows_, panel_bytes_)
                    : Tensor(type_, dims_);
  std::memcpy(copy.data_.get(), buffer(), bytes());
  return copy;
}

std::string Tensor::TypeString() const {
  return absl::StrCat(ElementTypeName(type_), DimsToString(dims_));
}

absl::StatusOr<Tensor> AllocateTensor(ElementType type, Dims dims) {
  try {
    return Tensor(type, dims);
  } catch (const std::bad_alloc&) {
    return NoMemoryError(absl::StrCat("no memory for ", ElementTypeName(type),
                                      DimsToString(dims)));
  }
}

}  // namespace gshard
