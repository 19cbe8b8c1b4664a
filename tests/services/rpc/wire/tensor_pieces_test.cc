#include "services/rpc/wire/tensor_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Counting(Dims dims) {
  Tensor tensor(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = static_cast<float>(i);
  }
  return tensor;
}

NamedTensors Example() {
  return {{"a", Counting({3, 5})},
          {"b", Counting({100, 7})},  // 2800 bytes
          {"c", Tensor(ElementType::kFloat32, {0, 4})},
          {"d", Tensor::Scalar(2)},
          {"e", Counting({64})}};
}

std::map<std::string, ExpectedTensor> Specs(const NamedTensors& tensors) {
  std::map<std::string, ExpectedTensor> specs;
  for (const auto& [name, tensor] : tensors) {
    specs[name] = {tensor.type(), tensor.dims()};
  }
  return specs;
}

TEST(TensorPiecesTest, RoundTripAtEverySize) {
  const NamedTensors tensors = Example();
  v1::TensorFrameHeader header;
  header.set_session("job/1");
  header.set_step(9);
  for (const size_t max_bytes : {64, 100, 256, 1000, 2800, 1 << 20}) {
    SCOPED_TRACE(::testing::Message() << "at most " << max_bytes);
    TensorCollector collector(Specs(tensors));
    for (TensorFrame& frame : SplitTensors(tensors, header, max_bytes)) {
      EXPECT_EQ(frame.header.session(), "job/1");
      EXPECT_EQ(frame.header.step(), 9);
      EXPECT_LE(PayloadBytes(frame.tensors), max_bytes);
      ASSERT_OK_AND_ASSIGN(
          TensorFrame received,
          DecodeFrame<v1::TensorFrameHeader>(EncodeFrame(frame)));
      ASSERT_OK(collector.Add(std::move(received)));
    }
    ASSERT_OK_AND_ASSIGN(const NamedTensors result, collector.Take());
    ASSERT_EQ(result.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const Tensor& got = result.at(name);
      EXPECT_EQ(got.TypeString(), tensor.TypeString());
      EXPECT_EQ(std::memcmp(got.raw(), tensor.raw(), tensor.bytes()), 0);
    }
  }
}

TEST(TensorPiecesTest, SmallTensorsShareAFrame) {
  EXPECT_EQ(SplitTensors(Example(), {}).size(), 1u);
  // No tensors still take a frame, whose header describes the transfer.
  EXPECT_EQ(SplitTensors({}, {}).size(), 1u);
  NamedTensors many;
  for (int i = 0; i < 3000; ++i) {
    many[std::to_string(i)] = Tensor::Scalar(1);
  }
  EXPECT_EQ(SplitTensors(many, {}).size(), 3u);
}

class TensorCollectorTest : public ::testing::Test {
 protected:
  // A frame with a piece of tensor `name`: elements [offset, offset + count) of
  // [total].
  static TensorFrame Piece(const std::string& name, int64_t offset,
                           int64_t count, int64_t total = 10) {
    TensorFrame frame;
    frame.header.mutable_piece()->add_dims(total);
    frame.header.mutable_piece()->set_offset(offset);
    frame.Add(name, Counting({count}));
    return frame;
  }
  static TensorFrame Whole(const std::string& name, Dims dims) {
    TensorFrame frame;
    frame.Add(name, Counting(std::move(dims)));
    return frame;
  }

  TensorCollector collector_{{{"x", {ElementType::kFloat32, {10}}},
                              {"y", {ElementType::kFloat32, {10}}}}};
};

TEST_F(TensorCollectorTest, RefusesWhatWasNotExpected) {
  EXPECT_THAT(collector_.Add(Whole("z", {10})),
              StatusIs(kInvalid, HasSubstr("\"z\" is not known")));
  EXPECT_THAT(collector_.Add(Piece("z", 0, 5)),
              StatusIs(kInvalid, HasSubstr("\"z\" is not known")));
  EXPECT_THAT(collector_.Add(Whole("x", {2, 5})),
              StatusIs(kInvalid, HasSubstr("expected f32[10], got f32[2, 5]")));
  EXPECT_THAT(collector_.Add(Piece("x", 0, 5, 11)),
              StatusIs(kInvalid, HasSubstr("expected f32[10], got a piece of "
                                           "f32[11]")));
  TensorFrame ints;
  ints.Add("x", Tensor(ElementType::kInt32, {10}));
  EXPECT_THAT(collector_.Add(std::move(ints)),
              StatusIs(kInvalid, HasSubstr("got i32[10]")));
}

TEST_F(TensorCollectorTest, RefusesTheSameTwice) {
  ASSERT_OK(collector_.Add(Whole("x", {10})));
  EXPECT_THAT(collector_.Add(Whole("x", {10})),
              StatusIs(kInvalid, HasSubstr("came twice")));
  EXPECT_THAT(collector_.Add(Piece("x", 0, 5)),
              StatusIs(kInvalid, HasSubstr("came twice")));
}

TEST_F(TensorCollectorTest, RefusesPiecesOutOfOrder) {
  EXPECT_THAT(collector_.Add(Piece("x", 5, 5)),
              StatusIs(kInvalid, HasSubstr("from element 0 of 10")));
  EXPECT_THAT(collector_.Add(Piece("x", 0, 11)),
              StatusIs(kInvalid, HasSubstr("11 elements")));
  EXPECT_THAT(collector_.Add(Piece("x", 0, 0)),
              StatusIs(kInvalid, HasSubstr("not empty")));
  EXPECT_THAT(collector_.Add(Piece("x", -1, 5)),
              StatusIs(kInvalid, HasSubstr("from -1")));
  ASSERT_OK(collector_.Add(Piece("x", 0, 5)));
  EXPECT_THAT(collector_.Add(Piece("x", 4, 5)),
              StatusIs(kInvalid, HasSubstr("from element 5 of 10")));
  EXPECT_THAT(collector_.Add(Piece("y", 0, 5)),
              StatusIs(kInvalid, HasSubstr("before the rest of \"x\"")));
  EXPECT_THAT(collector_.Add(Whole("y", {10})),
              StatusIs(kInvalid, HasSubstr("before the rest of \"x\"")));
  EXPECT_THAT(collector_.Take(),
              StatusIs(kInvalid, HasSubstr("\"x\" is incomplete: 5")));
}

TEST_F(TensorCollectorTest, NamesWhatIsMissing) {
  ASSERT_OK(collector_.Add(Whole("x", {10})));
  EXPECT_THAT(collector_.Take(),
              StatusIs(kInvalid, HasSubstr("\"y\" is missing")));
}

TEST(TensorPiecesTest, ATensorThatMemoryCannotHoldIsAnError) {
  const Dims dims = {int64_t{1} << 40, int64_t{1} << 20};
  TensorCollector collector({{"x", {ElementType::kFloat32, dims}}});
  TensorFrame frame;
  for (const int64_t dim : dims) frame.header.mutable_piece()->add_dims(dim);
  frame.Add("x", Counting({1}));
  EXPECT_THAT(collector.Add(std::move(frame)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for 4611686018427387904 bytes")));
}

TEST_F(TensorCollectorTest, APieceIsAloneInItsFrame) {
  TensorFrame frame = Piece("x", 0, 5);
  frame.Add("y", Counting({10}));
  EXPECT_THAT(collector_.Add(std::move(frame)),
              StatusIs(kInvalid, HasSubstr("must have 1 tensor, got 2")));
}

}  // namespace
}  // namespace gshard
