#include "services/graph/builder.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// Maximum number of results of operators with a fixed number; top2_gating has
// nine.
constexpr size_t kMostResults = 16;

}  // namespace

Builder::Builder(Program program) : program_(std::move(program)) {
  for (const auto& output : program_.outputs) {
    output_names_.insert(output.first);
  }
}

std::vector<ValueId> Builder::AddNode(absl::string_view op,
                                      std::vector<ValueId> operands,
                                      Attributes attributes) {
  const OpDef* def = FindOp(op);
  if (def == nullptr) {
    Fail(absl::NotFoundError(absl::StrCat("no operator '", op, "'")));
  }
  // Callers index the results without checking for errors.
  if (!status_.ok()) return std::vector<ValueId>(kMostResults, kNoValue);
  std::vector<ValueType> types;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] < 0 ||
        operands[i] >= static_cast<ValueId>(program_.values.size())) {
      Fail(absl::InvalidArgumentError(
          absl::StrCat(op, ": operand ", i, " is not a value of program '",
                       program_.name, "'")));
      return AddNode(op, {}, {});
    }
    types.push_back(program_.type(operands[i]));
  }
  auto results = def->infer(types, attributes);
  if (!results.ok()) {
    Fail(::gshard::Annotate(
        results.status(), absl::StrCat("program '", program_.name, "', ", op)));
    return AddNode(op, {}, {});
  }
  Node node{.op = def,
            .inputs = std::move(operands),
            .outputs = {},
            .attributes = std::move(attributes)};
  for (ValueType& type : *results) {
    node.outputs.push_back(static_cast<ValueId>(program_.values.size()));
    program_.values.push_back(
        {.type = std::move(type),
         .producer = static_cast<int32_t>(program_.nodes.size()),
         .sharding = {}});
  }
  program_.nodes.push_back(node);
  return node.outputs;
}

ValueId Builder::AddOne(absl::string_view op, std::vector<ValueId> operands,
                        Attributes attributes) {
  return AddNode(op, std::move(operands), std::move(attributes))[0];
}

ValueId Builder::Input(absl::string_view name, ValueType type) {
  for (const Node& node : program_.nodes) {
    if (node.op->name == "input" &&
        StringAttribute(node.attributes, "name") == name) {
      Fail(absl::AlreadyExistsError(
          absl::StrCat("input '", name, "' exists already")));
    }
  }
  return AddOne("input", {},
                {{"name", std::string(name)},
                 {"type", std::string(ElementTypeName(type.type))},
                 {"shape", std::move(type.shape)}});
}

ValueId Builder::Parameter(absl::string_view name, Shape shape,
                           ElementType element_type) {
  for (const Node& node : program_.nodes) {
    if (node.op->name == "parameter" &&
        StringAttribute(node.attributes, "name") == name) {
      if (type(node.outputs[0]) != ValueType{element_type, shape}) {
        Fail(absl::AlreadyExistsError(
            absl::StrCat("parameter '", name, "' exists already as ",
                         type(node.outputs[0]).ToString())));
      }
      return node.outputs[0];
    }
  }
  Attributes attributes = {{"name", std::string(name)},
                           {"shape", std::move(shape)}};
  if (element_type != ElementType::kFloat32) {
    attributes["type"] = std::string(ElementTypeName(element_type));
  }
  return AddOne("parameter", {}, std::move(attributes));
}

ValueId Builder::Constant(double value, Shape shape) {
  return AddOne("constant", {},
                {{"value", value}, {"shape", std::move(shape)}});
}

ValueId Builder::Cast(ValueId x, ElementType element_type) {
  if (!status_.ok() || type(x).type == element_type) return x;
  const Node& producer = program_.producer(x);
  if (producer.op->name == "cast" &&
      type(producer.inputs[0]).type == element_type &&
      type(x).type == ElementType::kFloat32) {
    return producer.inputs[0];
  }
  return AddOne("cast", {x},
                {{"type", std::string(ElementTypeName(element_type))}});
}

ValueId Builder::Scale(ValueId x, double factor) {
  return AddOne("scale", {x}, {{"factor", factor}});
}

ValueId Builder::Dropout(ValueId x, ValueId key, double rate, int64_t salt) {
  if (rate == 0.0) return x;
  return AddOne("dropout", {x, key}, {{"rate", rate}, {"salt", salt}});
}

