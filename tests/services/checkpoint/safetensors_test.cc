#include "services/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// A file with this header, preceded by its length.
std::string WithHeader(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(uint64_t{header.size()} >> (8 * i)));
  }
  return bytes + header + data;
}

void ExpectDamaged(const std::string& bytes, const std::string& message) {
  ScratchDirectory scratch;
  Spill(scratch / "x.safetensors", bytes);
  EXPECT_THAT(SafetensorsReader::Open(scratch / "x.safetensors"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
}

struct Named {
  std::string name;
  Tensor tensor;
};

// Elements of two bytes.
Tensor Halves() {
  Tensor tensor(ElementType::kBFloat16, {3});
  for (size_t i = 0; i < tensor.bytes(); ++i) {
    tensor.raw()[i] = static_cast<std::byte>(i + 1);
  }
  return tensor;
}

std::vector<Named> Samples() {
  return {
      {"matrix", RandomTensor({3, 5}, 1)},
      {"scalar", Tensor::Scalar(-0.0f)},
      {"empty", Tensor(ElementType::kFloat32, {0, 7})},
      {"ints", Tensor::Ints({2}, {-1, 1 << 30})},
      {"longs", Tensor::Of<int64_t>({1}, std::vector<int64_t>{-1ll << 62})},
      {"doubles", Tensor::Of<double>({2}, std::vector<double>{0.1, -2e300})},
      {"halves", Halves()},
      {"bytes", Tensor::Of<uint8_t>({3}, std::vector<uint8_t>{0, 127, 255})},
      {"nan", Tensor::Floats({2}, {std::nanf("7"),
                                   std::numeric_limits<float>::infinity()})},
      {"quote\" back\\slash / \u6f22\u5b57 {}", RandomTensor({2}, 2)},
      {std::string(512, 'n'), RandomTensor({1, 1, 1, 1, 1, 1, 1, 2}, 3)},
  };
}

absl::Status WriteAll(const std::string& path, const std::vector<Named>& order,
                      const StringMap& metadata) {
  std::vector<TensorSpec> specs;
  for (const Named& named : order) {
    specs.push_back({named.name, named.tensor.type(), named.tensor.dims()});
  }
  auto writer = SafetensorsWriter::Create(path, specs, metadata);
  if (!writer.ok()) return writer.status();
  for (const Named& named : order) {
    const absl::Status status = (*writer)->Write(named.name, named.tensor);
    if (!status.ok()) return status;
  }
  return (*writer)->Finish();
}

// The bytes of a file with a few tensors of different kinds.
std::string SmallFile(const std::string& path) {
  std::vector<Named> samples = Samples();
  samples.resize(5);
  EXPECT_OK(WriteAll(path, samples, {{"k", "v"}}));
  return Slurp(path);
}

TEST(SafetensorsTest, ReadsWhatWasWritten) {
  ScratchDirectory scratch;
  const std::string path = scratch / "x.safetensors";
  const StringMap metadata = {{"format", "pt"}, {"note", "\"\u00e9\""}};
  ASSERT_OK(WriteAll(path, Samples(), metadata));
  ASSERT_OK_AND_ASSIGN(const auto reader, SafetensorsReader::Open(path));
  EXPECT_EQ(reader->metadata(), metadata);
  EXPECT_EQ(reader->tensors().size(), Samples().size());
  for (const Named& named : Samples()) {
    ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader->Read(named.name));
    EXPECT_TRUE(TensorEqual(tensor, named.tensor)) << named.name;
    const StoredTensor& stored = reader->tensors().at(named.name);
    EXPECT_EQ(stored.offset % ElementSize(stored.type), 0u) << named.name;
  }
  EXPECT_THAT(reader->Read("other"), StatusIs(absl::StatusCode::kNotFound,
                                              HasSubstr("no tensor 'other'")));
}

TEST(SafetensorsTest, FileDependsOnContentsOnly) {
  ScratchDirectory scratch;
  std::vector<Named> samples = Samples();
  ASSERT_OK(WriteAll(scratch / "a", samples, {{"k", "v"}}));
  std::reverse(samples.begin(), samples.end());
  ASSERT_OK(WriteAll(scratch / "b", samples, {{"k", "v"}}));
  EXPECT_EQ(Slurp(scratch / "a"), Slurp(scratch / "b"));
}

// A file has exactly the bytes that the format's documentation requires.
TEST(SafetensorsTest, BytesAreTheFormats) {
  ScratchDirectory scratch;
  const Tensor tensor =
      Tensor::Of<int32_t>({1, 2}, std::vector<int32_t>{1, -2});
  ASSERT_OK(WriteAll(scratch / "a", {{"x", tensor}}, {}));
  const std::string header =
      R"({"x":{"data_offsets":[0,8],"dtype":"I32","shape":[1,2]}})";
  const std::string padded =
      header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(Slurp(scratch / "a"),
            WithHeader(padded, std::string("\1\0\0\0\xfe\xff\xff\xff", 8)));
}

TEST(SafetensorsTest, ReadsAFileOfOtherMakers) {
  ScratchDirectory scratch;
  // A different key order, white space, no padding, metadata last.
  Spill(scratch / "a",
        WithHeader("{ \"w\": {\"dtype\": \"F32\", \"shape\": [2], "
                   "\"data_offsets\": [1, 9]}, \"b\":{\"shape\":[1],"
                   "\"dtype\":\"U8\",\"data_offsets\":[0,1]},"
                   "\"__metadata__\":{\"format\":\"pt\"}}",
                   std::string("\7\0\0\x80\x3f\0\0\0\x40", 9)));
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       SafetensorsReader::Open(scratch / "a"));
  ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
  EXPECT_TRUE(TensorEqual(w, Tensor::Floats({2}, {1.0f, 2.0f})));
  EXPECT_EQ(reader->metadata().at("format"), "pt");
}

