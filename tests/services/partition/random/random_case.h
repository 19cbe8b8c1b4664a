// Random programs that test the partitioner with each family of operators. A
// case is a function of its family and seed.

#ifndef TESTS_SERVICES_PARTITION_RANDOM_RANDOM_CASE_H_
#define TESTS_SERVICES_PARTITION_RANDOM_RANDOM_CASE_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "services/graph/builder.h"
#include "services/graph/executor.h"
#include "services/partition/partitioner.h"
#include "services/sharding/device_mesh.h"
#include "tests/testing/partitioned_run.h"

namespace gshard {

// Builds the program of a case; all randomness is drawn from here.
//
// Sizes are small and rarely divide evenly; symbolic ones (B0, B1) are
// multiples of the number of devices, as the partitioner requires.
class CaseWriter {
 public:
  // `alone` writes manual regions for one device.
  CaseWriter(uint64_t key, bool alone);

  Builder b;

  // In [0, n), in [low, high], true with probability p, one of a list.
  int64_t Below(int64_t n);
  int64_t Between(int64_t low, int64_t high);
  bool Chance(double p);
  template <typename T>
  T Pick(const std::vector<T>& choices) {
    return choices[Below(choices.size())];
  }
  std::vector<int64_t> Permutation(int64_t n);
  // Each of 0 to n - 1 with probability 1/2, in order.
  std::vector<int64_t> Subset(int64_t n);

  const DeviceMesh& mesh() const { return mesh_; }
  // The mesh that manual regions are written for: mesh(), or with `alone` the
  // same axes with one device.
  const DeviceMesh& manual_mesh() const { return manual_mesh_; }

  // A size: 1 to 9, a multiple of the devices, 0, or a symbol.
  Dim Size();
  Dim StaticSize();
  // A symbol with a value that is a multiple of `multiple` times the devices.
  Dim NewSymbol(absl::string_view prefix, int64_t multiple);
  // A symbol with a given value, which need not divide evenly.
  Dim RowSymbol(absl::string_view name, int64_t value);
  Shape RandomShape(int64_t min_rank, int64_t max_rank);
  int64_t ValueOf(const Dim& dim) const;
  Dims ValuesOf(const Shape& shape) const;

  // Inputs or parameters, annotated at random. Gradients are taken with respect
  // to those of Float() and Positive().
  ValueId Float(const Shape& shape, float scale = 1.0f);
  // In [0.5, 1.5), safe to divide by.
  ValueId Positive(const Shape& shape);
  // Not differentiated.
  ValueId Data(const Shape& shape);
  ValueId Ints(const Shape& shape, int64_t low, int64_t high);
  ValueId Given(Tensor tensor, const Shape& shape);
  ValueId Key();
  // i64[].
  ValueId Index(int64_t value);

  // Adds inputs that determine symbols which operands do not.
  void BindSymbols(const Shape& shape);

  // Annotates the value at random: not at all, replicated, split along random
  // axes, or on devices in another order.
  ValueId Annotated(ValueId value);

  // Outputs a result for comparison; float results enter the loss.
  void Result(ValueId value);

  // The input `sizes` groups the rows that this symbol counts.
  void NoteRows(const Dim& rows, ValueId sizes);

  // False for operators whose results have no gradient.
  bool differentiable = true;

 private:
  friend struct RandomCase;
  friend struct RandomCase MakeCase(const struct Family&, uint64_t);
  std::string NewName(absl::string_view prefix);
  ValueId Source(Tensor tensor, const Shape& shape, bool parameter);
  void Finish();

  uint64_t key_;
  uint64_t drawn_ = 0;
  int names_ = 0;
  DeviceMesh mesh_;
  DeviceMesh manual_mesh_;
  std::map<std::string, int64_t> symbols_;
  std::vector<std::string> reusable_;
  std::vector<ValueId> differentiated_;
  std::vector<ValueId> results_;
  TensorMap inputs_;
  TensorMap parameters_;
  RowSizes row_sizes_;
};

struct Family {
  std::string name;
  int cases = 0;
  void (*write)(CaseWriter& c) = nullptr;
};

// Prints a family in GoogleTest's messages.
inline void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

struct RandomCase {
  std::string family;
  uint64_t seed = 0;
  DeviceMesh mesh;
  PartitionOptions options;
  Program program;
  Program alone;  // the same for one device
  TensorMap inputs;
  TensorMap parameters;
  RowSizes row_sizes;

  // Mesh, options and annotated program.
  std::string ToString() const;
};

RandomCase MakeCase(const Family& family, uint64_t seed);

// Returns "" if the partitioned program computes the same as the whole one,
// else the difference with all that is needed to debug it.
std::string Check(const RandomCase& c);

// The families of op_cases_*.cc, one function per file.
std::vector<Family> ElementwiseFamilies();
std::vector<Family> ContractionFamilies();
std::vector<Family> ShapeFamilies();
std::vector<Family> WindowFamilies();
std::vector<Family> LookupFamilies();
std::vector<Family> NormFamilies();
std::vector<Family> AttentionFamilies();
std::vector<Family> RaggedFamilies();
std::vector<Family> GatingFamilies();
std::vector<Family> ChainFamilies();
std::vector<Family> AllFamilies();

}  // namespace gshard

#endif  // TESTS_SERVICES_PARTITION_RANDOM_RANDOM_CASE_H_
