#include "services/partition/report/program_dot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "services/graph/builder.h"
#include "services/sharding/annotation.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// y = relu(x w) with a sum over devices; its names hold characters that dot
// requires to be escaped.
struct Product {
  Product() : mesh(*DeviceMesh::Create({{"d", 2, ""}})) {
    Builder b("a \"quoted\" \\ program");
    const ValueId x =
        Split(b, b.Input("x\"y", {ElementType::kFloat32, {4, 6}}), 1, "d");
    const ValueId w = Split(b, b.Parameter("w\nv", {6, 8}), 0, "d");
    b.Output("y", b.Relu(b.Einsum("ab,bc->ac", x, w)));
    partitioned = *Partition(*std::move(b).Finish(), mesh);
  }

  NodeRange All() const {
    return {.first = 0,
            .last = static_cast<int32_t>(partitioned.program.nodes.size()) - 1};
  }
  int32_t Find(absl::string_view op) const {
    for (size_t n = 0; n < partitioned.program.nodes.size(); ++n) {
      if (partitioned.program.nodes[n].op->name == op) return n;
    }
    return -1;
  }

  DeviceMesh mesh;
  Partitioned partitioned;
};

// Expects balanced quotes on each line, and balanced braces.
void ExpectBalanced(const std::string& dot) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < dot.size(); ++i) {
    if (quoted && dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && dot[i] == '{') {
      ++depth;
    } else if (!quoted && dot[i] == '}') {
      --depth;
    } else if (dot[i] == '\n') {
      EXPECT_FALSE(quoted) << dot.substr(0, i);
    }
  }
  EXPECT_FALSE(quoted);
  EXPECT_EQ(depth, 0);
}

TEST(ProgramDotTest, EscapesNames) {
  const Product product;
  const std::string dot =
      ProgramToDot(product.partitioned, product.mesh, product.All());
  EXPECT_THAT(dot, StartsWith("digraph \"a \\\"quoted\\\" \\\\ program\" {\n"));
  EXPECT_THAT(dot, HasSubstr("x\\\"y"));
  EXPECT_THAT(dot, HasSubstr("parameter\\nw\\nv"));
  ExpectBalanced(dot);
}

TEST(ProgramDotTest, CollectivesAreHexagonsAndEdgesCarryShardings) {
  const Product product;
  const std::string dot =
      ProgramToDot(product.partitioned, product.mesh, product.All());
  EXPECT_THAT(dot, HasSubstr("label=\"all_reduce\\nd\", shape=hexagon"));
  EXPECT_THAT(dot, HasSubstr("label=\"relu\", shape=box"));
  EXPECT_THAT(dot, HasSubstr("f32[4, 3]\\n[-, d]"));
  EXPECT_THAT(dot, HasSubstr("f32[3, 8]\\n[d, -]"));
  EXPECT_THAT(dot, HasSubstr("f32[4, 8]\\n[-, -] partial d"));
  EXPECT_THAT(dot, HasSubstr("shape=point"));
}

TEST(ProgramDotTest, WhatComesFromOutsideIsDashed) {
  const Product product;
  const int32_t relu = product.Find("relu");
  const std::string dot = ProgramToDot(product.partitioned, product.mesh,
                                       NodeRange{.first = relu, .last = relu});
  EXPECT_THAT(dot, HasSubstr("dashed"));
  EXPECT_THAT(dot, HasSubstr("all_reduce"));
  EXPECT_THAT(dot, Not(HasSubstr("einsum")));
  ExpectBalanced(dot);
}

TEST(ProgramDotTest, DotReadsItWhereThereIsOne) {
  if (std::system("command -v dot > /dev/null 2>&1") != 0) return;
  const Product product;
  const std::string path = ::testing::TempDir() + "program_dot_test.dot";
  std::ofstream(path) << ProgramToDot(product.partitioned, product.mesh,
                                      product.All());
  EXPECT_EQ(std::system(("dot -Tsvg '" + path + "' > /dev/null").c_str()), 0);
}

TEST(ProgramDotTest, AProgramMayHaveNoMoeLayer) {
  const Product product;
  EXPECT_THAT(FirstMoeLayer(product.partitioned.program),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("MoE layer")));
}

}  // namespace
}  // namespace gshard
