// The random choices of random_case.h.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/graph/gradient.h"
#include "services/sharding/annotation.h"
#include "tests/services/partition/random/random_case.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

std::vector<MeshAxis> RandomAxes(CaseWriter& c) {
  const int64_t devices = c.Pick<int64_t>({1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 8});
  std::vector<int64_t> sizes = {devices};
  if (c.Chance(0.5)) {
    if (devices == 4) sizes = {2, 2};
    if (devices == 8) {
      sizes = c.Pick<std::vector<int64_t>>({{2, 4}, {4, 2}, {2, 2, 2}});
    }
    if (devices < 4 && c.Chance(0.3)) {
      sizes = c.Pick<std::vector<int64_t>>({{1, devices}, {devices, 1}});
    }
  }
  std::vector<MeshAxis> axes;
  for (const int64_t size : sizes) {
    axes.push_back(
        {std::string(1, static_cast<char>('x' + axes.size())), size, "device"});
  }
  return axes;
}

DeviceMesh MeshOf(std::vector<MeshAxis> axes, bool alone) {
  if (alone) {
    for (MeshAxis& axis : axes) axis.size = 1;
  }
  return *DeviceMesh::Create(std::move(axes));
}

}  // namespace

CaseWriter::CaseWriter(uint64_t key, bool alone)
    : b("case"),
      key_(key),
      mesh_(MeshOf({{"x", 1, ""}}, false)),
      manual_mesh_(mesh_) {
  const std::vector<MeshAxis> axes = RandomAxes(*this);
  mesh_ = MeshOf(axes, false);
  manual_mesh_ = MeshOf(axes, alone);
}

int64_t CaseWriter::Below(int64_t n) { return RandomBelow(key_, drawn_++, n); }

int64_t CaseWriter::Between(int64_t low, int64_t high) {
  return low + Below(high - low + 1);
}

bool CaseWriter::Chance(double p) { return RandomUniform(key_, drawn_++) < p; }

std::vector<int64_t> CaseWriter::Permutation(int64_t n) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n; i-- > 1;) std::swap(order[i], order[Below(i + 1)]);
  return order;
}

std::vector<int64_t> CaseWriter::Subset(int64_t n) {
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n; ++i) {
    if (Chance(0.5)) chosen.push_back(i);
  }
  return chosen;
}

Dim CaseWriter::StaticSize() {
  if (Chance(0.03)) return 0;
  if (Chance(0.2)) return mesh_.NumDevices() * Between(1, 2);
  return Between(1, 9);
}

Dim CaseWriter::Size() {
  if (Chance(0.85)) return StaticSize();
  if (reusable_.size() == 2) return Dim::Symbol(Pick(reusable_));
  const Dim symbol = NewSymbol("B", 1);
  reusable_.push_back(symbol.ToString());
  return symbol;
}

Dim CaseWriter::NewSymbol(absl::string_view prefix, int64_t multiple) {
  const std::string name = absl::StrCat(prefix, symbols_.size());
  symbols_[name] = mesh_.NumDevices() * multiple * Between(1, 2);
  return Dim::Symbol(name);
}

Dim CaseWriter::RowSymbol(absl::string_view name, int64_t value) {
  symbols_[std::string(name)] = value;
  return Dim::Symbol(name);
}

Shape CaseWriter::RandomShape(int64_t min_rank, int64_t max_rank) {
  Shape shape;
  const int64_t rank = Between(min_rank, max_rank);
  while (static_cast<int64_t>(shape.size()) < rank) shape.push_back(Size());
  return shape;
}

int64_t CaseWriter::ValueOf(const Dim& dim) const {
  int64_t value = dim.coefficient();
  for (const std::string& symbol : dim.symbols()) value *= symbols_.at(symbol);
  return value;
}

Dims CaseWriter::ValuesOf(const Shape& shape) const {
  Dims dims;
  for (const Dim& dim : shape) dims.push_back(ValueOf(dim));
  return dims;
}

std::string CaseWriter::NewName(absl::string_view prefix) {
  return absl::StrCat(prefix, names_++);
}

ValueId CaseWriter::Source(Tensor tensor, const Shape& shape, bool parameter) {
  const ElementType type = tensor.type();
  const std::string name = NewName(parameter ? "p" : "x");
  (parameter ? parameters_ : inputs_)[name] = std::move(tensor);
  return Annotated(parameter ? b.Parameter(name, shape)
                             : b.Input(name, {type, shape}));
}

ValueId CaseWriter::Float(const Shape& shape, float scale) {
  const bool parameter = Chance(0.4) && std::all_of(shape.begin(), shape.end(),
                                                    [](const Dim& dim) {
                                                      return dim.is_static();
                                                    });
  const ValueId value =
      Source(RandomTensor(ValuesOf(shape), FoldIn(key_, drawn_++), scale),
             shape, parameter);
  differentiated_.push_back(value);
  return value;
}

ValueId CaseWriter::Positive(const Shape& shape) {
  Tensor tensor = RandomTensor(ValuesOf(shape), FoldIn(key_, drawn_++), 0.5f);
  for (float& x : tensor.span<float>()) x += 1.0f;
  const ValueId value = Source(std::move(tensor), shape, false);
  differentiated_.push_back(value);
  return value;
}

