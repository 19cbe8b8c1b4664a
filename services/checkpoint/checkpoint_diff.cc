#include "services/checkpoint/checkpoint_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

template <typename T>
double ToDouble(T x) {
  return static_cast<double>(x);
}
double ToDouble(BFloat16 x) { return ToFloat(x); }

template <typename T>
void CompareElements(const Tensor& a, const Tensor& b,
                     TensorDifference* difference) {
  const T* const values_a = reinterpret_cast<const T*>(a.raw());
  const T* const values_b = reinterpret_cast<const T*>(b.raw());
  difference->elements = static_cast<int64_t>(a.bytes() / sizeof(T));
  for (int64_t i = 0; i < difference->elements; ++i) {
    // Compares bits, not values: signs of zeros and NaNs count.
    if (std::memcmp(&values_a[i], &values_b[i], sizeof(T)) == 0) continue;
    const double x = ToDouble(values_a[i]);
    const double y = ToDouble(values_b[i]);
    if (difference->different++ == 0) {
      difference->first = i;
      difference->first_a = x;
      difference->first_b = y;
    }
    const double distance = std::isfinite(x) && std::isfinite(y)
                                ? std::abs(x - y)
                                : std::numeric_limits<double>::infinity();
    difference->max_abs = std::max(difference->max_abs, distance);
  }
}

void Compare(const Tensor& a, const Tensor& b, TensorDifference* difference) {
  switch (a.type()) {
    case ElementType::kFloat32:
      return CompareElements<float>(a, b, difference);
    case ElementType::kInt32:
      return CompareElements<int32_t>(a, b, difference);
    case ElementType::kInt64:
      return CompareElements<int64_t>(a, b, difference);
    case ElementType::kFloat64:
      return CompareElements<double>(a, b, difference);
    case ElementType::kUint8:
      return CompareElements<uint8_t>(a, b, difference);
    case ElementType::kBFloat16:
      return CompareElements<BFloat16>(a, b, difference);
    case ElementType::kInt8:  // no checkpoint has it
      break;
  }
  CHECK(false);
}

std::string LossText(const std::optional<double>& loss) {
  return loss.has_value() ? absl::StrFormat("%.17g", *loss) : "none";
}

std::vector<std::string> CompareFields(const Manifest& a, const Manifest& b) {
  std::vector<std::string> fields;
  if (a.step != b.step) {
    fields.push_back(absl::StrCat("step: ", a.step, " and ", b.step));
  }
  if (a.model_config != b.model_config) {
    fields.push_back("model_config: two models");
  }
  if (a.validation_loss != b.validation_loss) {
    fields.push_back(
        absl::StrCat("validation_loss: ", LossText(a.validation_loss), " and ",
                     LossText(b.validation_loss)));
  }
  if (a.tokenizer_sha256 != b.tokenizer_sha256) {
    fields.push_back("tokenizer: two files");
  }
  if (a.target_tokenizer_sha256 != b.target_tokenizer_sha256) {
    fields.push_back("target_tokenizer: two files");
  }
  return fields;
}

std::string TypeOf(const TensorEntry* entry) {
  return entry == nullptr ? "" : TypeString(entry->type, entry->dims);
}

// The names in either manifest, in order.
std::vector<std::string> AllNames(const Manifest& a, const Manifest& b) {
  std::vector<std::string> names;
  for (const Manifest* manifest : {&a, &b}) {
    for (const TensorEntry& entry : manifest->tensors) {
      names.push_back(entry.name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

absl::StatusOr<CheckpointDifference> DiffCheckpoints(
    const CheckpointReader& a, const CheckpointReader& b,
    const std::function<void(const TensorDifference&)>& seen) {
  CheckpointDifference result;
  result.fields = CompareFields(a.manifest(), b.manifest());
  for (const std::string& name : AllNames(a.manifest(), b.manifest())) {
    ++result.tensors;
    const TensorEntry* const entry_a = a.Find(name);
    const TensorEntry* const entry_b = b.Find(name);
    TensorDifference difference;
    difference.name = name;
    difference.type_a = TypeOf(entry_a);
    difference.type_b = TypeOf(entry_b);
    if (difference.type_a == difference.type_b) {
      if (entry_a->sha256 == entry_b->sha256) continue;
      ASSIGN_OR_RETURN(const Tensor tensor_a, a.Read(name));
      ASSIGN_OR_RETURN(const Tensor tensor_b, b.Read(name));
      Compare(tensor_a, tensor_b, &difference);
    }
    ++result.different;
    seen(difference);
  }
  return result;
}

}  // namespace gshard
