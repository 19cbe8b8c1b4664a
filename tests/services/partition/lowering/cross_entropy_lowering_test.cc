#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The loss of logits [5, V] with smoothing and z-loss, and its gradient.
template <typename Function>
Builder CrossEntropyCase(int64_t vocabulary, Function annotate) {
  Builder b("loss");
  const ValueId logits =
      b.Input("logits", {ElementType::kFloat32, {5, vocabulary}});
  const ValueId labels = b.Input("labels", {ElementType::kInt32, {5}});
  annotate(b, logits);
  const ValueId loss = b.CrossEntropy(logits, labels, 0.1, 1e-2);
  b.Output("loss", loss);
  const auto gradients = AddGradients(b, loss, {logits});
  EXPECT_OK(gradients.status());
  b.Output("dlogits", (*gradients)[0]);
  return b;
}

// Labels, one of them padding, and random logits.
TensorMap Inputs(int64_t vocabulary) {
  return {{"labels", IntTensor({5}, {0, 9, -1, 4, 10})},
          {"logits", RandomTensor({5, vocabulary}, 3, 5.0f)}};
}

TEST(CrossEntropyLoweringTest, ASplitVocabularyReducesMaximumAndSums) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t vocabulary : {11, 24}) {
      EXPECT_THAT(CheckCase(CrossEntropyCase(vocabulary,
                                             [](Builder& b, ValueId logits) {
                                               Split(b, logits, 1, "d");
                                             }),
                            Line(devices), Inputs(vocabulary), 1e-5f),
                  ElementsAre("all_reduce", "all_reduce"));
    }
  }
}

TEST(CrossEntropyLoweringTest, OneDevice) {
  EXPECT_THAT(CheckCase(CrossEntropyCase(11,
                                         [](Builder& b, ValueId logits) {
                                           Split(b, logits, 1, "d");
                                         }),
                        Line(1), Inputs(11), 0),
              IsEmpty());
}

TEST(CrossEntropyLoweringTest, SplitRowsAddUpTheLoss) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    EXPECT_THAT(CheckCase(CrossEntropyCase(11,
                                           [](Builder& b, ValueId logits) {
                                             Split(b, logits, 0, "d");
                                           }),
                          Line(devices), Inputs(11), 1e-5f),
                ElementsAre("all_reduce"));
  }
}

TEST(CrossEntropyLoweringTest, RowsAndVocabularyOnTwoAxes) {
  for (const int64_t vocabulary : {11, 12}) {
    EXPECT_THAT(CheckCase(CrossEntropyCase(vocabulary,
                                           [](Builder& b, ValueId logits) {
                                             Split(b, logits, 0, "x");
                                             Split(b, logits, 1, "y");
                                           }),
                          Square(), Inputs(vocabulary), 1e-5f),
                ElementsAre("all_reduce", "all_reduce", "all_reduce"));
  }
}

}  // namespace
}  // namespace gshard