ValueId CaseWriter::Data(const Shape& shape) {
  return Source(RandomTensor(ValuesOf(shape), FoldIn(key_, drawn_++)), shape,
                false);
}

ValueId CaseWriter::Ints(const Shape& shape, int64_t low, int64_t high) {
  Tensor tensor(ElementType::kInt32, ValuesOf(shape));
  for (int32_t& x : tensor.span<int32_t>()) {
    x = static_cast<int32_t>(Between(low, high));
  }
  return Given(std::move(tensor), shape);
}

ValueId CaseWriter::Given(Tensor tensor, const Shape& shape) {
  return Source(std::move(tensor), shape, false);
}

ValueId CaseWriter::Key() { return Index(Below(1 << 20)); }

ValueId CaseWriter::Index(int64_t value) { return Given(KeyTensor(value), {}); }

ValueId CaseWriter::Annotated(ValueId value) {
  if (value == kNoValue || !b.program().values[value].sharding.empty()) {
    return value;
  }
  const int64_t rank = b.type(value).shape.size();
  const int64_t kind = Below(100);
  if (kind < 30) return value;
  if (kind < 40 || rank == 0) return Replicate(b, value);
  if (kind < 90) {
    const std::vector<int64_t> axes = Permutation(mesh_.num_axes());
    const int64_t count = Between(1, axes.size());
    for (int64_t i = 0; i < count; ++i) {
      Split(b, value, Below(rank), mesh_.axis(axes[i]).name);
    }
    return value;
  }
  if (kind < 95) {
    return Split(b, value, Below(rank),
                 mesh_.axis(Below(mesh_.num_axes())).size);
  }
  // Tiles with different numbers of rows cannot swap devices.
  for (const Dim& dim : b.type(value).shape) {
    if (row_sizes_.count(dim.ToString()) > 0) return value;
  }
  // Assigns axes in order to dimensions in order.
  DeviceAssignment assignment{.dims = std::vector<int64_t>(rank, 1),
                              .devices = Permutation(mesh_.NumDevices())};
  int64_t d = Below(rank);
  for (int a = 0; a < mesh_.num_axes(); ++a) {
    assignment.dims[d] *= mesh_.axis(a).size;
    d = Between(d, rank - 1);
  }
  return Shard(b, value, assignment);
}

void CaseWriter::Result(ValueId value) { results_.push_back(Annotated(value)); }

void CaseWriter::BindSymbols(const Shape& shape) {
  for (const Dim& dim : shape) {
    if (!dim.is_static()) Data({dim});
  }
}

void CaseWriter::NoteRows(const Dim& rows, ValueId sizes) {
  row_sizes_[rows.ToString()] =
      StringAttribute(b.program().producer(sizes).attributes, "name");
}

void CaseWriter::Finish() {
  ValueId loss = kNoValue;
  for (size_t i = 0; i < results_.size(); ++i) {
    b.Output(absl::StrCat("result", i), results_[i]);
    const ValueType type = b.type(results_[i]);
    if (!differentiable || type.type != ElementType::kFloat32) continue;
    const size_t rank = type.shape.size();
    std::vector<int64_t> dims(rank);
    std::iota(dims.begin(), dims.end(), 0);
    const ValueId product = b.Multiply(results_[i], Data(type.shape));
    const ValueId sum = dims.empty() ? product : b.ReduceSum(product, dims);
    loss = loss == kNoValue ? sum : b.Add(loss, sum);
  }
  if (loss == kNoValue) return;
  const auto gradients = AddGradients(b, loss, differentiated_);
  if (!gradients.ok()) return b.Fail(gradients.status());
  for (size_t i = 0; i < gradients->size(); ++i) {
    if ((*gradients)[i] == kNoValue) continue;
    b.Output(absl::StrCat("gradient", i), (*gradients)[i]);
  }
}

RandomCase MakeCase(const Family& family, uint64_t seed) {
  const uint64_t key = FoldIn(FoldIn(0, family.name), seed);
  const auto write = [&](bool alone) {
    CaseWriter c(key, alone);
    family.write(c);
    c.Finish();
    return c;
  };
  CaseWriter c = write(false);
  RandomCase made{.family = family.name,
                  .seed = seed,
                  .mesh = c.mesh_,
                  .options = {},
                  .program = {},
                  .alone = {},
                  .inputs = std::move(c.inputs_),
                  .parameters = std::move(c.parameters_),
                  .row_sizes = std::move(c.row_sizes_)};
  if (c.Chance(0.3)) made.options.windowed_einsum_bytes = 0;
  const absl::Status status = c.b.status();
  if (!status.ok()) {
    std::fprintf(stderr, "%s seed %llu: %s\n", family.name.c_str(),
                 static_cast<unsigned long long>(seed),
                 status.ToString().c_str());
  }
  CHECK(status.ok());
  made.program = *std::move(c.b).Finish();
  made.alone = made.program.NodesOf("enter_manual").empty()
                   ? made.program
                   : *std::move(write(true).b).Finish();
  return made;
}

}  // namespace gshard
