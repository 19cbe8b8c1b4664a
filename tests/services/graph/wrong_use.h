// Wrong uses of operators, and short names for programs of tests.

#ifndef TESTS_SERVICES_GRAPH_WRONG_USE_H_
#define TESTS_SERVICES_GRAPH_WRONG_USE_H_

#include <functional>
#include <string>
#include <utility>

#include "services/graph/builder.h"

namespace gshard {

inline const Dim B = Dim::Symbol("B");
inline constexpr auto kFloat = ElementType::kFloat32;

// A part of the expected message, and what causes it.
struct WrongUse {
  std::string message;
  std::function<void(Builder&)> use;
};

// A new input of a type.
inline ValueId F(Builder& b, Shape shape) {
  return b.Input(std::to_string(b.program().nodes.size()),
                 {kFloat, std::move(shape)});
}
inline ValueId I(Builder& b, Shape shape) {
  return b.Input(std::to_string(b.program().nodes.size()),
                 {ElementType::kInt32, std::move(shape)});
}

}  // namespace gshard

#endif  // TESTS_SERVICES_GRAPH_WRONG_USE_H_
