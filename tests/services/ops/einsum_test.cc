#include "services/ops/einsum.h"

#include <gtest/gtest.h>

#include <map>

#include "services/ops/cast.h"
#include "services/ops/cpu_isa.h"
#include "tests/reference/einsum.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/panels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

const char* const kTexts[] = {
    "blm,mh->blh",      // a dense layer
    "blm,mnd->blnd",    // heads
    "blnd,mnd->blm",    // heads merged
    "blnd,ndm->blm",    //
    "blm,blh->mh",      // a weight's gradient
    "blh,mh->blm",      // an input's gradient
    "blm,vm->blv",      // logits
    "blnd,bknd->bnlk",  // attention
    "bnlk,bknd->blnd",  //
    "ecm,emh->ech",     // experts, one capacity
    "gsec,gsm->egcm",   // the paper's dispatch
    "gsec,egcm->gsm",   // the paper's combine
    "ij,jk->ki",        // transposed result
    "i,j->ij",          // outer product
    "i,i->",            // dot product
    "ij,ij->ij",        // elementwise
    "ba,abc->c",        // contracted letters in another order
};

Tensor OfLetters(const std::string& letters, uint64_t seed,
                 std::map<char, int64_t> sizes) {
  Dims dims;
  for (const char letter : letters) {
    dims.push_back(sizes.count(letter) ? sizes[letter] : 1 + letter % 5);
  }
  return RandomTensor(dims, seed);
}

TEST(EinsumTest, EqualsReference) {
  for (const char* text : kTexts) {
    ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum(text));
    EXPECT_EQ(spec.ToString(), text);
    for (const std::map<char, int64_t>& sizes :
         {std::map<char, int64_t>{},
          {{'m', 17}, {'l', 3}, {'b', 1}},
          {{'b', 0}, {'i', 0}},
          {{'m', 0}, {'j', 0}}}) {
      const Tensor a = OfLetters(spec.a, 1, sizes);
      const Tensor b = OfLetters(spec.b, 2, sizes);
      EXPECT_TRUE(
          TensorNear(Einsum(spec, a, b), reference::Einsum(spec, a, b), 1e-5f))
          << text;
      const Tensor low_a = Cast(a, ElementType::kBFloat16);
      const Tensor low_b = Cast(b, ElementType::kBFloat16);
      EXPECT_TRUE(TensorNear(Einsum(spec, low_a, low_b),
                             reference::Einsum(spec, low_a, low_b), 1e-5f))
          << text << " of bfloat16";
    }
  }
}

TEST(EinsumTest, GradientsAreEinsums) {
  for (const char* text : kTexts) {
    ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum(text));
    const Tensor a = OfLetters(spec.a, 1, {});
    const Tensor b = OfLetters(spec.b, 2, {});
    const Tensor dresult =
        RandomTensor(reference::Einsum(spec, a, b).dims(), 3);
    const Tensor da = NumericGradient(
        [&](const Tensor& x) { return reference::Einsum(spec, x, b); }, a,
        dresult, 0.25f);
    EXPECT_TRUE(TensorNear(Einsum(GradientOfA(spec), dresult, b), da, 1e-4f))
        << text;
    const Tensor db = NumericGradient(
        [&](const Tensor& x) { return reference::Einsum(spec, a, x); }, b,
        dresult, 0.25f);
    EXPECT_TRUE(TensorNear(Einsum(GradientOfB(spec), a, dresult), db, 1e-4f))
        << text;
  }
}

TEST(EinsumTest, RowsHaveTheSameBitsForAnyNumberOfRows) {
  for (const char* text : {"blm,mnd->blnd", "blnd,ndm->blm", "blm,vm->blv"}) {
    ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum(text));
    const std::map<char, int64_t> sizes = {{'b', 5}, {'l', 7},  {'m', 64},
                                           {'n', 4}, {'d', 16}, {'v', 99}};
    for (const auto type : {ElementType::kFloat32, ElementType::kBFloat16}) {
      const Tensor a = Cast(OfLetters(spec.a, 1, sizes), type);
      const Tensor b = Cast(OfLetters(spec.b, 2, sizes), type);
      const Tensor all = Einsum(spec, a, b);
      for (int64_t rows = 1; rows < 5; ++rows) {
        EXPECT_TRUE(
            TensorEqual(Einsum(spec, a.Rows(0, rows), b), all.Rows(0, rows)))
            << text;
      }
    }
  }
}

