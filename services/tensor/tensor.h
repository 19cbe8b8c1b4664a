// Tensor: a dense row-major array that shares its buffer when copied.
//
// Copying a Tensor is cheap and aliases; by convention a tensor that more than
// one holder can see is not written. Clone() makes an independent copy.
// Thread-safety: const access from any thread; writing needs a single owner.
//
// Weights may be packed into panels instead, for matrix products
// (services/ops/panel.h), and int8 weights always are (int8_panel.h): such a
// tensor has dims, but no row-major elements to access. The elements of a
// tensor in device memory (services/graph/device.h) are accessible only on that
// device.

#ifndef SERVICES_TENSOR_TENSOR_H_
#define SERVICES_TENSOR_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/check.h"
#include "services/tensor/buffer.h"
#include "services/tensor/element_type.h"

namespace gshard {

// Sizes of the dimensions, outermost first; empty for a scalar.
using Dims = absl::InlinedVector<int64_t, 6>;

// Product of the sizes; 1 for a scalar.
int64_t NumElements(absl::Span<const int64_t> dims);

// "[2, 3]".
std::string DimsToString(absl::Span<const int64_t> dims);

class Tensor {
 public:
  // An absent tensor: empty() is true.
  Tensor() = default;

  // Contents undefined. REQUIRES: no size is negative.
  Tensor(ElementType type, Dims dims);

  static Tensor Zeros(ElementType type, Dims dims);

  // Zeros, except for the rows of the outermost dimension selected by `written`
  // (one entry per row): their contents are undefined, and only they may be
  // written. Other rows cost nothing (AllocateZeroRows); it is never unique().
  static Tensor ZeroRows(ElementType type, Dims dims,
                         std::vector<bool> written);

  template <typename T>
  static Tensor Of(Dims dims, absl::Span<const T> values) {
    Tensor tensor(ElementTypeOf<T>::value, std::move(dims));
    CHECK(static_cast<size_t>(tensor.size()) == values.size());
    std::copy(values.begin(), values.end(), tensor.data<T>());
    return tensor;
  }
  static Tensor Floats(Dims dims, const std::vector<float>& values) {
    return Of<float>(std::move(dims), values);
  }
  static Tensor Ints(Dims dims, const std::vector<int32_t>& values) {
    return Of<int32_t>(std::move(dims), values);
  }
  static Tensor Scalar(float value);
  static Tensor Int64Scalar(int64_t value);

  // A tensor over memory owned by `keeper`, which the tensor keeps alive.
  // REQUIRES: `data` holds the elements, aligned for their type.
  static Tensor Wrap(ElementType type, Dims dims, std::byte* data,
                     std::shared_ptr<void> keeper);

  // Matrices of `rows` rows each, packed into panels of `bytes` bytes in total;
  // contents undefined.
  static Tensor Panels(ElementType type, Dims dims, int64_t rows, size_t bytes);

  // A tensor in device memory, at an address of that device.
  static Tensor OnDevice(ElementType type, Dims dims,
                         std::shared_ptr<std::byte> data);

  // A tensor of this type, these dims and these panels whose bytes() are at
  // `data`, on a device or on the host.
  Tensor WithData(std::shared_ptr<std::byte> data, bool on_device) const;

  bool empty() const { return data_ == nullptr; }
  bool on_host() const { return !on_device_; }
  ElementType type() const { return type_; }
  const Dims& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int i) const { return dims_[i]; }
  int64_t size() const { return size_; }
  size_t bytes() const {
    return panel_rows_ > 0 ? panel_bytes_ : size_ * ElementSize(type_);
  }

  // Rows of each matrix if the tensor is in panels, otherwise 0.
  int64_t panel_rows() const { return panel_rows_; }
  // REQUIRES: it is in panels, and T is its type.
  template <typename T>
  const T* panels() const {
    CHECK(panel_rows_ > 0 && type_ == ElementTypeOf<T>::value);
    return reinterpret_cast<const T*>(data_.get());
  }
  template <typename T>
  T* panels() {
    CHECK(panel_rows_ > 0 && type_ == ElementTypeOf<T>::value);
    return reinterpret_cast<T*>(data_.get());
  }

  // Its address in device memory. REQUIRES: it is there.
  const std::byte* device_data() const {
    CHECK(on_device_);
    return data_.get();
  }
  std::byte* device_data() {
    CHECK(on_device_);
    return data_.get();
  }

  // All bytes(), row-major or in panels. REQUIRES: the tensor is on the host.
  const std::byte* buffer() const {
    CHECK(!on_device_);
    return data_.get();
  }

  // REQUIRES, as all below: the tensor is on the host and not in panels.
  const std::byte* raw() const {
    CHECK(panel_rows_ == 0 && !on_device_);
    return data_.get();
  }
  std::byte* raw() {
    CHECK(panel_rows_ == 0 && !on_device_);
    return data_.get();
  }

  template <typename T>
  const T* data() const {
    CHECK(type_ == ElementTypeOf<T>::value);
    return reinterpret_cast<const T*>(raw());
  }
  template <typename T>
  T* data() {
    CHECK(type_ == ElementTypeOf<T>::value);
    return reinterpret_cast<T*>(raw());
  }
  template <typename T>
  absl::Span<const T> span() const {
    return {data<T>(), static_cast<size_t>(size_)};
  }
  template <typename T>
  absl::Span<T> span() {
    return {data<T>(), static_cast<size_t>(size_)};
  }
  const float* f32() const { return data<float>(); }
  float* f32() { return data<float>(); }
  const int32_t* i32() const { return data<int32_t>(); }
  int32_t* i32() { return data<int32_t>(); }

  // True if no other tensor shares the buffer, so that it may be overwritten.
  bool unique() const {
    return data_.use_count() == 1 && written_rows_ == nullptr;
  }

  // Whether row `i` of the outermost dimension is known to be zeros.
  bool IsZeroRow(int64_t i) const {
    return written_rows_ != nullptr && !(*written_rows_)[i];
  }

  // The same elements under other sizes, sharing the buffer.
  // REQUIRES: the number of elements is the same.
  Tensor Reshaped(Dims dims) const;

  // Rows [begin, end) of the outermost dimension, sharing the buffer.
  Tensor Rows(int64_t begin, int64_t end) const;

  // Also of a tensor in panels.
  Tensor Clone() const;

  // "f32[2, 3]".
  std::string TypeString() const;

 private:
  ElementType type_ = ElementType::kFloat32;
  Dims dims_;
  int64_t size_ = 0;
  std::shared_ptr<std::byte> data_;
  int64_t panel_rows_ = 0;
  size_t panel_bytes_ = 0;
  // Set by ZeroRows(), otherwise null. A view has as many entries as rows.
  std::shared_ptr<const std::vector<bool>> written_rows_;
  bool on_device_ = false;
};

// Tensor(type, dims), for callers that nobody catches std::bad_alloc for.
// Errors: ResourceExhausted.
absl::StatusOr<Tensor> AllocateTensor(ElementType type, Dims dims);

}  // namespace gshard

#endif  // SERVICES_TENSOR_TENSOR_H_
