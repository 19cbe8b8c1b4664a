// Tests the text, kernel and gradient of every operator on *_cases.cc.

#include "services/graph/op.h"

#include "tests/services/graph/op_cases.h"

namespace gshard {
namespace {

class OpTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpTest, TextGivesItBack) { CheckText(GetParam()); }

TEST_P(OpTest, KernelAgreesWithReference) { CheckAgainstReference(GetParam()); }

TEST_P(OpTest, GradientsAgreeWithDifferences) { CheckGradients(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, OpTest, ::testing::ValuesIn(AllGraphCases()));

TEST(OpNamesTest, EveryOperatorHasACase) {
  CheckEveryOpHasACase(OpNames(), AllGraphCases());
}

}  // namespace
}  // namespace gshard