TEST(SafetensorsTest, AFileWithoutTensorsIsAFile) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteAll(scratch / "a", {}, {}));
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       SafetensorsReader::Open(scratch / "a"));
  EXPECT_TRUE(reader->tensors().empty());
}

TEST(SafetensorsTest, EveryTruncationIsFound) {
  ScratchDirectory scratch;
  const std::string bytes = SmallFile(scratch / "a");
  for (size_t size = 0; size < bytes.size(); ++size) {
    Spill(scratch / "b", bytes.substr(0, size));
    ASSERT_THAT(SafetensorsReader::Open(scratch / "b"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
  }
  Spill(scratch / "b", bytes + "x");
  EXPECT_THAT(SafetensorsReader::Open(scratch / "b"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bytes of")));
}

// A flipped bit of the header is found, or leaves a valid header, e.g. with
// another name. Nothing crashes or reads outside the file.
TEST(SafetensorsTest, NoFlippedHeaderByteCrashes) {
  ScratchDirectory scratch;
  const std::string bytes = SmallFile(scratch / "a");
  const size_t header_end = 8 + static_cast<unsigned char>(bytes[0]) +
                            256 * static_cast<unsigned char>(bytes[1]);
  ASSERT_LT(header_end, bytes.size());
  int refused = 0;
  for (size_t i = 0; i < header_end; ++i) {
    for (const int mask : {1, 4, 0x20, 0x80}) {
      Poke(scratch / "a", i, static_cast<char>(bytes[i] ^ mask));
      const auto reader = SafetensorsReader::Open(scratch / "a");
      if (!reader.ok()) {
        ++refused;
        continue;
      }
      for (const auto& [name, stored] : (*reader)->tensors()) {
        ASSERT_OK((*reader)->Read(name));
      }
    }
    Poke(scratch / "a", i, bytes[i]);
  }
  EXPECT_GT(refused, static_cast<int>(2 * header_end));
}

TEST(SafetensorsTest, LengthsAreCheckedBeforeAllocating) {
  ExpectDamaged("", "at least 8 bytes, got 0");
  ExpectDamaged(std::string(8, '\xff'), "a header of at most 0 bytes");
  std::string huge("\0\0\0\0\0\0\0\x10", 8);
  ExpectDamaged(huge + "{}", "a header of at most 2 bytes");
  ExpectDamaged(WithHeader(R"({"x":{"dtype":"F32","shape":[1073741824,1024],)"
                           R"("data_offsets":[0,4398046511104]}})",
                           ""),
                "bytes of elements, got 0");
  ExpectDamaged(
      WithHeader(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],)"
                 R"("data_offsets":[0,0]}})",
                 ""),
      "at most 2^60 bytes");
}

TEST(SafetensorsTest, BrokenHeadersAreNamed) {
  const auto tensor = [](const std::string& members, const std::string& data) {
    return WithHeader("{\"x\":{" + members + "}}", data);
  };
  ExpectDamaged(WithHeader("[]", ""), "got array");
  ExpectDamaged(WithHeader("{}x", ""), "not JSON");
  ExpectDamaged(WithHeader(R"({"x":3})", ""), "tensor 'x'");
  ExpectDamaged(tensor(R"("dtype":"F32","shape":[1])", "1234"), "object of");
  ExpectDamaged(
      tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])", "1234"),
      "unknown dtype 'F33'");
  ExpectDamaged(tensor(R"("dtype":7,"shape":[1],"data_offsets":[0,4])", "1234"),
                "string 'dtype', got number");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", "1234"),
      "'shape', an array of integers >= 0");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])", "1234"),
      "'shape'");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":1,"data_offsets":[0,4])", "1234"),
      "'shape'");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])", "1234"),
      "data_offsets of 4 bytes");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])", "1234"),
      "data_offsets of 4 bytes");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "1234"),
      "data_offsets of 8 bytes for f32[2], got [0,4]");
  ExpectDamaged(
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", "12345678"),
      "at byte 0 of the elements, got 4");
  ExpectDamaged(tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],)"
                       R"("data_offsets":[0,1])",
                       "1"),
                "at most 8 dimensions");
  ExpectDamaged(WithHeader(R"({"__metadata__":{"a":1}})", ""), "'a'");
  ExpectDamaged(WithHeader(R"({"__metadata__":"a"})", ""), "__metadata__");
  const std::string x = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  ExpectDamaged(WithHeader("{\"x\":" + x + ",\"x\":" + x + "}", "12"),
                "the key 'x' occurs twice");
  ExpectDamaged(WithHeader("{\"x\":" + x + ",\"y\":" + x + "}", "12"),
                "expected tensor 'y' at byte 2");  // they overlap
  ExpectDamaged(WithHeader("{\"\":" + x + "}", "12"), "name must have");
}

