#include "services/checkpoint/sha256.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

// FIPS 180-4 examples.
TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(Sha256(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, PartsAreAsTheWhole) {
  Sha256Stream stream;
  for (const std::string& text : {std::string(1000, 'x'), std::string("abc")}) {
    for (size_t at = 0; at < text.size(); at += 7) {
      stream.Append(absl::string_view(text).substr(at, 7));
    }
    EXPECT_EQ(stream.Finish(), Sha256(text));
  }
}

TEST(Sha256Test, OfATensorIsOfItsBytes) {
  const Tensor tensor =
      Tensor::Of<uint8_t>({3}, std::vector<uint8_t>{'a', 'b', 'c'});
  EXPECT_EQ(Sha256(tensor), Sha256("abc"));
  EXPECT_EQ(Sha256(Tensor(ElementType::kFloat32, {0, 5})), Sha256(""));
}

TEST(Sha256Test, KnowsItsForm) {
  EXPECT_TRUE(IsSha256(Sha256("x")));
  EXPECT_FALSE(IsSha256(""));
  EXPECT_FALSE(IsSha256(std::string(63, 'a')));
  EXPECT_FALSE(IsSha256(std::string(64, 'A')));
  EXPECT_FALSE(IsSha256(std::string(64, 'g')));
}

}  // namespace
}  // namespace gshard
