#include "services/coordinator/training/dense_parameters.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

DenseParameters::DenseParameters(std::string session,
                                 std::unique_ptr<ParameterStore> store,
                                 int64_t step, TaskQueue* sums)
    : session_(std::move(session)),
      sums_(sums),
      shard_(std::move(*store), step) {
  for (const NamedShape& shape : shard_.shapes()) {
    expected_[shape.name] = {ElementType::kFloat32, shape.dims};
  }
}

absl::StatusOr<NamedTensors> DenseParameters::Pull(int64_t version) const {
  const absl::StatusOr<TensorMap> tensors = shard_.TensorsOf(version);
  RETURN_IF_ERROR(
      Annotate(tensors.status(), absl::StrCat("session '", session_, "'")));
  return NamedTensors(tensors->begin(), tensors->end());
}

absl::Status DenseParameters::CheckPush(int64_t step, int32_t microbatch,
                                        int32_t attempt) const {
  return Annotate(shard_.CheckAdd(step, microbatch, attempt),
                  absl::StrCat("session '", session_, "'"));
}

void DenseParameters::Push(int64_t step, int32_t microbatch, int32_t attempt,
                           NamedTensors gradients,
                           std::function<void(const absl::Status&)> done) {
  auto kept =
      std::make_shared<GradientList>(std::make_move_iterator(gradients.begin()),
                                     std::make_move_iterator(gradients.end()));
  sums_->Post([=, this, done = std::move(done)] {
    done(shard_.Add(step, microbatch, attempt, std::move(*kept)));
  });
}

void DenseParameters::BeginStep(int32_t count, int32_t window) {
  shard_.BeginStep(count, window);
}

void DenseParameters::Expect(int32_t microbatch, int32_t attempt) {
  CHECK(shard_.Begin(step() + 1, microbatch, attempt).ok());
}

}  // namespace gshard
