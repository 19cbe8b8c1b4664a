// Builder: writes a program one operator at a time.
//
// Errors are sticky: the first error is kept, later calls do nothing, and
// Finish() returns it, so that model code needs no checks. A failed call
// returns kNoValue.
//
//   Builder b("ffn");
//   ValueId x = b.Input("x", {ElementType::kFloat32, {B, M}});
//   ValueId h = b.Relu(b.Einsum("bm,mh->bh", x, b.Parameter("wi", {M, H})));
//   b.Output("y", b.Einsum("bh,hm->bm", h, b.Parameter("wo", {H, M})));
//   ASSIGN_OR_RETURN(const Program program, b.Finish());

#ifndef SERVICES_GRAPH_BUILDER_H_
#define SERVICES_GRAPH_BUILDER_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/graph/op.h"
#include "services/graph/program.h"

namespace gshard {

struct AttentionAttributes {
  bool causal = false;
  double scale = 1.0;  // scales logits before the softmax
  // Dropout of the weights after the softmax, drawn from (`key`, `salt`).
  double dropout_rate = 0.0;
  int64_t salt = 0;
  // Keeps statistics of the softmax [B, N, Lq, 2], which the gradient needs.
  bool keep_statistics = false;
};

class Builder {
 public:
  explicit Builder(std::string name) { program_.name = std::move(name); }
  // Extends an existing program.
  explicit Builder(Program program);

  // Adds a node of any operator; the functions below are shorthands.
  //
  // Errors: NotFound for an unknown operator, InvalidArgument from its checks.
  std::vector<ValueId> AddNode(absl::string_view op,
                               std::vector<ValueId> operands,
                               Attributes attributes);
  // The same for operators with one result.
  ValueId AddOne(absl::string_view op, std::vector<ValueId> operands,
                 Attributes attributes = {});

  // Sources. Names are unique among inputs and among parameters; asking for a
  // parameter again returns the same value.
  ValueId Input(absl::string_view name, ValueType type);
  // A bfloat16 parameter is stored as float32 and rounded when it is used
  // (executor.h); its gradient is float32.
  ValueId Parameter(absl::string_view name, Shape shape,
                    ElementType type = ElementType::kFloat32);
  ValueId Constant(double value, Shape shape = {});

  // Elementwise. `b` has a's shape or its last dimensions.
  ValueId Add(ValueId a, ValueId b) { return AddOne("add", {a, b}); }
  ValueId Multiply(ValueId a, ValueId b) { return AddOne("multiply", {a, b}); }
  ValueId Divide(ValueId a, ValueId b) { return AddOne("divide", {a, b}); }
  ValueId Scale(ValueId x, double factor);
  // x itself if it has the type, or the source of the cast if x is a cast from
  // that type to float32.
  ValueId Cast(ValueId x, ElementType type);
  ValueId Relu(ValueId x) { return AddOne("relu", {x}); }
  // Zeroes elements with probability `rate` and scales the others up. `key` is
  // i64[]; `salt` distinguishes uses of one key.
  ValueId Dropout(ValueId x, ValueId key, double rate, int64_t salt);

  // Shape.
  ValueId Reshape(ValueId x, Shape shape);
  ValueId Transpose(ValueId x, std::vector<int64_t> permutation);
  ValueId ReduceSum(ValueId x, std::vector<int64_t> dims);
  // The largest element over `dims`; ties share the gradient.
  ValueId ReduceMax(ValueId x, std::vector<int64_t> dims);
  // Reverses the order along `dims`.
  ValueId Reverse(ValueId x, std::vector<int64_t> dims);
  // Adds `low` and `high` elements of `value` before and after each dimension;
  // negative ones crop. Padded dimensions must be static.
  ValueId Pad(ValueId x, std::vector<int64_t> low, std::vector<int64_t> high,
              double value = 0.0);
  // Elements [begin, end) of dimension `dim`, which must be static.
  ValueId Slice(ValueId x, int64_t dim, int64_t begin, int64_t end);

  // "blm,mh->blh": batch, free and summed letters, each at most once per
  // operand. Both operands are f32 or both bf16; the result is f32.
  ValueId Einsum(absl::string_view equation, ValueId a, ValueId b);
  // x [..., M] * rsqrt(mean(x^2) + epsilon) * scale [M].
  ValueId RmsNorm(ValueId x, ValueId scale, double epsilon);
  // table [V, M], ids i32[...] -> [..., M].
  ValueId Embedding(ValueId table, ValueId ids);
  // positions i32[...] -> [..., width].
  ValueId SinusoidalPositions(ValueId positions, int64_t width);
  // q [B, Lq, N, D], k and v [B, Lk, N, D], key_lengths i32[B] -> [B, Lq, N,
  // D]. `key` is kNoValue or i64[] (with dropout).
  ValueId Attention(ValueId q, ValueId k, ValueId v, ValueId key_lengths,
                    ValueId key, const AttentionAttributes& attributes);
  // logits [N, V], labels i32[N] (negative: padding) -> sum over N, f32[].
  ValueId CrossEntropy(ValueId logits, ValueId labels, double smoothing,
                       double z_loss);

  // rows [R, M] sorted by expert, weights [E, M, H], group_sizes i32[E]; types
  // as in Einsum.
  ValueId RaggedDot(ValueId rows, ValueId weights, ValueId group_sizes) {
    return AddOne("ragged_dot", {rows, weights, group_sizes});
  }
  ValueId RaggedBiasAdd(ValueId rows, ValueId bias, ValueId group_sizes) {
    return AddOne("ragged_bias_add", {rows, bias, group_sizes});
  }

  void Output(absl::string_view name, ValueId value);
  // Sets the sharding annotation of a value, which does not change its
  // elements.
  void Annotate(ValueId value, absl::string_view sharding);

  // A fresh symbol: the prefix followed by a number.
  Dim FreshSymbol(absl::string_view prefix);

  // Type of a value; f32[] for kNoValue.
  const ValueType& type(ValueId value) const;
  const Program& program() const { return program_; }
  const absl::Status& status() const { return status_; }
  // Records an error that the caller found.
  void Fail(absl::Status status);

  // The program, or the first error.
  absl::StatusOr<Program> Finish() &&;

 private:
  Program program_;
  std::set<std::string> output_names_;
  absl::Status status_;
  int64_t next_symbol_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_GRAPH_BUILDER_H_