TEST(EinsumTest, FactorsInPanelsGiveTheSameBits) {
  const std::map<char, int64_t> sizes = {
      {'b', 5}, {'l', 7}, {'m', 96}, {'n', 4}, {'d', 16}};
  for (const auto& [text, row_letters] :
       {std::pair<const char*, int>{"blm,mnd->blnd", 1},
        {"blnd,ndm->blm", 2},
        {"bm,md->bd", 1}}) {
    ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum(text));
    EXPECT_EQ(MatrixOf(spec), (MatrixOfB{row_letters, false}));
    for (const auto type : {ElementType::kFloat32, ElementType::kBFloat16}) {
      const Tensor a = Cast(OfLetters(spec.a, 1, sizes), type);
      const Tensor b = Cast(OfLetters(spec.b, 2, sizes), type);
      int64_t rows = 1;
      for (int d = 0; d < row_letters; ++d) rows *= b.dim(d);
      EXPECT_TRUE(TensorEqual(Einsum(spec, a, InPanels(b, 1, rows)),
                              Einsum(spec, a, b)))
          << text;
    }
  }
}

// float32 panels have the bits of oneDNN's matmul, which unpacked factors use.
// Unpacked bfloat16 uses bf16_dots.h, which sums in another order.
TEST(EinsumTest, TransposedFactorsInPanelsGiveTheSameBits) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("blm,vm->blv"));
  EXPECT_EQ(MatrixOf(spec), (MatrixOfB{1, true}));
  for (const int64_t m : {96, 512, 1024, 1030, 2048}) {
    for (const int64_t rows : {1, 3, 70}) {
      const Tensor a = RandomTensor({1, rows, m}, 1);
      const Tensor b = RandomTensor({112, m}, 2);
      const Tensor exact = Einsum(spec, a, b);
      EXPECT_TRUE(TensorEqual(Einsum(spec, a, InPanels(b, 1, m, true)), exact))
          << m << " " << rows;
      const Tensor low_a = Cast(a, ElementType::kBFloat16);
      const Tensor low_b = Cast(b, ElementType::kBFloat16);
      EXPECT_TRUE(TensorNear(Einsum(spec, low_a, InPanels(low_b, 1, m, true)),
                             Einsum(spec, low_a, low_b), 1e-5f))
          << m << " " << rows;
    }
  }
}

// Batched factors, and those of products with `a` on the right, are no matrix.
TEST(EinsumTest, OtherFactorsAreNoMatrix) {
  for (const char* text : {"bij,bjk->bik", "mb,md->bd", "bm,md->db"}) {
    ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum(text));
    EXPECT_EQ(MatrixOf(spec), MatrixOfB()) << text;
  }
}

TEST(NewPanelsTest, IsEmptyWherePanelsWouldNeedZeros) {
  for (const auto type : {ElementType::kFloat32, ElementType::kBFloat16}) {
    EXPECT_EQ(NewPanels(type, {4, 48}, 1, 4).empty(), !HasAvx2());
    EXPECT_TRUE(NewPanels(type, {3, 48}, 1, 3).empty());
    EXPECT_TRUE(NewPanels(type, {4, 40}, 1, 4).empty());
    EXPECT_TRUE(NewPanels(type, {0, 4, 48}, 0, 4).empty());
  }
}

TEST(ParseEinsumTest, RefusesWhatIsNoProduct) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ParseEinsum("blm->bl"), StatusIs(kInvalid, HasSubstr("blm->bl")));
  EXPECT_THAT(ParseEinsum("a,b"), StatusIs(kInvalid, HasSubstr("->")));
  EXPECT_THAT(ParseEinsum("a->b,c"), StatusIs(kInvalid, HasSubstr("->")));
  EXPECT_THAT(ParseEinsum("aa,b->ab"),
              StatusIs(kInvalid, HasSubstr("'a' is repeated in 'aa'")));
  EXPECT_THAT(ParseEinsum("a1,b->ab"), StatusIs(kInvalid, HasSubstr("'1'")));
  EXPECT_THAT(ParseEinsum("ab,bc->acd"), StatusIs(kInvalid, HasSubstr("'d'")));
  EXPECT_THAT(ParseEinsum("ab,c->ac"), StatusIs(kInvalid, HasSubstr("'b'")));
  EXPECT_THAT(ParseEinsum("a,bc->ab"), StatusIs(kInvalid, HasSubstr("'c'")));
}

}  // namespace
}  // namespace gshard
