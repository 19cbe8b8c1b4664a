// A router's program with a single call: rows [R, 2] of five experts, whose
// group sizes are not sent.

#ifndef TESTS_SERVICES_EXCHANGE_CALL_PROGRAM_H_
#define TESTS_SERVICES_EXCHANGE_CALL_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

#include "services/graph/builder.h"
#include "services/segments/call_segment.h"

namespace gshard {

inline absl::StatusOr<Program> CallProgram(Dim width = Dim(2)) {
  RegisterShardingOps();
  const Dim R = Dim::Symbol("R");
  Builder b("p");
  const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {5}});
  const ValueId rows = b.Input("rows", {ElementType::kFloat32, {R, width}});
  b.Output("y", b.AddOne("call_segment", {sizes, rows},
                         {{"segment", "p/1"},
                          {"division", std::vector<int64_t>{0, 1}},
                          {"sent", std::vector<int64_t>{0, 1}},
                          {"operands", "call/v3;call/v7"},
                          {"replies", int64_t{1}},
                          {"shape0", Shape{R, width}}}));
  return std::move(b).Finish();
}

// Rows of experts: 0: {0, 1}, 1: none, 2: {2}, 3: {3, 4, 5}, 4: none.
inline Tensor CallSizes() { return Tensor::Ints({5}, {2, 0, 1, 3, 0}); }

// Row r is (r, -r).
inline Tensor CallRows() {
  Tensor rows(ElementType::kFloat32, {6, 2});
  for (int64_t r = 0; r < 6; ++r) {
    rows.f32()[2 * r] = static_cast<float>(r);
    rows.f32()[2 * r + 1] = static_cast<float>(-r);
  }
  return rows;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_EXCHANGE_CALL_PROGRAM_H_
