// Builder's shorthands for operators that no model of the project has.

#ifndef TESTS_TESTING_BUILDER_OPS_H_
#define TESTS_TESTING_BUILDER_OPS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "services/graph/builder.h"

namespace gshard {

inline ValueId Subtract(Builder& b, ValueId x, ValueId y) {
  return b.AddOne("subtract", {x, y});
}

inline ValueId Exp(Builder& b, ValueId x) { return b.AddOne("exp", {x}); }

// Over the last dimension.
inline ValueId Softmax(Builder& b, ValueId x) {
  return b.AddOne("softmax", {x});
}

inline ValueId Concat(Builder& b, std::vector<ValueId> parts, int64_t dim) {
  return b.AddOne("concat", std::move(parts), {{"dim", dim}});
}

// One entry per spatial dimension; an empty list means ones (strides and
// dilations) or zeros (padding). See services/ops/window.h.
struct ConvolutionAttributes {
  std::vector<int64_t> stride = {};
  std::vector<int64_t> pad_low = {};
  std::vector<int64_t> pad_high = {};
  std::vector<int64_t> base_dilation = {};
  std::vector<int64_t> window_dilation = {};
};

// x [B, X1..Xk, I], kernel [K1..Kk, I, O] -> [B, Y1..Yk, O]; k is 1 or 2.
inline ValueId Convolution(Builder& b, ValueId x, ValueId kernel,
                           ConvolutionAttributes attributes = {}) {
  const size_t rank = b.type(x).shape.size();
  const auto list = [rank](std::vector<int64_t>& given, int64_t usual) {
    if (given.empty() && rank > 2) given.assign(rank - 2, usual);
    return std::move(given);
  };
  return b.AddOne("convolution", {x, kernel},
                  {{"stride", list(attributes.stride, 1)},
                   {"pad_low", list(attributes.pad_low, 0)},
                   {"pad_high", list(attributes.pad_high, 0)},
                   {"base_dilation", list(attributes.base_dilation, 1)},
                   {"window_dilation", list(attributes.window_dilation, 1)}});
}

}  // namespace gshard

#endif  // TESTS_TESTING_BUILDER_OPS_H_
