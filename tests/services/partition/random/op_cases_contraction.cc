// einsum and convolution.

#include "services/ops/window.h"
#include "tests/services/partition/random/random_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

std::string Shuffled(CaseWriter& c, const std::string& letters) {
  std::string shuffled;
  for (const int64_t i : c.Permutation(letters.size())) shuffled += letters[i];
  return shuffled;
}

// Batch, row, column and contracted letters in any number and order.
void Einsum(CaseWriter& c) {
  std::map<char, Dim> sizes;
  char next = 'a';
  const auto letters = [&](int64_t most) {
    std::string chosen;
    for (int64_t i = c.Between(0, most); i-- > 0;) {
      sizes.emplace(next, c.Size());
      chosen += next++;
    }
    return chosen;
  };
  const std::string batch = letters(2), rows = letters(2), columns = letters(2),
                    summed = letters(2);
  const std::string a = Shuffled(c, batch + rows + summed);
  const std::string b = Shuffled(c, batch + columns + summed);
  const std::string y = Shuffled(c, batch + rows + columns);
  const auto operand = [&](const std::string& text) {
    Shape shape;
    for (const char letter : text) shape.push_back(sizes.at(letter));
    return c.Float(shape);
  };
  ValueId left = operand(a);
  ValueId right = operand(b);
  if (c.Chance(0.25)) {
    left = c.Annotated(c.b.Cast(left, ElementType::kBFloat16));
    right = c.Annotated(c.b.Cast(right, ElementType::kBFloat16));
  }
  c.Result(c.b.Einsum(a + "," + b + "->" + y, left, right));
}

// The product of the paper's feed-forward layers, a family of its own because
// it can be split in the most ways.
void Matmul(CaseWriter& c) {
  const Dim rows = c.Size(), inner = c.Size(), columns = c.Size();
  const ValueId x = c.Float({rows, inner});
  const ValueId w = c.Float({inner, columns});
  c.Result(c.b.Einsum("ab,bc->ac", x, w));
}

void Convolution(CaseWriter& c) {
  const int64_t spatial = c.Between(1, 2);
  ConvolutionAttributes attributes;
  Shape x = {c.Size()};
  Shape kernel;
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t base = c.Chance(0.3) ? c.mesh().NumDevices() * c.Between(1, 3)
                                       : c.Between(1, spatial == 1 ? 17 : 9);
    Window window;
    do {
      window = {.size = c.Between(1, 4),
                .stride = c.Pick<int64_t>({1, 1, 2, 3}),
                .pad_low = c.Between(0, 3),
                .pad_high = c.Between(0, 3),
                .base_dilation = c.Pick<int64_t>({1, 1, 1, 2}),
                .window_dilation = c.Pick<int64_t>({1, 1, 2})};
      if (c.Chance(0.1)) window.pad_low = -1;
      if (c.Chance(0.1)) window.pad_high = -1;
    } while (WindowCount(base, window) < 1);
    x.push_back(base);
    kernel.push_back(window.size);
    attributes.stride.push_back(window.stride);
    attributes.pad_low.push_back(window.pad_low);
    attributes.pad_high.push_back(window.pad_high);
    attributes.base_dilation.push_back(window.base_dilation);
    attributes.window_dilation.push_back(window.window_dilation);
  }
  const Dim channels = c.Between(1, 5);
  x.push_back(channels);
  kernel.push_back(channels);
  kernel.push_back(c.Between(1, 5));
  const ValueId image = c.Float(x);
  c.Result(Convolution(c.b, image, c.Float(kernel), std::move(attributes)));
}

}  // namespace

std::vector<Family> ContractionFamilies() {
  return {{"einsum", 1200, Einsum},
          {"matmul", 600, Matmul},
          {"convolution", 700, Convolution}};
}

}  // namespace gshard
