// Every operator that a model can use occurs in the random programs of
// random_partition_test.cc.

#include <gtest/gtest.h>

#include <set>

#include "services/graph/op.h"
#include "services/moe/graph_ops.h"
#include "services/moe/loss_shares.h"
#include "services/sharding/manual.h"
#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

TEST(OperatorCoverageTest, EveryOperatorIsInARandomProgram) {
  constexpr int kSeeds = 40;
  RegisterMoeOps();
  RegisterManualOps();
  // Nothing here partitions, so the registered operators are those of models.
  // LossShareOps() count as seen: only partitioning inserts them.
  std::set<std::string> seen;
  for (const OpDef& op : LossShareOps()) seen.insert(op.name);
  for (const Family& family : AllFamilies()) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      for (const Node& node : MakeCase(family, seed).program.nodes) {
        seen.insert(node.op->name);
      }
    }
  }
  for (const std::string& op : OpNames()) {
    EXPECT_TRUE(seen.count(op)) << "no family has '" << op << "'";
  }
}

}  // namespace
}  // namespace gshard
