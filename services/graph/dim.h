// Symbolic dimension sizes.
//
// A Dim is a product of a positive integer and symbols: 512, B, 2*B*L. Symbols
// stand for sizes that differ from run to run (sentences, positions, rows of a
// ragged batch) and are bound when a program runs.

#ifndef SERVICES_GRAPH_DIM_H_
#define SERVICES_GRAPH_DIM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/tensor/element_type.h"
#include "services/tensor/tensor.h"

namespace gshard {

class Dim {
 public:
  Dim(int64_t size) : coefficient_(size) {}  // NOLINT: sizes read as dims
  static Dim Symbol(absl::string_view name);

  bool is_static() const { return symbols_.empty(); }
  // REQUIRES: is_static().
  int64_t size() const { return coefficient_; }

  int64_t coefficient() const { return coefficient_; }
  // Sorted; a symbol may occur more than once.
  const std::vector<std::string>& symbols() const { return symbols_; }

  Dim operator*(const Dim& other) const;
  bool operator==(const Dim& other) const = default;

  // "512", "B", "2*B*L".
  std::string ToString() const;

  // At most 16 factors. Errors: InvalidArgument naming the text.
  static absl::StatusOr<Dim> Parse(absl::string_view text);

 private:
  int64_t coefficient_;
  std::vector<std::string> symbols_;
};

using Shape = std::vector<Dim>;

// "[B, L, 512]".
std::string ShapeToString(absl::Span<const Dim> shape);

// Product of all dims.
Dim ShapeSize(absl::Span<const Dim> shape);

// Type of a value of the program: element type and shape.
struct ValueType {
  ElementType type = ElementType::kFloat32;
  Shape shape;

  bool operator==(const ValueType& other) const = default;
  // "f32[B, 512]".
  std::string ToString() const;
};

// Sizes of symbols in one run.
class Bindings {
 public:
  // Matches `dims` with `shape`, binding unbound symbols. A dimension may
  // contain at most one of these.
  //
  // Errors: InvalidArgument with both if they disagree.
  absl::Status Unify(absl::Span<const Dim> shape,
                     absl::Span<const int64_t> dims);

  // Errors: FailedPrecondition naming a symbol that is not bound;
  // ResourceExhausted for a tensor of more than 2^41 elements.
  absl::StatusOr<Dims> Resolve(absl::Span<const Dim> shape) const;

 private:
  std::map<std::string, int64_t, std::less<>> sizes_;
};

}  // namespace gshard

#endif  // SERVICES_GRAPH_DIM_H_
