#include "services/graph/text.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/graph/builder.h"
#include "tests/testing/find_output.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kText[] =
    "program \"ffn\" {\n"
    "  %0 = input() {name=\"x\", shape=[B, 8], type=\"f32\"} : f32[B, 8]\n"
    "  %1 = parameter() {name=\"wi\", shape=[8, 16]} : f32[8, 16]\n"
    "  %2 = einsum(%0, %1) {equation=\"bm,mh->bh\"} : f32[B, 16]\n"
    "  %3 = relu(%2) : f32[B, 16] @\"split(1, model)\"\n"
    "  %4 = parameter() {name=\"scale\", shape=[16]} : f32[16]\n"
    "  %5, %6 = rms_norm(%3, %4) {epsilon=9.9999999999999995e-07} : "
    "f32[B, 16], f32[B]\n"
    "  %7 = transpose(%5) {permutation=<1, 0>} : f32[16, B]\n"
    "  output \"h\" = %3\n"
    "  output \"t\" = %7\n"
    "}\n";

TEST(TextTest, PrintsAsTheHeaderSays) {
  Builder b("ffn");
  const ValueId x =
      b.Input("x", {ElementType::kFloat32, {Dim::Symbol("B"), 8}});
  const ValueId h =
      b.Relu(b.Einsum("bm,mh->bh", x, b.Parameter("wi", {8, 16})));
  b.Annotate(h, "split(1, model)");
  const ValueId y = b.RmsNorm(h, b.Parameter("scale", {16}), 1e-6);
  b.Output("h", h);
  b.Output("t", b.Transpose(y, {1, 0}));
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  EXPECT_EQ(ProgramToText(program), kText);
}

TEST(TextTest, ParsesBack) {
  ASSERT_OK_AND_ASSIGN(const Program program, ParseProgram(kText));
  EXPECT_EQ(ProgramToText(program), kText);
  EXPECT_EQ(program.values[3].sharding, "split(1, model)");
  EXPECT_EQ(FindOutput(program, "t"), 7);
}

TEST(TextTest, SpacesAndEmptyLinesDoNotMatter) {
  const std::string text = absl::StrReplaceAll(
      kText, {{"\n", " \r\n\n"}, {", ", "  ,\t"}, {" = ", "="}});
  ASSERT_OK_AND_ASSIGN(const Program program, ParseProgram(text));
  EXPECT_EQ(program.values.size(), 8);
}

TEST(TextTest, AnyNameAndNumberSurvives) {
  Builder b("a \"quoted\" \\ name\nof two lines");
  const ValueId x = b.Input("\\\"\n\t\x7f\xff", {ElementType::kInt64, {0}});
  b.Output("}\n{\\n", x);
  for (const double value : {0.0, -0.0, 1.0, -3.0, 0.1, 1e300, 5e-324, -2.5e-7,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
    b.Output(absl::StrCat("constant ", value), b.Constant(value));
  }
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  const std::string text = ProgramToText(program);
  ASSERT_OK_AND_ASSIGN(const Program parsed, ParseProgram(text));
  EXPECT_EQ(parsed.name, program.name);
  EXPECT_EQ(parsed.outputs, program.outputs);
  ASSERT_EQ(parsed.nodes.size(), program.nodes.size());
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    EXPECT_EQ(parsed.nodes[n].attributes, program.nodes[n].attributes);
  }
  EXPECT_EQ(ProgramToText(parsed), text);
}

// A replacement in the program above, and a part of the expected message.
struct Mistake {
  const char* before;
  const char* after;
  const char* message;
};

