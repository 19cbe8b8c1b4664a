#include "services/sharding/annotation.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// The text of an annotation is a list of terms, joined by "; ":
//   split(<dim>, <axis or parts>)   replicate   shard(<dims>; see below)
constexpr absl::string_view kReplicate = "replicate";

struct Term {
  int dim = 0;
  std::string axis;  // axis name, or the number of parts
};

struct Parsed {
  bool replicate = false;
  std::vector<Term> splits;
  std::optional<DeviceAssignment> assignment;
};

absl::StatusOr<std::vector<int64_t>> ParseInts(absl::string_view text) {
  std::vector<int64_t> values;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    int64_t value;
    if (!absl::SimpleAtoi(word, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected numbers, got '", word, "'"));
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<Parsed> Parse(absl::string_view text) {
  Parsed parsed;
  for (absl::string_view term : absl::StrSplit(text, "; ")) {
    const absl::string_view whole = term;
    if (term == kReplicate) {
      parsed.replicate = true;
    } else if (absl::ConsumePrefix(&term, "split(") &&
               absl::ConsumeSuffix(&term, ")")) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(term, absl::MaxSplits(", ", 1));
      Term split;
      if (!absl::SimpleAtoi(parts.first, &split.dim) || parts.second.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected split(dim, axis), got '", whole, "'"));
      }
      split.axis = std::string(parts.second);
      parsed.splits.push_back(std::move(split));
    } else if (absl::ConsumePrefix(&term, "shard(") &&
               absl::ConsumeSuffix(&term, ")")) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(term, absl::MaxSplits(", ", 1));
      DeviceAssignment assignment;
      ASSIGN_OR_RETURN(assignment.dims, ParseInts(parts.first));
      ASSIGN_OR_RETURN(assignment.devices, ParseInts(parts.second));
      parsed.assignment = std::move(assignment);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("expected split(dim, axis), replicate or "
                       "shard(dims, devices), got '",
                       whole, "'"));
    }
  }
  return parsed;
}

// Adds one term to the value's annotation.
ValueId AddTerm(Builder& builder, ValueId value, const std::string& term) {
  if (value == kNoValue) return value;
  const Value& annotated = builder.program().values[value];
  const auto fail = [&](absl::string_view why) {
    builder.Fail(absl::InvalidArgumentError(
        absl::StrCat("cannot annotate ", annotated.type.ToString(), " with ",
                     term, ": ", why)));
    return value;
  };
  const absl::StatusOr<Parsed> parsed = Parse(term);
  if (!parsed.ok()) return fail(parsed.status().message());
  Parsed before;
  if (!annotated.sharding.empty()) {
    absl::StatusOr<Parsed> old = Parse(annotated.sharding);
    if (!old.ok()) return fail(old.status().message());
    before = *std::move(old);
  }
  for (const Term& split : parsed->splits) {
    if (split.dim < 0 ||
        split.dim >= static_cast<int>(annotated.type.shape.size())) {
      return fail("there is no such dimension");
    }
    for (const Term& other : before.splits) {
      if (other.axis == split.axis) {
        return fail(other.dim == split.dim
                        ? "it is already"
                        : absl::StrCat("dimension ", other.dim,
                                       " is split along it already"));
      }
    }
  }
  if (annotated.sharding == term && parsed->replicate) return value;
  if (!annotated.sharding.empty() &&
      (before.replicate || before.assignment.has_value() ||
       parsed->splits.empty())) {
    return fail(absl::StrCat("it is annotated ", annotated.sharding));
  }
  if (parsed->assignment.has_value() &&
      parsed->assignment->dims.size() != annotated.type.shape.size()) {
    return fail("the assignment must have the tensor's rank");
  }
  builder.Annotate(value, annotated.sharding.empty()
                              ? term
                              : absl::StrCat(annotated.sharding, "; ", term));
  return value;
}