TEST(SafetensorsTest, TypesThatWeLackAreUnimplemented) {
  ScratchDirectory scratch;
  Spill(scratch / "a",
        WithHeader(R"({"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})",
                   "12"));
  EXPECT_THAT(SafetensorsReader::Open(scratch / "a"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("tensor 'x': expected dtype F32, BF16, "
                                 "F64, I32, I64 or U8, got F16")));
}

TEST(SafetensorsTest, AFileThatShrinksWhileOpenIsDataLoss) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteAll(scratch / "a", {{"x", RandomTensor({64}, 1)}}, {}));
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       SafetensorsReader::Open(scratch / "a"));
  Spill(scratch / "a", Slurp(scratch / "a").substr(0, 100));
  EXPECT_THAT(reader->Read("x"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("too early")));
}

TEST(SafetensorsWriterTest, HoldsItsCallerToTheSpecs) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(
      const auto writer,
      SafetensorsWriter::Create(scratch / "a",
                                {{"x", ElementType::kFloat32, {2, 3}},
                                 {"y", ElementType::kFloat32, {1}}},
                                {}));
  EXPECT_THAT(writer->Write("z", Tensor::Scalar(1)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'z'")));
  EXPECT_THAT(writer->Write("x", RandomTensor({3, 2}, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected f32[2, 3], got f32[3, 2]")));
  EXPECT_THAT(writer->Write("x", Tensor()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got an absent tensor")));
  ASSERT_OK(writer->Write("x", RandomTensor({2, 3}, 1)));
  EXPECT_THAT(writer->Write("x", RandomTensor({2, 3}, 1)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'x'")));
  EXPECT_THAT(writer->Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tensor 'y' was announced")));
}

TEST(SafetensorsWriterTest, RefusesBadSpecs) {
  ScratchDirectory scratch;
  const auto create = [&](const std::vector<TensorSpec>& specs) {
    return SafetensorsWriter::Create(scratch / "a", specs, {}).status();
  };
  const TensorSpec x = {"x", ElementType::kFloat32, {1}};
  EXPECT_THAT(create({x, x}), StatusIs(absl::StatusCode::kAlreadyExists,
                                       HasSubstr("'x' stands twice")));
  EXPECT_THAT(create({{"__metadata__", ElementType::kFloat32, {}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")));
  EXPECT_THAT(create({{"x", ElementType::kFloat32, {-1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x: ")));
  EXPECT_THAT(SafetensorsWriter::Create(scratch / "a", {x}, {{"k", "\xff"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
}

TEST(SafetensorsWriterTest, LeavesNothingBehindUnlessFinished) {
  ScratchDirectory scratch;
  {
    ASSERT_OK_AND_ASSIGN(
        const auto writer,
        SafetensorsWriter::Create(scratch / "a",
                                  {{"x", ElementType::kFloat32, {1}}}, {}));
    ASSERT_OK(writer->Write("x", Tensor::Floats({1}, {1.0f})));
  }
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_TRUE(names.empty());
}

}  // namespace
}  // namespace gshard
