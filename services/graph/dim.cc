#include "services/graph/dim.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

// Real dimensions have a few factors; more would be an attack on the sorting.
constexpr size_t kMaxFactors = 16;

// 8 TiB of float32: rejects obvious errors, so that size arithmetic cannot
// overflow.
constexpr int64_t kMaxElements = int64_t{1} << 41;

absl::Status TooLarge(absl::Span<const Dim> shape) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a tensor ", ShapeToString(shape), " is too large"));
}

bool IsSymbol(absl::string_view name) {
  if (name.empty() || name.size() > 64 || !absl::ascii_isalpha(name[0])) {
    return false;
  }
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

Dim Dim::Symbol(absl::string_view name) {
  CHECK(IsSymbol(name));
  Dim dim(1);
  dim.symbols_.emplace_back(name);
  return dim;
}

Dim Dim::operator*(const Dim& other) const {
  Dim product = *this;
  // Saturates: a program from the wire may contain any sizes, and an impossible
  // size is detected when it is bound.
  if (__builtin_mul_overflow(coefficient_, other.coefficient_,
                             &product.coefficient_)) {
    product.coefficient_ = std::numeric_limits<int64_t>::max();
  }
  product.symbols_.insert(product.symbols_.end(), other.symbols_.begin(),
                          other.symbols_.end());
  std::sort(product.symbols_.begin(), product.symbols_.end());
  return product;
}

std::string Dim::ToString() const {
  if (is_static()) return absl::StrCat(coefficient_);
  const std::string product = absl::StrJoin(symbols_, "*");
  return coefficient_ == 1 ? product : absl::StrCat(coefficient_, "*", product);
}

absl::StatusOr<Dim> Dim::Parse(absl::string_view text) {
  Dim dim(1);
  const std::vector<absl::string_view> factors = absl::StrSplit(text, '*');
  if (factors.size() > kMaxFactors) {
    return absl::InvalidArgumentError(
        absl::StrCat("dimension must have at most ", kMaxFactors,
                     " factors, got ", factors.size()));
  }
  for (const absl::string_view factor : factors) {
    int64_t size;
    if (IsSymbol(factor)) {
      dim = dim * Symbol(factor);
    } else if (absl::SimpleAtoi(factor, &size) && size >= 0 &&
               size <= (int64_t{1} << 40)) {
      dim = dim * Dim(size);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "dimension must be a size up to 2^40, a symbol or a product of "
          "them, got '",
          text, "'"));
    }
  }
  return dim;
}

std::string ShapeToString(absl::Span<const Dim> shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, const Dim& dim) {
                                      absl::StrAppend(out, dim.ToString());
                                    }),
                      "]");
}

Dim ShapeSize(absl::Span<const Dim> shape) {
  Dim size(1);
  for (const Dim& dim : shape) size = size * dim;
  return size;
}

std::string ValueType::ToString() const {
  return absl::StrCat(ElementTypeName(type), ShapeToString(shape));
}

absl::Status Bindings::Unify(absl::Span<const Dim> shape,
                             absl::Span<const int64_t> dims) {
  const auto mismatch = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", ShapeToString(shape), ", got ", DimsToString(dims), why));
  };
  if (shape.size() != dims.size()) return mismatch("");
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t known = shape[i].coefficient();
    const std::string* unknown = nullptr;
    for (const std::string& symbol : shape[i].symbols()) {
      if (auto found = sizes_.find(symbol); found != sizes_.end()) {
        if (__builtin_mul_overflow(known, found->second, &known)) {
          return mismatch(
              absl::StrCat("; ", shape[i].ToString(), " is beyond 2^63"));
        }
      } else if (unknown == nullptr) {
        unknown = &symbol;
      } else {
        return mismatch(
            absl::StrCat("; ", *unknown, " and ", symbol, " are both unknown"));
      }
    }
    if (unknown == nullptr) {
      if (known != dims[i]) {
        return mismatch(
            shape[i].is_static()
                ? std::string()
                : absl::StrCat(" where ", shape[i].ToString(), " = ", known));
      }
    } else if (known == 0 || dims[i] % known != 0) {
      return mismatch(
          absl::StrCat("; ", dims[i], " is no multiple of ", known));
    } else {
      sizes_[*unknown] = dims[i] / known;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Dims> Bindings::Resolve(absl::Span<const Dim> shape) const {
  Dims dims;
  for (const Dim& dim : shape) {
    int64_t size = dim.coefficient();
    for (const std::string& symbol : dim.symbols()) {
      auto found = sizes_.find(symbol);
      if (found == sizes_.end()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "symbol ", symbol, " of ", ShapeToString(shape), " is not bound"));
      }
      if (__builtin_mul_overflow(size, found->second, &size)) {
        return TooLarge(shape);
      }
    }
    dims.push_back(size);
  }
  // A size of 0 must not hide an overflow: 2^40 * 2^40 * 0.
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(elements, std::max<int64_t>(dim, 1),
                               &elements) ||
        elements > kMaxElements) {
      return TooLarge(shape);
    }
  }
  return dims;
}

}  // namespace gshard