TEST(TextTest, SaysWhereAndWhat) {
  const std::vector<Mistake> mistakes = {
      {"program \"", "prog \"", "line 1: expected 'program'"},
      {"\"ffn\"", "ffn", "line 1: expected a string at 'ffn {'"},
      {"ffn\" {", "ffn\" {{", "line 1: expected the end of line"},
      {"%0 = input()", "%1 = input()", "line 2: expected results %0, got %1"},
      {"%0 = input()", "%0, %1 = input()",
       "line 2: expected results %0, got %0, %1"},
      {"%0 = input()", "%0 = inputs()", "line 2: no operator 'inputs'"},
      {"%0 = input()", "%0 = input(", "line 2: expected '%'"},
      {"type=\"f32\"", "type=\"f31\"", "line 2: "},
      {"type=\"f32\"", "type=", "line 2: expected a number at '}"},
      {"shape=[B, 8]", "shape=[B, 8", "line 2: expected ','"},
      {"shape=[B, 8]", "shape=[B, -8]", "line 2: expected a dimension"},
      {"shape=[B, 8]", "shape=<1, 8>", "line 2: program 'ffn', input: "},
      {"shape=[B, 8]", "shape=[B, 9]",
       "line 2: expected f32[B, 9], got f32[B, 8]"},
      {"shape=[8, 16]", "shape=[8,, 16]", "line 3: expected a dimension"},
      {"%1 = parameter() {name=\"wi\"",
       "%1 = parameter() {name=\"wi\", "
       "name=\"wo\"",
       "line 3: expected one value for 'name', got a second"},
      {"(%0, %1)", "(%0, %2)", "line 4: einsum: operand 1 is not a value"},
      {"(%0, %1)", "(%0 %1)", "line 4: expected ','"},
      {"(%0, %1)", "(%0, %99999999999)", "line 4: expected a value"},
      {"bm,mh->bh", "bm,nh->bh", "line 4: program 'ffn', einsum: "},
      {" : f32[B, 16] @", " @", "line 5: expected ':'"},
      {"@\"split(1, model)\"", "@split", "line 5: expected a string"},
      {"@\"split(1, model)\"", "@\"split", "line 5: expected '\"'"},
      {"model)\"", "model)\" x", "line 5: expected the end of line at 'x'"},
      {"name=\"scale\"", "name=\"wi\"",
       "line 6: expected one parameter 'wi', got a second"},
      {", f32[B]\n", "\n", "line 7: expected ','"},
      {"epsilon=9.9999999999999995e-07", "epsilon=1",
       "line 7: program 'ffn', rms_norm: attribute 'epsilon' must be a number"},
      {"epsilon=9.9999999999999995e-07", "epsilon=1.2.3",
       "line 7: expected a number"},
      {"<1, 0>", "<1, 0.5>", "line 8: expected an integer"},
      {"<1, 0>", "<1, 9>", "line 8: program 'ffn', transpose: "},
      {"output \"t\" = %7", "output \"t\" = %8",
       "line 10: output 't' names no value"},
      {"output \"t\"", "output \"h\"", "line 10: output 'h' exists already"},
      {"}\n", "}\nmore", "line 12: expected nothing after '}'"},
  };
  for (const Mistake& mistake : mistakes) {
    std::string text = kText;
    // The closing brace is the last one.
    const size_t at = mistake.before == std::string("}\n")
                          ? text.rfind(mistake.before)
                          : text.find(mistake.before);
    ASSERT_NE(at, std::string::npos) << mistake.before;
    text.replace(at, std::string(mistake.before).size(), mistake.after);
    const absl::Status status = ParseProgram(text).status();
    EXPECT_FALSE(status.ok()) << mistake.after;
    EXPECT_THAT(std::string(status.message()), HasSubstr(mistake.message))
        << mistake.before << " -> " << mistake.after;
  }
}

// Attributes that only a part of a partitioned attention has.
TEST(TextTest, RefusesPositionsThatAreNone) {
  const auto parse = [](const char* attribute, const char* value) {
    Builder b("p");
    const ValueId q = b.Input("q", {ElementType::kFloat32, {2, 3, 2, 4}});
    const ValueId lengths = b.Input("lengths", {ElementType::kInt32, {2}});
    b.Output("out", b.Attention(q, q, q, lengths, kNoValue, {}));
    return ParseProgram(absl::StrReplaceAll(
        ProgramToText(*std::move(b).Finish()),
        {{"{causal=", absl::StrCat("{", attribute, "=", value, ", causal=")}}));
  };
  for (const char* attribute :
       {"first_sentence", "first_head", "first_query", "all_queries"}) {
    EXPECT_OK(parse(attribute, "2199023255552"));
    for (const char* value :
         {"\"1\"", "1.5", "-1", "2199023255553", "9223372036854775807"}) {
      EXPECT_THAT(parse(attribute, value),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("'", attribute, "' must"))));
    }
  }
}

// Takes minutes if the time is quadratic in the number of outputs.
TEST(TextTest, AProgramMayHaveManyOutputs) {
  constexpr int kOutputs = 300'000;
  std::string text =
      "program \"p\" {\n"
      "%0 = input() {name=\"x\", shape=[], type=\"f32\"} : f32[]\n";
  for (int i = 0; i < kOutputs; ++i) {
    absl::StrAppend(&text, "output \"", i, "\" = %0\n");
  }
  ASSERT_OK_AND_ASSIGN(const Program program,
                       ParseProgram(absl::StrCat(text, "}\n")));
  EXPECT_EQ(program.outputs.size(), static_cast<size_t>(kOutputs));
}

TEST(TextTest, RefusesTextsThatEnd) {
  const std::string text = kText;
  for (const size_t size :
       {size_t{0}, size_t{8}, text.size() / 2, text.size() - 2}) {
    EXPECT_THAT(ParseProgram(text.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("line "), HasSubstr("expected "))));
  }
}

TEST(TextTest, RefusesTooManyDimensions) {
  const std::string text = absl::StrReplaceAll(
      kText, {{"[B, 8]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"}});
  EXPECT_THAT(ParseProgram(text),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 2: expected at most 16 dimensions")));
}

TEST(TextTest, RefusesHugeTexts) {
  EXPECT_THAT(ParseProgram(std::string((size_t{64} << 20) + 1, ' ')),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("at most 67108864 bytes, got 67108865")));
}

}  // namespace
}  // namespace gshard