ValueId Builder::Reshape(ValueId x, Shape shape) {
  return AddOne("reshape", {x}, {{"shape", std::move(shape)}});
}

ValueId Builder::Transpose(ValueId x, std::vector<int64_t> permutation) {
  return AddOne("transpose", {x}, {{"permutation", std::move(permutation)}});
}

ValueId Builder::ReduceSum(ValueId x, std::vector<int64_t> dims) {
  return AddOne("reduce_sum", {x}, {{"dims", std::move(dims)}});
}

ValueId Builder::ReduceMax(ValueId x, std::vector<int64_t> dims) {
  return AddOne("reduce_max", {x}, {{"dims", std::move(dims)}});
}

ValueId Builder::Reverse(ValueId x, std::vector<int64_t> dims) {
  return AddOne("reverse", {x}, {{"dims", std::move(dims)}});
}

ValueId Builder::Pad(ValueId x, std::vector<int64_t> low,
                     std::vector<int64_t> high, double value) {
  std::vector<int64_t> interior(low.size(), 0);
  return AddOne("pad", {x},
                {{"low", std::move(low)},
                 {"high", std::move(high)},
                 {"interior", std::move(interior)},
                 {"value", value}});
}

ValueId Builder::Slice(ValueId x, int64_t dim, int64_t begin, int64_t end) {
  return AddOne("slice", {x}, {{"dim", dim}, {"begin", begin}, {"end", end}});
}

ValueId Builder::Einsum(absl::string_view equation, ValueId a, ValueId b) {
  return AddOne("einsum", {a, b}, {{"equation", std::string(equation)}});
}

ValueId Builder::RmsNorm(ValueId x, ValueId scale, double epsilon) {
  return AddNode("rms_norm", {x, scale}, {{"epsilon", epsilon}})[0];
}

ValueId Builder::Embedding(ValueId table, ValueId ids) {
  return AddOne("embedding", {table, ids});
}

ValueId Builder::SinusoidalPositions(ValueId positions, int64_t width) {
  return AddOne("sinusoidal_positions", {positions}, {{"width", width}});
}

ValueId Builder::Attention(ValueId q, ValueId k, ValueId v, ValueId key_lengths,
                           ValueId key, const AttentionAttributes& attributes) {
  std::vector<ValueId> operands = {q, k, v, key_lengths};
  if (attributes.dropout_rate > 0.0) operands.push_back(key);
  return AddNode("attention", std::move(operands),
                 {{"causal", int64_t{attributes.causal}},
                  {"scale", attributes.scale},
                  {"dropout_rate", attributes.dropout_rate},
                  {"salt", attributes.salt},
                  {"keep_statistics", int64_t{attributes.keep_statistics}}})[0];
}

ValueId Builder::CrossEntropy(ValueId logits, ValueId labels, double smoothing,
                              double z_loss) {
  return AddNode("cross_entropy", {logits, labels},
                 {{"smoothing", smoothing}, {"z_loss", z_loss}})[0];
}

void Builder::Output(absl::string_view name, ValueId value) {
  if (value == kNoValue) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("output '", name, "' is not a value")));
  }
  if (!status_.ok()) return;
  if (!output_names_.emplace(name).second) {
    return Fail(absl::AlreadyExistsError(
        absl::StrCat("output '", name, "' exists already")));
  }
  program_.outputs.emplace_back(name, value);
}

void Builder::Annotate(ValueId value, absl::string_view sharding) {
  if (value != kNoValue) {
    program_.values[value].sharding = std::string(sharding);
  }
}

Dim Builder::FreshSymbol(absl::string_view prefix) {
  for (;;) {
    const std::string name = absl::StrCat(prefix, next_symbol_++);
    bool used = false;
    for (const Value& value : program_.values) {
      for (const Dim& dim : value.type.shape) {
        for (const std::string& symbol : dim.symbols()) used |= symbol == name;
      }
    }
    if (!used) return Dim::Symbol(name);
  }
}

const ValueType& Builder::type(ValueId value) const {
  static const ValueType* const none = new ValueType;
  return value == kNoValue ? *none : program_.type(value);
}

void Builder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

absl::StatusOr<Program> Builder::Finish() && {
  if (!status_.ok()) return status_;
  return std::move(program_);
}

}  // namespace gshard