// Assigns axes to the parts of each dimension of an assignment: those of the
// first role, in order, each once.
absl::StatusOr<Annotation> ReadAssignment(const DeviceAssignment& assignment,
                                          const DeviceMesh& mesh) {
  Annotation annotation{
      .sharding = Sharding::Replicated(assignment.dims.size()),
      .device_order = {}};
  const Axes axes = mesh.AxesOfRole(0);
  if (mesh.IsElastic(axes)) {
    return absl::InvalidArgumentError("the mesh is elastic");
  }
  size_t next = 0;
  for (size_t d = 0; d < assignment.dims.size(); ++d) {
    int64_t left = assignment.dims[d];
    while (left > 1 && next < axes.size() &&
           left % mesh.axis(axes[next]).size == 0) {
      left /= mesh.axis(axes[next]).size;
      annotation.sharding.dims[d].axes.push_back(axes[next++]);
    }
    if (left != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the parts of dimension ", d, " must be axes of the mesh, in order"));
    }
  }
  const int64_t devices = mesh.NumDevices();
  std::vector<int64_t> sorted = assignment.devices;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(devices);
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the assignment must name each of ", devices, " devices once"));
  }
  if (assignment.devices != all) annotation.device_order = assignment.devices;
  return annotation;
}

absl::StatusOr<Annotation> Read(const Parsed& parsed, const ValueType& type,
                                const DeviceMesh& mesh) {
  if (parsed.assignment.has_value()) {
    if (parsed.assignment->dims.size() != type.shape.size()) {
      return absl::InvalidArgumentError(
          "the assignment must have the tensor's rank");
    }
    return ReadAssignment(*parsed.assignment, mesh);
  }
  Annotation annotation{.sharding = Sharding::Replicated(type.shape.size()),
                        .device_order = {}};
  for (const Term& split : parsed.splits) {
    if (split.dim < 0 || split.dim >= static_cast<int>(type.shape.size())) {
      return absl::InvalidArgumentError("there is no such dimension");
    }
    int axis = -1;
    int64_t parts;
    if (absl::SimpleAtoi(split.axis, &parts)) {
      for (int a = mesh.num_axes(); a-- > 0;) {
        if (mesh.axis(a).size == parts && !annotation.sharding.Uses(a)) {
          axis = a;
        }
      }
      if (axis < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the mesh has no free axis of size ", parts));
      }
    } else {
      ASSIGN_OR_RETURN(axis, mesh.Find(split.axis));
    }
    annotation.sharding.dims[split.dim].axes.push_back(axis);
  }
  return annotation;
}

}  // namespace

ValueId Split(Builder& builder, ValueId value, int dim,
              absl::string_view axis) {
  return AddTerm(builder, value, absl::StrCat("split(", dim, ", ", axis, ")"));
}

ValueId Split(Builder& builder, ValueId value, int dim, int64_t parts) {
  return AddTerm(builder, value, absl::StrCat("split(", dim, ", ", parts, ")"));
}

ValueId Replicate(Builder& builder, ValueId value) {
  return AddTerm(builder, value, std::string(kReplicate));
}

ValueId Shard(Builder& builder, ValueId value,
              const DeviceAssignment& assignment) {
  return AddTerm(
      builder, value,
      absl::StrCat("shard(", absl::StrJoin(assignment.dims, " "), ", ",
                   absl::StrJoin(assignment.devices, " "), ")"));
}

absl::StatusOr<std::optional<Annotation>> GetAnnotation(
    const Program& program, ValueId value, const DeviceMesh& mesh) {
  const std::string& text = program.values[value].sharding;
  if (text.empty()) return std::optional<Annotation>();
  const auto annotate = [&](const absl::Status& status) {
    return ::gshard::Annotate(
        status,
        absl::StrCat(program.type(value).ToString(), " annotated ", text));
  };
  const absl::StatusOr<Parsed> parsed = Parse(text);
  if (!parsed.ok()) return annotate(parsed.status());
  absl::StatusOr<Annotation> read = Read(*parsed, program.type(value), mesh);
  if (!read.ok()) return annotate(read.status());
  return std::optional<Annotation>(*std::move(read));
}

}  // namespace gshard
