#include "services/rpc/wire/tensor_frame.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/expert.pb.h"
#include "services/base/random.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::string ToBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The bytes in slices of `slice_bytes`, as a network may deliver them.
grpc::ByteBuffer ToBuffer(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size(); begin += slice_bytes) {
    slices.emplace_back(bytes.substr(begin, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<ExpertFrame> Decode(const std::string& bytes,
                                   const FrameLimits& limits = {},
                                   size_t slice_bytes = 1 << 14) {
  return DecodeFrame<v1::ExpertFrameHeader>(ToBuffer(bytes, slice_bytes),
                                            limits);
}

ExpertFrame MakeFrame() {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::RUN);
  frame.header.set_call_id(77);
  frame.header.set_session("translator@3");
  frame.Add("rows", Tensor::Floats({2, 3}, {1, 2, 3, 4, 5, 6}));
  frame.Add("none", Tensor(ElementType::kFloat64, {0, 5}));
  frame.Add("sizes", Tensor::Ints({3}, {7, 8, 9}));
  frame.Add("one", Tensor::Scalar(0.5f));
  return frame;
}

void ExpectSame(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.TypeString(), b.TypeString());
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
}

TEST(TensorFrameTest, RoundTripsWhateverTheSlices) {
  const ExpertFrame frame = MakeFrame();
  const std::string bytes = ToBytes(EncodeFrame(frame));
  for (const size_t slice_bytes : {1, 7, 64, 100000}) {
    ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded,
                         Decode(bytes, {}, slice_bytes));
    EXPECT_EQ(decoded.header.SerializeAsString(),
              frame.header.SerializeAsString());
    ASSERT_EQ(decoded.tensors.size(), frame.tensors.size());
    for (size_t i = 0; i < frame.tensors.size(); ++i) {
      ExpectSame(decoded.tensors[i], frame.tensors[i]);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(decoded.tensors[i].raw()) %
                    kPayloadAlignment,
                0);
    }
  }
}

TEST(TensorFrameTest, IsTheMessageThatTheProtoDeclares) {
  const ExpertFrame frame = MakeFrame();
  const std::string bytes = ToBytes(EncodeFrame(frame));
  v1::ExpertFrame message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.header().session(), "translator@3");
  EXPECT_EQ(message.header().tensors(0).name(), "rows");
  EXPECT_EQ(message.SerializeAsString(), bytes);

  // rows 24 bytes at 0, none 0 bytes at 64, sizes 12 at 64, one 4 at 128.
  ASSERT_EQ(message.payload().size(), 132u);
  float value = 0;
  std::memcpy(&value, message.payload().data() + 128, sizeof(value));
  EXPECT_EQ(value, 0.5f);
  EXPECT_EQ(message.payload().substr(24, 40), std::string(40, '\0'));

  ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded,
                       Decode(message.SerializeAsString()));
  ExpectSame(decoded.tensors[2], frame.tensors[2]);
}

TEST(TensorFrameTest, FramesWithoutTensorsHaveNoPayload) {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::CANCEL);
  const std::string bytes = ToBytes(EncodeFrame(frame));
  v1::ExpertFrame message;
  *message.mutable_header() = frame.header;
  EXPECT_EQ(bytes, message.SerializeAsString());
  ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded, Decode(bytes));
  EXPECT_TRUE(decoded.tensors.empty());
  // An empty buffer decodes to a message with every field at its default.
  ASSERT_OK_AND_ASSIGN(const ExpertFrame empty, Decode(""));
  EXPECT_EQ(empty.header.kind(), v1::ExpertFrameHeader::KIND_UNSPECIFIED);
}

TEST(TensorFrameTest, EncodingSharesMemoryAndKeepsItAlive) {
  grpc::ByteBuffer buffer;
  const std::byte* memory = nullptr;
  {
    ExpertFrame frame;
    frame.Add("big", Tensor::Zeros(ElementType::kFloat32, {512, 512}));
    memory = frame.tensors[0].raw();
    buffer = EncodeFrame(frame);
  }
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(slices[1].begin()), memory);
  EXPECT_EQ(slices[1].size(), 512u * 512 * 4);
  slices.clear();
  ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded,
                       DecodeFrame<v1::ExpertFrameHeader>(std::move(buffer)));
  EXPECT_EQ(decoded.tensors[0].f32()[512 * 512 - 1], 0.0f);
}

TEST(TensorFrameTest, LargeTensorsRoundTrip) {
  ExpertFrame frame;
  Tensor big(ElementType::kInt64, {3, 1 << 20});
  for (int64_t i = 0; i < big.size(); ++i) big.data<int64_t>()[i] = i * i;
  frame.Add("big", big);
  ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded,
                       DecodeFrame<v1::ExpertFrameHeader>(EncodeFrame(frame)));
  ExpectSame(decoded.tensors[0], big);
}

TEST(TensorFrameTest, FieldsOfTheFutureAreSkipped) {
  const std::string bytes = ToBytes(EncodeFrame(MakeFrame()));
  // Field 9, length-delimited, 3 bytes.
  ASSERT_OK_AND_ASSIGN(const ExpertFrame decoded,
                       Decode(absl::StrCat("\x4a\x03xyz", bytes)));
  EXPECT_EQ(decoded.tensors.size(), 4u);
}

