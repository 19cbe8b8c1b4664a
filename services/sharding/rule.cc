#include "services/sharding/rule.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "absl/strings/str_split.h"
#include "services/base/check.h"
#include "services/base/mutex.h"
#include "services/graph/op.h"
#include "services/sharding/device_mesh.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

// Rules are never removed, so pointers to them stay valid.
class Registry {
 public:
  static Registry& Get() {
    static Registry* const registry = new Registry;
    return *registry;
  }

  void Add(absl::string_view op, RuleFunction rule) {
    MutexLock lock(mutex_);
    rules_.emplace(std::string(op), std::move(rule));
  }

  const RuleFunction* Find(absl::string_view op) {
    MutexLock lock(mutex_);
    const auto found = rules_.find(op);
    return found == rules_.end() ? nullptr : &found->second;
  }

 private:
  Registry() {
    for (auto& [op, rule] : StandardRules()) rules_.emplace(op, rule);
  }

  Mutex mutex_;
  std::map<std::string, RuleFunction, std::less<>> rules_
      ABSL_GUARDED_BY(mutex_);
};

std::vector<DimFactors> ParseDims(absl::string_view letters,
                                  std::map<char, int>& known, OpRule& rule) {
  std::vector<DimFactors> dims;
  bool grouped = false;
  for (const char letter : letters) {
    if (letter == '(') {
      CHECK(!grouped);
      grouped = true;
      rule.ragged = true;
      dims.emplace_back();
      continue;
    }
    if (letter == ')') {
      CHECK(grouped);
      grouped = false;
      continue;
    }
    CHECK(std::isalpha(static_cast<unsigned char>(letter)));
    const auto [found, added] = known.emplace(letter, rule.factors.size());
    if (added) {
      rule.factors.push_back(
          {.whole = std::isupper(static_cast<unsigned char>(letter)) != 0});
    }
    if (!grouped) dims.emplace_back();
    dims.back().push_back(found->second);
  }
  CHECK(!grouped);
  return dims;
}

OpRule WholeRule(const Program& program, const Node& node) {
  OpRule rule;
  const auto add = [&](ValueId value,
                       std::vector<std::vector<DimFactors>>& to) {
    std::vector<DimFactors> dims;
    for (size_t d = 0; d < program.type(value).shape.size(); ++d) {
      dims.push_back({static_cast<int>(rule.factors.size())});
      rule.factors.push_back({.whole = true});
    }
    to.push_back(std::move(dims));
  };
  for (const ValueId input : node.inputs) add(input, rule.operands);
  for (const ValueId output : node.outputs) add(output, rule.results);
  return rule;
}

}  // namespace

bool HasFactor(const std::vector<DimFactors>& dims, int factor) {
  for (const DimFactors& factors : dims) {
    if (std::find(factors.begin(), factors.end(), factor) != factors.end()) {
      return true;
    }
  }
  return false;
}

OpRule MakeRule(absl::string_view letters) {
  OpRule rule;
  std::map<char, int> known;
  const std::vector<absl::string_view> sides = absl::StrSplit(letters, "->");
  CHECK(sides.size() == 2);
  for (const absl::string_view operand : absl::StrSplit(sides[0], ',')) {
    rule.operands.push_back(ParseDims(operand, known, rule));
  }
  for (const absl::string_view result : absl::StrSplit(sides[1], ',')) {
    rule.results.push_back(ParseDims(result, known, rule));
  }
  return rule;
}

OpRule WithRaggedRows(OpRule rule, const Program& program, const Node& node,
                      const std::function<bool(const Dim&)>& is_rows) {
  const Shape& shape = program.type(node.outputs[0]).shape;
  if (!rule.elementwise || shape.empty() || !is_rows(shape[0])) return rule;
  const int rows = rule.results[0][0][0];
  const int token = static_cast<int>(rule.factors.size());
  rule.factors.emplace_back();
  rule.ragged = true;
  for (auto* values : {&rule.operands, &rule.results}) {
    for (std::vector<DimFactors>& dims : *values) {
      for (DimFactors& factors : dims) {
        if (factors[0] == rows) factors.push_back(token);
      }
    }
  }
  return rule;
}

void RegisterRule(absl::string_view op, RuleFunction rule) {
  Registry::Get().Add(op, std::move(rule));
}

OpRule RuleOf(const Program& program, const Node& node) {
  const RuleFunction* const found = Registry::Get().Find(node.op->name);
  OpRule rule =
      found == nullptr ? WholeRule(program, node) : (*found)(program, node);
  CHECK(rule.operands.size() == node.inputs.size());
  CHECK(rule.results.size() == node.outputs.size());
  return rule;
}

bool KeepsMultiples(const Program& program, const Node& node,
                    const OpRule& rule, int factor, int64_t parts) {
  const int64_t multiple = rule.factors[factor].multiple;
  if (multiple <= 1) return true;
  const auto fits = [&](ValueId value, const std::vector<DimFactors>& dims) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim& dim = program.type(value).shape[d];
      if (dims[d] == DimFactors{factor} && dim.is_static() &&
          (parts == kElastic || dim.size() % (parts * multiple) != 0)) {
        return false;
      }
    }
    return true;
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!fits(node.inputs[i], rule.operands[i])) return false;
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!fits(node.outputs[i], rule.results[i])) return false;
  }
  return true;
}

}  // namespace gshard
