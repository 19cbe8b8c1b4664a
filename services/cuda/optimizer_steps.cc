// The arithmetic of training in CudaRun.

#include <cstdint>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/cuda/cuda_device.h"
#include "services/cuda/kernels/launch_steps.h"

namespace gshard {
template <typename Function>
absl::Status CudaRun::Elements(const Function& function, int64_t size) {
  return Launched(cuda::LaunchElements(function, size, stream_));
}

void CudaRun::Use(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* const tensor : tensors) {
    CHECK(!tensor->on_host());
    CHECK(tensor->type() == ElementType::kFloat32);
    if (own_.count(tensor->device_data()) == 0) kept_.push_back(*tensor);
  }
}

absl::StatusOr<Tensor> CudaRun::Copy(const Tensor& x) {
  ASSIGN_OR_RETURN(Tensor copy, NewTensor(x.type(), x.dims()));
  Use({&x});
  RETURN_IF_ERROR(device_->Check(
      cudaMemcpyAsync(copy.device_data(), x.device_data(), x.bytes(),
                      cudaMemcpyDeviceToDevice, stream_),
      "cudaMemcpyAsync"));
  return copy;
}

absl::StatusOr<Tensor> CudaRun::RoundToBf16(const Tensor& x) {
  ASSIGN_OR_RETURN(Tensor rounded, NewTensor(ElementType::kBFloat16, x.dims()));
  Use({&x});
  RETURN_IF_ERROR(
      Elements(cuda::CastToBf16{In(x), Out<BFloat16>(rounded)}, x.size()));
  return rounded;
}

absl::Status CudaRun::Add(const Tensor& x, Tensor& sum) {
  CHECK(x.size() == sum.size());
  Use({&x, &sum});
  return Elements(cuda::AddTo{In(x), Out(sum)}, x.size());
}

template <typename Function>
absl::StatusOr<Tensor> CudaRun::SquaresOfRows(const cuda::RowsOfParts& rows,
                                              const Function& square) {
  ASSIGN_OR_RETURN(Tensor sums,
                   NewTensor(ElementType::kFloat64, {rows.rows()}));
  RETURN_IF_ERROR(Launched(cuda::LaunchRowSums(
      cuda::RowSums<Function>{rows, square, Out<double>(sums)}, stream_)));
  return sums;
}

absl::StatusOr<std::vector<double>> CudaRun::SumsOfSquares(const Tensor& x,
                                                           int64_t parts) {
  if (parts == 0) return std::vector<double>();
  Use({&x});
  const cuda::RowsOfParts rows = {parts, x.size() / parts, cuda::kSumWidth};
  ASSIGN_OR_RETURN(const Tensor squares,
                   SquaresOfRows(rows, cuda::Square{In(x)}));
  ASSIGN_OR_RETURN(Tensor sums, NewTensor(ElementType::kFloat64, {parts}));
  RETURN_IF_ERROR(Elements(
      cuda::PartSums{In<double>(squares), rows.of_part(), Out<double>(sums)},
      parts));
  ASSIGN_OR_RETURN(const Tensor host, ToHost(sums));
  RETURN_IF_ERROR(Finish());
  const auto values = host.span<double>();
  return std::vector<double>(values.begin(), values.end());
}

absl::Status CudaRun::Update(const AdamStep& step, const Tensor& gradient,
                             Tensor& weight, Tensor& first, Tensor& second) {
  CHECK(gradient.size() == weight.size());
  CHECK(first.size() == weight.size() && second.size() == weight.size());
  Use({&gradient, &weight, &first, &second});
  return Elements(cuda::AdamElements{step, In(gradient), Out(weight),
                                     Out(first), Out(second)},
                  weight.size());
}

absl::Status CudaRun::Update(const AdafactorStep& step, int64_t parts,
                             absl::Span<const int64_t> dims,
                             const Tensor& gradient, Tensor& weight,
                             absl::Span<Tensor> state) {
  const int64_t size = NumElements(dims);
  CHECK(weight.size() == parts * size && gradient.size() == weight.size());
  if (weight.size() == 0) return absl::OkStatus();
  Use({&gradient, &weight});
  for (const Tensor& tensor : state) Use({&tensor});
  const int64_t n = step.factored ? dims[0] : 1, m = size / n;
  const cuda::RowsOfParts rows = {parts, size, m};
  cuda::AdafactorUpdate u = {
      .step = step, .n = n, .m = m, .gradient = In(gradient)};
  Tensor row_factor, column_factor;
  if (step.factored) {
    CHECK(state.size() == 2 && state[0].size() == parts * n &&
          state[1].size() == parts * m);
    ASSIGN_OR_RETURN(row_factor, NewTensor(ElementType::kFloat32, {parts, n}));
    ASSIGN_OR_RETURN(column_factor,
                     NewTensor(ElementType::kFloat32, {parts, m}));
    ASSIGN_OR_RETURN(Tensor mean, NewTensor(ElementType::kFloat64, {parts}));
    ASSIGN_OR_RETURN(const Tensor squares,
                     SquaresOfRows(rows, cuda::Square{In(gradient)}));
    RETURN_IF_ERROR(
        Elements(cuda::RowMoments{step, m, In<double>(squares), Out(state[0])},
                 parts * n));
    RETURN_IF_ERROR(
        Elements(cuda::RowMeans{n, In(state[0]), Out<double>(mean)}, parts));
    RETURN_IF_ERROR(
        Elements(cuda::RowFactors{step, n, In(state[0]), In<double>(mean),
                                  Out(row_factor)},
                 parts * n));
    RETURN_IF_ERROR(
        Elements(cuda::ColumnMoments{step, n, m, In(gradient), Out(state[1]),
                                     Out(column_factor)},
                 parts * m));
    u.row_factor = In(row_factor);
    u.column_factor = In(column_factor);
  } else {
    CHECK(state.size() == 1 && state[0].size() == weight.size());
    RETURN_IF_ERROR(Elements(
        cuda::SecondMoments{step, In(gradient), Out(state[0])}, weight.size()));
    u.second = In(state[0]);
  }

  ASSIGN_OR_RETURN(Tensor rate, NewTensor(ElementType::kFloat32, {parts}));
  cuda::Rates rates = {.step = step, .size = size, .rate = Out(rate)};
  Tensor update_squares, weight_squares;
  if (step.clip_threshold > 0) {
    ASSIGN_OR_RETURN(update_squares, SquaresOfRows(rows, u));
    rates.update = {In<double>(update_squares), rows.of_part(), nullptr};
  }
  if (step.multiply_by_parameter_scale) {
    const cuda::RowsOfParts cut = {parts, size, cuda::kSumWidth};
    ASSIGN_OR_RETURN(weight_squares,
                     SquaresOfRows(cut, cuda::Square{In(weight)}));
    rates.weight = {In<double>(weight_squares), cut.of_part(), nullptr};
  }
  RETURN_IF_ERROR(Elements(rates, parts));
  return Launched(cuda::LaunchApplyUpdate(
      {u, rows.rows(), In(rate), Out(weight)}, stream_));
}

}  // namespace gshard
