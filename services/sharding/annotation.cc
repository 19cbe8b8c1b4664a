#include "services/sharding/annotation.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gshard {

ValueId Split(Builder& builder, ValueId value, int dim,
              absl::string_view axis) {
  const std::string annotation = absl::StrCat("split(", dim, ", ", axis, ")");
  if (value == kNoValue) return value;
  const ValueType& type = builder.type(value);
  if (dim < 0 || dim >= static_cast<int>(type.shape.size())) {
    builder.Fail(absl::InvalidArgumentError(
        absl::StrCat("cannot annotate ", type.ToString(), " with ", annotation,
                     ": there is no such dimension")));
    return value;
  }
  builder.Annotate(value, annotation);
  return value;
}

absl::StatusOr<std::optional<SplitAnnotation>> GetSplit(const Program& program,
                                                        ValueId value) {
  absl::string_view text = program.values[value].sharding;
  if (text.empty()) return std::optional<SplitAnnotation>();
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("annotation must be split(dim, axis), got '",
                     program.values[value].sharding, "'"));
  };
  if (!absl::ConsumePrefix(&text, "split(") ||
      !absl::ConsumeSuffix(&text, ")")) {
    return bad();
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(", ", 1));
  SplitAnnotation split;
  if (!absl::SimpleAtoi(parts.first, &split.dim) || parts.second.empty() ||
      split.dim < 0 ||
      split.dim >= static_cast<int>(program.type(value).shape.size())) {
    return bad();
  }
  split.axis = std::string(parts.second);
  return std::optional<SplitAnnotation>(std::move(split));
}

}  // namespace gshard
