#include "services/graph/op.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/fill.h"

namespace gshard {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::string, OpDef, std::less<>> ops ABSL_GUARDED_BY(mutex);
  std::map<Backend, std::map<std::string, Kernel, std::less<>>> kernels
      ABSL_GUARDED_BY(mutex);

  void Add(std::vector<OpDef> defs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (OpDef& def : defs) {
      std::string name = def.name;
      if (def.kernel != nullptr) {
        kernels[Backend::kCpu].emplace(name, def.kernel);
      }
      ops.emplace(std::move(name), std::move(def));
    }
  }

  Registry() {
    Add(SourceOps());
    Add(ElementwiseOps());
    Add(ShapeOps());
    Add(PaddingOps());
    Add(ReduceMaxOps());
    Add(ContractionOps());
    Add(ConvolutionOps());
    Add(NormOps());
    Add(LookupOps());
    Add(AttentionOps());
    Add(LossOps());
    Add(RaggedOps());
  }
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

template <typename T>
absl::string_view AttributeKind();
template <>
absl::string_view AttributeKind<int64_t>() {
  return "an integer";
}
template <>
absl::string_view AttributeKind<double>() {
  return "a number";
}
template <>
absl::string_view AttributeKind<std::string>() {
  return "a string";
}
template <>
absl::string_view AttributeKind<std::vector<int64_t>>() {
  return "integers";
}
template <>
absl::string_view AttributeKind<Shape>() {
  return "a shape";
}

}  // namespace

void RegisterOps(std::vector<OpDef> ops) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  registry.Add(std::move(ops));
}

const OpDef* FindOp(absl::string_view name) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  const auto found = registry.ops.find(name);
  return found == registry.ops.end() ? nullptr : &found->second;
}

void RegisterKernels(Backend backend, std::map<std::string, Kernel> kernels) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  registry.kernels[backend].insert(kernels.begin(), kernels.end());
}

const Kernel* FindKernel(absl::string_view op, Backend backend) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  const auto& kernels = registry.kernels[backend];
  const auto found = kernels.find(op);
  return found == kernels.end() ? nullptr : &found->second;
}

absl::string_view BackendName(Backend backend) {
  switch (backend) {
    case Backend::kCpu:
      return "cpu";
    case Backend::kReference:
      return "reference";
    case Backend::kCuda:
      return "cuda";
  }
  return "unknown";
}

std::vector<std::string> OpNames() {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, def] : registry.ops) names.push_back(name);
  return names;
}

absl::Status ExpectOperands(absl::Span<const ValueType> operands,
                            size_t count) {
  if (operands.size() == count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", count, " operands, got ", operands.size()));
}

absl::Status ExpectFloat(absl::Span<const ValueType> operands, int i) {
  if (operands[i].type == ElementType::kFloat32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "operand ", i, " must be f32, got ", operands[i].ToString()));
}

absl::Status ExpectFloatOrBFloat(absl::Span<const ValueType> operands, int i) {
  if (operands[i].type == ElementType::kFloat32 ||
      operands[i].type == ElementType::kBFloat16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "operand ", i, " must be f32 or bf16, got ", operands[i].ToString()));
}

absl::Status ExpectFactors(absl::Span<const ValueType> operands, int i, int j) {
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, i));
  if (operands[i].type == operands[j].type) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "operand ", j, " must be ", ElementTypeName(operands[i].type),
      " as operand ", i, ", got ", operands[j].ToString()));
}

absl::Status ExpectFactorAndWeights(absl::Span<const ValueType> operands, int i,
                                    int j) {
  if (operands[i].type == ElementType::kFloat32 &&
      operands[j].type == ElementType::kInt8) {
    return absl::OkStatus();
  }
  return ExpectFactors(operands, i, j);
}

absl::Status ExpectInt(absl::Span<const ValueType> operands, int i) {
  if (operands[i].type == ElementType::kInt32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "operand ", i, " must be i32, got ", operands[i].ToString()));
}

absl::Status ExpectIndex(absl::Span<const ValueType> operands, int i) {
  if (operands[i] == ValueType{ElementType::kInt64, {}}) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "operand ", i, " must be i64[], got ", operands[i].ToString()));
}

absl::Status ExpectRank(absl::Span<const ValueType> operands, int i, int rank) {
  if (static_cast<int>(operands[i].shape.size()) == rank) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("operand ", i, " must have ",
                                                 rank, " dimensions, got ",
                                                 operands[i].ToString()));
}

absl::Status ExpectShape(absl::Span<const ValueType> operands, int i,
                         const Shape& shape) {
  if (operands[i].shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("operand ", i, " must have shape ", ShapeToString(shape),
                   ", got ", operands[i].ToString()));
}

namespace {

// The attribute "type", which must be one of these; `names` describes them.
absl::StatusOr<ElementType> TypeAttribute(
    const Attributes& attributes, std::initializer_list<ElementType> types,
    absl::string_view names) {
  if (!attributes.contains("type")) return ElementType::kFloat32;
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "type"));
  ASSIGN_OR_RETURN(const ElementType type,
                   ParseElementType(StringAttribute(attributes, "type")));
  if (std::find(types.begin(), types.end(), type) != types.end()) return type;
  return absl::InvalidArgumentError(
      absl::StrCat("'type' must be ", names, ", got ", ElementTypeName(type)));
}

}  // namespace

absl::StatusOr<ElementType> FloatTypeAttribute(const Attributes& attributes) {
  return TypeAttribute(attributes,
                       {ElementType::kFloat32, ElementType::kBFloat16},
                       "f32 or bf16");
}

absl::StatusOr<ElementType> WeightTypeAttribute(const Attributes& attributes) {
  return TypeAttribute(
      attributes,
      {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kInt8},
      "f32, bf16 or i8");
}

absl::Status ExpectValue(const Attributes& attributes, ElementType type) {
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "value"));
  const double value = FloatAttribute(attributes, "value");
  if (IsElement(type, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'value' must be a number that ", ElementTypeName(type),
                   " holds, got ", value));
}

template <typename T>
absl::Status ExpectAttribute(const Attributes& attributes,
                             absl::string_view name) {
  const auto found = attributes.find(name);
  if (found != attributes.end() && std::holds_alternative<T>(found->second)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "attribute '", name, "' must be ", AttributeKind<T>(),
      found == attributes.end() ? ", got none" : ", got another kind"));
}
template absl::Status ExpectAttribute<int64_t>(const Attributes&,
                                               absl::string_view);
template absl::Status ExpectAttribute<double>(const Attributes&,
                                              absl::string_view);
template absl::Status ExpectAttribute<std::string>(const Attributes&,
                                                   absl::string_view);
template absl::Status ExpectAttribute<std::vector<int64_t>>(const Attributes&,
                                                            absl::string_view);
template absl::Status ExpectAttribute<Shape>(const Attributes&,
                                             absl::string_view);

absl::Status ExpectRate(const Attributes& attributes, absl::string_view name) {
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, name));
  const auto rate = static_cast<float>(FloatAttribute(attributes, name));
  if (rate >= 0.0f && rate < 1.0f) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' must lie in [0, 1), got ", rate));
}

}  // namespace gshard
