// Reads the files of tests/parity/data (format: README.md there), and generates
// their inputs from seeds.

#ifndef TESTS_PARITY_FIXTURE_H_
#define TESTS_PARITY_FIXTURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/tensor/tensor.h"

namespace gshard {

class Fixture {
 public:
  // `name` is the file name without folder and extension: "gate_tiny".
  static absl::StatusOr<Fixture> Read(const std::string& name);

  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  // REQUIRES: Has(name). Booleans are u8.
  const Tensor& Get(const std::string& name) const;
  // A float64 tensor as float32, reshaped to `dims`.
  Tensor GetFloats(const std::string& name, Dims dims) const;
  // A number in __metadata__. REQUIRES: it is present.
  double Number(const std::string& name) const;
  std::string Text(const std::string& name) const;
  // The implementations with results: X of every "X.e1".
  std::vector<std::string> Implementations() const;

 private:
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Logits f32[G * S, E] and uniforms f32[G * S] of a case.
Tensor MakeLogits(uint64_t seed, int64_t tokens, int64_t experts, double scale,
                  double skew);
Tensor MakeUniforms(uint64_t seed, int64_t tokens);

}  // namespace gshard

#endif  // TESTS_PARITY_FIXTURE_H_
