// Texts from an enemy: whatever is parsed or refused, and run if parsed,
// nothing crashes. Seeds are printed on failure.

#include "services/graph/text.h"
#include "tests/services/graph/op_cases.h"

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

// Changes `text` in one to three places: a byte, a cut, a repeated piece, or a
// token put in place of another.
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

// Runs a program on inputs of small sizes, if it asks for small ones.
void RunOnSomething(const Program& program, uint64_t seed) {
  TensorMap feeds;
  for (const Node& node : program.nodes) {
    for (const ValueId output : node.outputs) {
      int64_t elements = 1;
      for (const Dim& dim : program.type(output).shape) {
        if (dim.coefficient() > 64 || dim.symbols().size() > 3) return;
        elements *= dim.coefficient() << dim.symbols().size();
        if (elements > 4096) return;
      }
    }
    if (node.op->kernel != nullptr) continue;
    const ValueType& type = program.type(node.outputs[0]);
    Dims dims;
    for (const Dim& dim : type.shape) {
      dims.push_back(dim.coefficient() << dim.symbols().size());
    }
    Tensor tensor = Tensor::Zeros(type.type, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const int64_t small = RandomBelow(seed, i, 5);
      if (type.type == ElementType::kFloat32) {
        tensor.f32()[i] = static_cast<float>(small - 2);
      } else if (type.type == ElementType::kInt32) {
        tensor.i32()[i] = static_cast<int32_t>(small - 1);
      }
    }
    feeds[StringAttribute(node.attributes, "name")] = tensor;
  }
  for (const bool reference : {false, true}) {
    // Any status will do.
    Executor(program)
        .Run(feeds, feeds, {.reference = reference})
        .status()
        .IgnoreError();
  }
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
      // What is parsed is a program like any other.
      const std::string text = ProgramToText(*program);
      const auto again = ParseProgram(text);
      ASSERT_OK(again);
      EXPECT_EQ(ProgramToText(*again), text);
      RunOnSomething(*program, seed);
    }
  }
  // Or the test would show nothing.
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace gshard
