#include "services/graph/dim.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/services/graph/wrong_use.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Dim L = Dim::Symbol("L");

TEST(DimTest, PrintsAndParses) {
  for (const auto& [dim, text] : std::vector<std::pair<Dim, std::string>>{
           {Dim(0), "0"},
           {Dim(512), "512"},
           {Dim(int64_t{1} << 40), "1099511627776"},
           {B, "B"},
           {L * 2 * B, "2*B*L"},
           {B * B, "B*B"},
           {Dim::Symbol("R_12"), "R_12"},
           {Dim(0) * B, "0*B"}}) {
    EXPECT_EQ(dim.ToString(), text);
    ASSERT_OK_AND_ASSIGN(const Dim parsed, Dim::Parse(text));
    EXPECT_EQ(parsed, dim);
  }
}

TEST(DimTest, ParsesFactorsInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const Dim dim, Dim::Parse("L*3*B*2"));
  EXPECT_EQ(dim, B * 6 * L);
}

TEST(DimTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "*", "B*", "*B", "B**L", "-1", "1.5", "2B", "_x", "B L", "B-L",
        "1099511627777", "99999999999999999999"}) {
    EXPECT_THAT(Dim::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("got '", text, "'"))));
  }
  EXPECT_THAT(Dim::Parse(std::string(65, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2^40")));
  EXPECT_THAT(Dim::Parse("B*B*B*B*B*B*B*B*B*B*B*B*B*B*B*B*B"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most 16 factors, got 17")));
}

TEST(DimTest, ProductsSaturate) {
  const Dim big(int64_t{1} << 40);
  EXPECT_EQ((big * big).size(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((big * big * B * big).coefficient(),
            std::numeric_limits<int64_t>::max());
}

TEST(DimTest, TypesPrint) {
  EXPECT_EQ((ValueType{ElementType::kFloat32, {B, 512}}).ToString(),
            "f32[B, 512]");
  EXPECT_EQ((ValueType{ElementType::kInt64, {}}).ToString(), "i64[]");
  EXPECT_EQ(ShapeSize(Shape{B, 3, L, 4}), B * 12 * L);
  EXPECT_EQ(ShapeSize({}), Dim(1));
}

TEST(BindingsTest, BindsAndResolves) {
  Bindings bindings;
  EXPECT_OK(bindings.Unify(Shape{B, 8}, {3, 8}));
  EXPECT_OK(bindings.Unify(Shape{B * L * 2}, {30}));
  ASSERT_OK_AND_ASSIGN(const Dims dims, bindings.Resolve(Shape{L, B * 4, 7}));
  EXPECT_THAT(dims, ElementsAre(5, 12, 7));
}

TEST(BindingsTest, SizeZeroBindsAndThenHidesTheOtherFactor) {
  Bindings bindings;
  EXPECT_OK(bindings.Unify(Shape{B}, {0}));
  EXPECT_OK(bindings.Unify(Shape{B, 2}, {0, 2}));
  EXPECT_THAT(bindings.Unify(Shape{B * L}, {0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("0 is no multiple of 0")));
}

TEST(BindingsTest, SaysWhatDisagrees) {
  Bindings bindings;
  ASSERT_OK(bindings.Unify(Shape{B}, {3}));
  const auto unify = [&](const Shape& shape, std::vector<int64_t> dims) {
    return bindings.Unify(shape, dims);
  };
  const auto invalid = [](absl::string_view text) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(text)));
  };
  EXPECT_THAT(unify({4}, {5}), invalid("expected [4], got [5]"));
  EXPECT_THAT(unify({4}, {4, 1}), invalid("expected [4], got [4, 1]"));
  EXPECT_THAT(unify({B, 2}, {4, 2}),
              invalid("expected [B, 2], got [4, 2] where B = 3"));
  EXPECT_THAT(unify({B * L}, {4}), invalid("4 is no multiple of 3"));
  EXPECT_THAT(unify({L * Dim::Symbol("K")}, {4}),
              invalid("K and L are both unknown"));
  EXPECT_THAT(bindings.Resolve(Shape{B, L}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("symbol L of [B, L] is not bound")));
}

TEST(BindingsTest, SizesThatNoTensorHasAreErrors) {
  Bindings bindings;
  ASSERT_OK(bindings.Unify(Shape{B}, {1000}));
  const Dim big(int64_t{1} << 40);
  for (const Shape& shape :
       {Shape{big * big}, Shape{big * big * B}, Shape{big, big},
        Shape{big, big, 0}, Shape{big, B}}) {
    EXPECT_THAT(bindings.Resolve(shape),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("is too large")));
  }
  EXPECT_OK(bindings.Resolve(Shape{big, 0}));
  EXPECT_THAT(bindings.Unify(Shape{big * big * B}, {4}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is beyond 2^63")));
}

}  // namespace
}  // namespace gshard
