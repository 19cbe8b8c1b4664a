#include "services/tokenizer/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

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

// A trie of 256 units in darts-clone's format: a root whose nodes are at base
// 2, and values, which no byte matches.
std::vector<uint32_t> Trie() {
  std::vector<uint32_t> units(256, 0x80000000);
  units[0] = 2 << 10;
  return units;
}

// The unit of the node at `position` whose own nodes are at `base`.
uint32_t Node(uint32_t position, uint32_t base, uint32_t label,
              bool has_value) {
  return (position ^ base) << 10 | (has_value ? 1 << 8 : 0) | label;
}

// A trie of one path of `length` nodes, all with a value: the rules for the
// byte 1, and its repetitions.
std::vector<uint32_t> Chain(uint32_t length) {
  std::vector<uint32_t> units = Trie();
  for (uint32_t i = 1; i <= length; ++i) {
    units[2 * i + 1] = Node(2 * i + 1, 2 * i + 2, 1, true);
  }
  return units;
}

// NormalizerSpec with a trie and `texts`.
std::string Rules(const std::vector<uint32_t>& units,
                  const std::string& texts) {
  const auto trie_bytes = static_cast<uint32_t>(4 * units.size());
  std::string table(reinterpret_cast<const char*>(&trie_bytes), 4);
  table.append(reinterpret_cast<const char*>(units.data()), trie_bytes);
  table += texts;
  const auto field = [](int number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2),
                       static_cast<char>(0x80 | (bytes.size() & 0x7F)),
                       static_cast<char>(bytes.size() >> 7)} +
           bytes;
  };
  return field(3, field(2, table));
}

std::string RulesWithUnit(size_t position, uint32_t unit,
                          const std::string& texts) {
  std::vector<uint32_t> units = Trie();
  units[position] = unit;
  return Rules(units, texts);
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
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(Trie(), texts)));
  EXPECT_OK(ParseSentencePieceModel(Model("a") +
                                    RulesWithUnit(9, 0x80000001, texts)));
  const auto expect = [](const std::string& rules, const std::string& message) {
    EXPECT_THAT(ParseSentencePieceModel(Model("a") + rules),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  expect(RulesWithUnit(9, 0x80000002, texts), "outside the texts");
  expect(RulesWithUnit(9, 1u << 20, texts), "outside the trie");
  expect(Rules(Trie(), "x"), "no end");
  expect(Rules(Trie(), std::string("\xFF\0", 2)), "not UTF-8");
  expect(Bytes(3, Bytes(2, "abc")), "cut off");
  expect(Bytes(3, Bytes(2, "abcdefgh")), "wrong size");
  std::vector<uint32_t> units = Trie();
  units.pop_back();
  expect(Rules(units, texts), "wrong size");
}

// SentencePiece takes a unit for a node or a value by its position, whatever
// its top bit says.
TEST(SentencePieceModelTest, RefusesRulesWithValuesInTheWrongPlace) {
  const std::string texts("x\0", 2);
  EXPECT_THAT(
      ParseSentencePieceModel(Model("a") + RulesWithUnit(0, 0x80000001, texts)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has no root")));
  std::vector<uint32_t> units = Chain(1);
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(units, texts)));
  units[4] = Node(4, 6, 9, false);  // where the node's value should be
  EXPECT_THAT(
      ParseSentencePieceModel(Model("a") + Rules(units, texts)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a rule has no text")));
}

// SentencePiece has room for 32 rules that match at one position.
TEST(SentencePieceModelTest, RefusesMoreMatchingRulesThanSentencePieceCanHold) {
  const std::string texts("x\0", 2);
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(Chain(32), texts)));
  EXPECT_THAT(
      ParseSentencePieceModel(Model("a") + Rules(Chain(33), texts)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("over 32 of its rules")));
  std::vector<uint32_t> units = Chain(3);
  units[7] = Node(7, 4, 1, true);  // back to the nodes below the first
  EXPECT_THAT(ParseSentencePieceModel(Model("a") + Rules(units, texts)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a cycle")));
  // No root leads to these.
  units[0] = 100 << 10;
  EXPECT_OK(ParseSentencePieceModel(Model("a") + Rules(units, texts)));
}

TEST(SentencePieceModelTest, RefusesMoreMatchingPiecesThanItCanHold) {
  std::string bytes = Model("b", -1, 4);
  const auto add = [&](size_t length, int type) {
    bytes += Bytes(1, PieceMessage(std::string(length, 'a'), 0, type));
  };
  for (size_t length = 1; length <= 64; ++length) add(length, 4);
  add(65, 1);  // normal
  bytes += Bytes(1, PieceMessage(std::string(63, 'a') + "b", 0, 4));
  EXPECT_OK(ParseSentencePieceModel(bytes));
  add(66, 4);
  EXPECT_THAT(ParseSentencePieceModel(bytes),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("over 64 user-defined pieces")));
}

TEST(SentencePieceModelTest, LeavesOutTheSelfTestOnly) {
  const std::string rules = Rules(Trie(), std::string("x\0", 2));
  const std::string bytes =
      Bytes(4, "first") + Model("a") + Bytes(4, "second") + rules;
  ASSERT_OK_AND_ASSIGN(const SentencePieceModel model,
                       ParseSentencePieceModel(bytes));
  EXPECT_TRUE(model.has_self_test);
  EXPECT_EQ(WithoutSelfTest(bytes), Model("a") + rules);
  ASSERT_OK_AND_ASSIGN(const SentencePieceModel without,
                       ParseSentencePieceModel(Model("a")));
  EXPECT_FALSE(without.has_self_test);
}

}  // namespace
}  // namespace gshard
