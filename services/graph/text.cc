#include "services/graph/text.h"

#include <cctype>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"

namespace gshard {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxRank = 16;

std::string Quote(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string AttributeToText(const Attribute& attribute) {
  struct Printer {
    std::string operator()(int64_t value) const { return absl::StrCat(value); }
    std::string operator()(double value) const {
      std::string text = absl::StrFormat("%.17g", value);
      if (text.find_first_of(".en") == std::string::npos) text += ".0";
      return text;
    }
    std::string operator()(const std::string& value) const {
      return Quote(value);
    }
    std::string operator()(const std::vector<int64_t>& value) const {
      return absl::StrCat("<", absl::StrJoin(value, ", "), ">");
    }
    std::string operator()(const Shape& value) const {
      return ShapeToString(value);
    }
  };
  return std::visit(Printer(), attribute);
}

std::string ValueName(ValueId value) { return absl::StrCat("%", value); }

void AppendValueName(std::string* out, ValueId value) {
  absl::StrAppend(out, ValueName(value));
}

// Scans one line from left to right.
class Scanner {
 public:
  explicit Scanner(absl::string_view line) : rest_(line) { SkipSpaces(); }

  bool AtEnd() const { return rest_.empty(); }

  bool TryConsume(absl::string_view token) {
    if (!absl::ConsumePrefix(&rest_, token)) return false;
    SkipSpaces();
    return true;
  }

  absl::Status Consume(absl::string_view token) {
    if (TryConsume(token)) return absl::OkStatus();
    return Expected(absl::StrCat("'", token, "'"));
  }

  absl::StatusOr<absl::string_view> Name() {
    return While("a name",
                 [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
  }

  absl::StatusOr<ValueId> Value() {
    RETURN_IF_ERROR(Consume("%"));
    ASSIGN_OR_RETURN(const absl::string_view digits,
                     While("a value", absl::ascii_isdigit));
    ValueId value;
    if (!absl::SimpleAtoi(digits, &value)) return Expected("a value");
    return value;
  }

  absl::StatusOr<std::string> String() {
    if (!absl::ConsumePrefix(&rest_, "\"")) return Expected("a string");
    std::string text;
    while (!rest_.empty() && rest_[0] != '"') {
      const bool escaped = rest_[0] == '\\' && rest_.size() > 1;
      if (escaped) rest_.remove_prefix(1);
      text += escaped && rest_[0] == 'n' ? '\n' : rest_[0];
      rest_.remove_prefix(1);
    }
    RETURN_IF_ERROR(Consume("\""));
    return text;
  }

  absl::StatusOr<Shape> ParseShape() {
    RETURN_IF_ERROR(Consume("["));
    Shape shape;
    while (!TryConsume("]")) {
      if (!shape.empty()) RETURN_IF_ERROR(Consume(","));
      ASSIGN_OR_RETURN(const absl::string_view text,
                       While("a dimension", [](char c) {
                         return absl::ascii_isalnum(c) || c == '_' || c == '*';
                       }));
      ASSIGN_OR_RETURN(const Dim dim, Dim::Parse(text));
      shape.push_back(dim);
      if (shape.size() > kMaxRank) {
        return Expected(absl::StrCat("at most ", kMaxRank, " dimensions"));
      }
    }
    return shape;
  }

  absl::StatusOr<Attribute> ParseAttribute() {
    if (AtEnd()) return Expected("an attribute value");
    if (rest_[0] == '"') return String();
    if (rest_[0] == '[') return ParseShape();
    if (TryConsume("<")) {
      std::vector<int64_t> list;
      while (!TryConsume(">")) {
        if (!list.empty()) RETURN_IF_ERROR(Consume(","));
        ASSIGN_OR_RETURN(const absl::string_view number, Number());
        int64_t value;
        if (!absl::SimpleAtoi(number, &value)) return Expected("an integer");
        list.push_back(value);
      }
      return list;
    }
    ASSIGN_OR_RETURN(const absl::string_view number, Number());
    int64_t integer;
    if (absl::SimpleAtoi(number, &integer)) return integer;
    double value;
    if (absl::SimpleAtod(number, &value)) return value;
    return Expected("a number");
  }

  absl::Status Expected(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", what, " at '", rest_.substr(0, 40), "'"));
  }

 private:
  absl::StatusOr<absl::string_view> Number() {
    return While("a number", [](char c) {
      return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
    });
  }

  template <typename Predicate>
  absl::StatusOr<absl::string_view> While(absl::string_view what,
                                          Predicate accept) {
    size_t length = 0;
    while (length < rest_.size() && accept(rest_[length])) ++length;
    if (length == 0) return Expected(what);
    const absl::string_view token = rest_.substr(0, length);
    rest_.remove_prefix(length);
    SkipSpaces();
    return token;
  }

  void SkipSpaces() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  absl::string_view rest_;
};

// Names of inputs and of parameters, which must be unique.
struct Names {
  absl::flat_hash_set<std::string> inputs, parameters;
};

absl::Status ParseNode(Scanner& scan, Builder& builder, Names& names) {
  std::vector<ValueId> written;
  do {
    ASSIGN_OR_RETURN(const ValueId value, scan.Value());
    written.push_back(value);
  } while (scan.TryConsume(","));
  RETURN_IF_ERROR(scan.Consume("="));
  ASSIGN_OR_RETURN(const absl::string_view op, scan.Name());

  std::vector<ValueId> operands;
  RETURN_IF_ERROR(scan.Consume("("));
  while (!scan.TryConsume(")")) {
    if (!operands.empty()) RETURN_IF_ERROR(scan.Consume(","));
    ASSIGN_OR_RETURN(const ValueId value, scan.Value());
    operands.push_back(value);
  }
  Attributes attributes;
  if (scan.TryConsume("{")) {
    while (!scan.TryConsume("}")) {
      if (!attributes.empty()) RETURN_IF_ERROR(scan.Consume(","));
      ASSIGN_OR_RETURN(const absl::string_view name, scan.Name());
      RETURN_IF_ERROR(scan.Consume("="));
      ASSIGN_OR_RETURN(Attribute attribute, scan.ParseAttribute());
      if (!attributes.emplace(name, std::move(attribute)).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected one value for '", name, "', got a second"));
      }
    }
  }
  const std::vector<ValueId> results =
      builder.AddNode(op, std::move(operands), std::move(attributes));
  RETURN_IF_ERROR(builder.status());
  if (results != written) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected results ", absl::StrJoin(results, ", ", AppendValueName),
        ", got ", absl::StrJoin(written, ", ", AppendValueName)));
  }
  const Node& node = builder.program().nodes.back();
  if (node.op->kernel == nullptr) {
    const std::string& name = StringAttribute(node.attributes, "name");
    if (!(op == "input" ? names.inputs : names.parameters)
             .insert(name)
             .second) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected one ", op, " '", name, "', got a second"));
    }
  }
  RETURN_IF_ERROR(scan.Consume(":"));
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(scan.Consume(","));
    ASSIGN_OR_RETURN(const absl::string_view type_name, scan.Name());
    ValueType type;
    ASSIGN_OR_RETURN(type.type, ParseElementType(type_name));
    ASSIGN_OR_RETURN(type.shape, scan.ParseShape());
    if (type != builder.type(results[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ", builder.type(results[i]).ToString(),
                       ", got ", type.ToString()));
    }
    if (scan.TryConsume("@")) {
      ASSIGN_OR_RETURN(const std::string sharding, scan.String());
      builder.Annotate(results[i], sharding);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ProgramToText(const Program& program) {
  std::string text = absl::StrCat("program ", Quote(program.name), " {\n");
  for (const Node& node : program.nodes) {
    absl::StrAppend(&text, "  ",
                    absl::StrJoin(node.outputs, ", ", AppendValueName), " = ",
                    node.op->name, "(",
                    absl::StrJoin(node.inputs, ", ", AppendValueName), ")");
    if (!node.attributes.empty()) {
      absl::StrAppend(
          &text, " {",
          absl::StrJoin(node.attributes, ", ",
                        [](std::string* out, const auto& attribute) {
                          absl::StrAppend(out, attribute.first, "=",
                                          AttributeToText(attribute.second));
                        }),
          "}");
    }
    absl::string_view separator = " : ";
    for (const ValueId output : node.outputs) {
      const Value& value = program.values[output];
      absl::StrAppend(&text, separator, value.type.ToString());
      if (!value.sharding.empty()) {
        absl::StrAppend(&text, " @", Quote(value.sharding));
      }
      separator = ", ";
    }
    text += "\n";
  }
  for (const auto& [name, value] : program.outputs) {
    absl::StrAppend(&text, "  output ", Quote(name), " = ", ValueName(value),
                    "\n");
  }
  return text + "}\n";
}

absl::StatusOr<Program> ParseProgram(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("program text must be at most ", kMaxTextBytes,
                     " bytes, got ", text.size()));
  }
  int line_number = 0;
  const auto at_line = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("line ", line_number));
  };
  const auto next_line = [&]() -> absl::string_view {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      absl::string_view line = absl::StripAsciiWhitespace(text.substr(0, end));
      text.remove_prefix(end == absl::string_view::npos ? text.size()
                                                        : end + 1);
      ++line_number;
      if (!line.empty()) return line;
    }
    return {};
  };

  Scanner header(next_line());
  if (!header.TryConsume("program")) {
    return at_line(header.Expected("'program'"));
  }
  auto name = header.String();
  if (!name.ok()) return at_line(name.status());
  if (absl::Status s = header.Consume("{"); !s.ok()) return at_line(s);
  if (!header.AtEnd()) return at_line(header.Expected("the end of line"));

  Builder builder(*std::move(name));
  Names names;
  for (absl::string_view line = next_line(); line != "}"; line = next_line()) {
    Scanner scan(line);
    if (scan.AtEnd()) return at_line(scan.Expected("'}'"));
    const auto parse = [&]() -> absl::Status {
      if (scan.TryConsume("output")) {
        ASSIGN_OR_RETURN(const std::string output, scan.String());
        RETURN_IF_ERROR(scan.Consume("="));
        ASSIGN_OR_RETURN(const ValueId value, scan.Value());
        if (value >= static_cast<ValueId>(builder.program().values.size())) {
          return absl::InvalidArgumentError(
              absl::StrCat("output '", output, "' names no value"));
        }
        builder.Output(output, value);
        RETURN_IF_ERROR(builder.status());
      } else {
        RETURN_IF_ERROR(ParseNode(scan, builder, names));
      }
      return scan.AtEnd() ? absl::OkStatus() : scan.Expected("the end of line");
    };
    if (absl::Status status = parse(); !status.ok()) return at_line(status);
  }
  if (!next_line().empty()) {
    return at_line(absl::InvalidArgumentError("expected nothing after '}'"));
  }
  return std::move(builder).Finish();
}

}  // namespace gshard
