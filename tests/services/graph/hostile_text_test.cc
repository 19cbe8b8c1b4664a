// Fuzzes ParseProgram: no mutated text crashes it, and no program that it
// accepts crashes when run. Failures print their seed.

#include "services/graph/text.h"
#include "tests/services/graph/op_cases.h"
#include "tests/services/graph/run_on_something.h"

namespace gshard {
namespace {

constexpr int kMutantsPerText = 150;

// The programs of all operators and of their gradients.
std::vector<std::string> SeedTexts() {
  std::vector<std::string> texts;
  for (const OpCase& c : AllGraphCases()) {
    texts.push_back(ProgramToText(OpProgram(c).program()));
  }
  return texts;
}

// Changes `text` in one to three places: alters a byte, cuts or repeats a
// piece, or replaces a token.
std::string Mutate(std::string text, uint64_t seed) {
  static const auto& tokens =
      *new std::vector<std::string>{"%0",
                                    "%1",
                                    "%2",
                                    "%3",
                                    "-1",
                                    "0",
                                    "1",
                                    "2",
                                    "1099511627776",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "0.5",
                                    "1e308",
                                    "nan",
                                    "inf",
                                    "[",
                                    "]",
                                    "<",
                                    ">",
                                    "{",
                                    "}",
                                    "\"",
                                    "\\",
                                    ",",
                                    "f32",
                                    "i32",
                                    "i64",
                                    "f64",
                                    "u8",
                                    "[]",
                                    "<>",
                                    "N",
                                    "B*B",
                                    "input",
                                    "relu",
                                    "add",
                                    "einsum",
                                    "\n",
                                    "a,b->ab",
                                    "ab,bc->ac",
                                    "shape=[1099511627776]",
                                    "dims=<0, 1>"};
  uint64_t draw = 0;
  const auto below = [&](uint64_t n) { return RandomBelow(seed, draw++, n); };
  const uint64_t changes = 1 + below(3);
  for (uint64_t i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = below(text.size());
    const size_t length = 1 + below(6);
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), 1 + below(40)));
        break;
      default:
        text.replace(at, below(2) * length, tokens[below(tokens.size())]);
    }
  }
  return text;
}

TEST(HostileTextTest, NothingCrashes) {
  const std::vector<std::string> texts = SeedTexts();
  int parsed = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (int repeat = 0; repeat < kMutantsPerText; ++repeat) {
      const uint64_t seed = i * kMutantsPerText + repeat;
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      const auto program = ParseProgram(Mutate(texts[i], seed));
      if (!program.ok()) {
        EXPECT_FALSE(program.status().message().empty());
        continue;
      }
      ++parsed;
      // An accepted program must print, parse and run like any other.
      const std::string text = ProgramToText(*program);
      const auto again = ParseProgram(text);
      ASSERT_OK(again);
      EXPECT_EQ(ProgramToText(*again), text);
      RunOnSomething(*program, seed);
    }
  }
  // Otherwise the test would show nothing.
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace gshard
