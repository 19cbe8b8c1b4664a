#include "tests/reference/einsum.h"

#include <map>
#include <vector>

#include "tests/reference/cast.h"

namespace gshard::reference {
namespace {

using Index = std::map<char, int64_t>;

int64_t Offset(const Index& index, const std::string& letters,
               const Dims& dims) {
  int64_t offset = 0;
  for (size_t i = 0; i < letters.size(); ++i) {
    offset = offset * dims[i] + index.at(letters[i]);
  }
  return offset;
}

}  // namespace

Tensor Einsum(const EinsumSpec& spec, const Tensor& a, const Tensor& b) {
  if (a.type() == ElementType::kBFloat16) {
    return reference::Einsum(spec, Cast(a, ElementType::kFloat32),
                             Cast(b, ElementType::kFloat32));
  }
  Index sizes;
  for (size_t i = 0; i < spec.a.size(); ++i) sizes[spec.a[i]] = a.dim(i);
  for (size_t i = 0; i < spec.b.size(); ++i) sizes[spec.b[i]] = b.dim(i);
  Dims dims;
  for (const char letter : spec.result) dims.push_back(sizes[letter]);
  Tensor result(ElementType::kFloat32, dims);
  std::vector<double> sums(result.size(), 0.0);

  int64_t combinations = 1;
  for (const auto& [letter, size] : sizes) combinations *= size;
  for (int64_t i = 0; i < combinations; ++i) {
    Index index;
    int64_t rest = i;
    for (const auto& [letter, size] : sizes) {
      index[letter] = rest % size;
      rest /= size;
    }
    sums[Offset(index, spec.result, dims)] +=
        static_cast<double>(a.f32()[Offset(index, spec.a, a.dims())]) *
        b.f32()[Offset(index, spec.b, b.dims())];
  }
  for (int64_t i = 0; i < result.size(); ++i) {
    result.f32()[i] = static_cast<float>(sums[i]);
  }
  return result;
}

}  // namespace gshard::reference