// A frame of one tensor with these dims and this many bytes of payload.
std::string OneTensor(v1::ElementType type, const std::vector<int64_t>& dims,
                      size_t payload_bytes) {
  v1::ExpertFrame message;
  v1::TensorHeader& header = *message.mutable_header()->add_tensors();
  header.set_element_type(type);
  header.set_name("x");
  for (const int64_t dim : dims) header.add_dims(dim);
  message.set_payload(std::string(payload_bytes, 'p'));
  return message.SerializeAsString();
}

TEST(TensorFrameTest, RefusesHostileBytes) {
  constexpr auto kF32 = v1::ELEMENT_TYPE_FLOAT32;
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kExhausted = absl::StatusCode::kResourceExhausted;
  const int64_t huge = int64_t{1} << 62;
  const std::vector<int64_t> rank_9(9, 1);
  v1::ExpertFrame crowd;
  for (int i = 0; i < 4097; ++i) {
    crowd.mutable_header()->add_tensors()->set_element_type(kF32);
  }
  v1::ExpertFrame long_header;
  long_header.mutable_header()->set_session(std::string(1 << 20, 's'));

  const struct {
    const char* what;
    std::string bytes;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {"cut in a tag", "\x8a", kInvalid, "no number"},
      {"field 0", std::string("\x02\x00", 2), kInvalid, "no number"},
      {"cut in a length", "\x0a\x80", kInvalid, "ends within a length"},
      {"length of 11 bytes", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
       kInvalid, "ends within a length"},
      {"header beyond the end", "\x0a\x05xx", kInvalid, "2 are left"},
      {"1 GiB payload in 8 bytes", "\x12\x80\x80\x80\x80\x04xx", kInvalid,
       "2 are left"},
      {"varint field", "\x08\x01", kInvalid, "length-delimited"},
      {"64-bit field", "\x11zzzzzzzz", kInvalid, "length-delimited"},
      {"group field", "\x0b\x0c", kInvalid, "length-delimited"},
      {"header of garbage", "\x0a\x03\xff\xff\xff", kInvalid, "header"},
      {"payload without tensors", "\x12\x04zzzz", kInvalid,
       "the payload has 4 bytes, its tensors have 0"},
      {"no element type", OneTensor(v1::ELEMENT_TYPE_UNSPECIFIED, {1}, 4),
       kInvalid, "element_type 0"},
      {"unknown element type",
       OneTensor(static_cast<v1::ElementType>(99), {1}, 4), kInvalid,
       "element_type 99"},
      {"negative dimension", OneTensor(kF32, {-1}, 4), kInvalid,
       "dimension of -1"},
      {"two negative dimensions", OneTensor(kF32, {-1, -1}, 4), kInvalid,
       "dimension of -1"},
      {"product overflows", OneTensor(kF32, {huge, huge}, 4), kInvalid,
       "more bytes than memory"},
      {"product overflows to 0", OneTensor(kF32, {huge, 4}, 0), kInvalid,
       "more bytes than memory"},
      {"overflow hidden by a zero", OneTensor(kF32, {0, huge, huge}, 0),
       kInvalid, "more bytes than memory"},
      {"byte count overflows", OneTensor(kF32, {huge}, 4), kInvalid,
       "more bytes than memory"},
      {"too many dimensions", OneTensor(kF32, rank_9, 4), kInvalid,
       "9 dimensions"},
      {"payload too short", OneTensor(kF32, {2}, 7), kInvalid,
       "the payload has 7 bytes"},
      {"payload too long", OneTensor(kF32, {2}, 9), kInvalid,
       "the payload has 9 bytes"},
      {"large tensor without payload", OneTensor(kF32, {1 << 28}, 0), kInvalid,
       "the payload has 0 bytes"},
      {"too many tensors", crowd.SerializeAsString(), kExhausted, "got 4097"},
      {"header too long", long_header.SerializeAsString(), kExhausted,
       "header"},
      {"frame too long", OneTensor(kF32, {17 << 20}, 68 << 20), kExhausted,
       "at most 67108864 bytes"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_THAT(Decode(c.bytes), StatusIs(c.code, HasSubstr(c.message)));
  }
}

// Mutated bytes are either refused or decode to a consistent frame.
TEST(TensorFrameTest, MutatedBytesNeverBreakIt) {
  const google::protobuf::LogSilencer silencer;
  const std::string original = ToBytes(EncodeFrame(MakeFrame()));
  int accepted = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::string bytes = original;
    const uint64_t changes = 1 + RandomBelow(seed, 0, 4);
    for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
      const size_t at = RandomBelow(seed, 4 * i + 1, bytes.size());
      const char value = static_cast<char>(RandomBits(seed, 4 * i + 2));
      switch (RandomBelow(seed, 4 * i + 3, 4)) {
        case 0:
          bytes[at] = value;
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.insert(at, 1, value);
          break;
        case 3:
          bytes.erase(at, 1);
          break;
      }
    }
    const auto frame = Decode(bytes, {}, 1 + seed % 90);
    if (!frame.ok()) continue;
    ++accepted;
    ASSERT_EQ(frame->header.tensors_size(),
              static_cast<int>(frame->tensors.size()));
    uint64_t sum = 0;
    for (const Tensor& tensor : frame->tensors) {
      for (size_t i = 0; i < tensor.bytes(); ++i) {
        sum += static_cast<uint64_t>(tensor.raw()[i]);
      }
    }
    EXPECT_LE(sum, 255 * bytes.size());
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace gshard
