#include "services/tokenizer/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// A length-delimited protobuf field; sizes below 128 only.
std::string Bytes(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2),
                     static_cast<char>(bytes.size())} +
         bytes;
}

std::string PieceMessage(const std::string& text, float score, int type) {
  std::string message = Bytes(1, text);
  message += '\x15';
  message.append(reinterpret_cast<const char*>(&score), sizeof score);
  return message + '\x18' + static_cast<char>(type);
}

std::string Model(const std::string& text, float score = -1, int type = 1) {
  return Bytes(1, PieceMessage("<unk>", 0, 2)) +
         Bytes(1, PieceMessage(text, score, type));
}

// NormalizerSpec with a trie of 256 units, all equal to `unit`, and `texts`.
std::string Rules(uint32_t unit, const std::string& texts) {
  std::string table(4, '\0');
  table[1] = 4;  // 1024 bytes
  for (int i = 0; i < 256; ++i) {
    table.append(reinterpret_cast<const char*>(&unit), sizeof unit);
  }
  table += texts;
  const auto field = [](int number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2),
                       static_cast<char>(0x80 | (bytes.size() & 0x7F)),
                       static_cast<char>(bytes.size() >> 7)} +
           bytes;
  };
  return field(3, field(2, table));
}

TEST(SentencePieceModelTest, ReadsPieces) {
  ASSERT_OK_AND_ASSIGN(const SentencePieceModel model,
                       ParseSentencePieceModel(Model("ü", -2.5f, 4)));
  ASSERT_EQ(model.pieces.size(), 2u);
  EXPECT_EQ(model.pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(model.pieces[1].text, "ü");
  EXPECT_EQ(model.pieces[1].score, -2.5f);
  EXPECT_EQ(model.pieces[1].type, PieceType::kUserDefined);
}

TEST(SentencePieceModelTest, RefusesWhatIsNoModel) {
  const auto expect = [](const std::string& bytes, const std::string& message) {
    EXPECT_THAT(ParseSentencePieceModel(bytes),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  expect("", "no pieces");
  expect("no model at all", "");
  expect(std::string(100, '\0'), "cut off");
  expect(Model("a").substr(0, 15), "cut off");
  expect(Model(""), "no text");
  expect(Model("\xFF"), "no text");
  expect(Model("<unk>"), "two pieces");
  expect(Model("a", std::numeric_limits<float>::quiet_NaN()), "finite");
  expect(Model("a", std::numeric_limits<float>::infinity()), "finite");
  expect(Model("a", 0, 9), "unknown type");
  expect(Model("a") + Bytes(9, "x"), "unexpected field 9");
}

// Rules that point outside their tables are refused, because SentencePiece
// would read outside its memory.
TEST(SentencePieceModelTest, RefusesRulesThatPointOutside) {
  const std::string texts("x\0", 2);
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(0, texts)));
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(0x80000001, texts)));
  const auto expect = [](const std::string& rules, const std::string& message) {
    EXPECT_THAT(ParseSentencePieceModel(Model("a") + rules),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  expect(Rules(0x80000002, texts), "outside the texts");
  expect(Rules(1u << 20, texts), "outside the trie");
  expect(Rules(0, "x"), "no end");
  expect(Rules(0, std::string("\xFF\0", 2)), "not UTF-8");
  expect(Bytes(3, Bytes(2, "abc")), "cut off");
  expect(Bytes(3, Bytes(2, "abcdefgh")), "wrong size");
}

}  // namespace
}  // namespace gshard
