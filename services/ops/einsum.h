// Einsum of two tensors: "blm,mh->blh" contracts m.
//
// A letter is one of four kinds:
//   batch       in a, b and the result
//   row         in a and the result
//   column      in b and the result
//   contracted  in a and b, not in the result
//
// The bits of a result row do not depend on the sizes of the row and batch
// letters.

#ifndef SERVICES_OPS_EINSUM_H_
#define SERVICES_OPS_EINSUM_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct EinsumSpec {
  // The letters of each tensor, as written.
  std::string a;
  std::string b;
  std::string result;

  // The letters by kind. Batch, row and column letters are in the order of the
  // result, contracted ones in the order of a.
  std::string batch;
  std::string rows;
  std::string columns;
  std::string contracted;

  // "blm,mh->blh".
  std::string ToString() const;
};

// Errors: InvalidArgument if the text is not "letters,letters->letters", a
// letter is not in [a-zA-Z], is repeated in one tensor, is in the result only,
// or is in one operand and nowhere else.
absl::StatusOr<EinsumSpec> ParseEinsum(absl::string_view text);

// The einsums that compute the gradients: of a from (dresult, b), and of b from
// (a, dresult).
EinsumSpec GradientOfA(const EinsumSpec& spec);
EinsumSpec GradientOfB(const EinsumSpec& spec);

// An einsum as one matrix product per index of the batch letters,
//
//   [rows, contracted] [contracted, columns]
//
// Operands whose letters are in another order are transposed first. The plan
// depends on the letters only, as sizes must not change how a row is computed.
struct EinsumPlan {
  struct Operand {
    std::string letters;      // the order that the product needs
    bool transposed = false;  // [contracted, rows]; [columns, contracted]
  };
  bool swap = false;  // b is the first operand; its columns are the rows
  Operand first;
  Operand second;
  std::string batch, rows, columns, contracted;
  std::string result() const { return batch + rows + columns; }
};
EinsumPlan PlanEinsum(const EinsumSpec& spec);

// How Einsum() reads b if it uses both operands as they are stored: as a matrix
// whose rows are the contracted letters. Only then may b be in panels: those of
// panel.h if it is not transposed, or those of int8 (int8_panel.h).
struct MatrixOfB {
  int row_letters = 0;      // number of letters that are rows; 0: not so
  bool transposed = false;  // the rows are b's last letters, not its first
  bool operator==(const MatrixOfB&) const = default;
};
MatrixOfB MatrixOf(const EinsumSpec& spec);

// The result is float32. REQUIRES: both operands are float32 or both bfloat16,
// or a is float32 and b is int8, in panels as described by MatrixOf(); ranks
// are those of `spec`; a letter has the same size in both operands.
Tensor Einsum(const EinsumSpec& spec, const Tensor& a, const Tensor& b);

}  // namespace gshard

#endif  // SERVICES_OPS_EINSUM_H_
