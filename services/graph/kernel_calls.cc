#include "services/graph/kernel_calls.h"

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/graph/ops/dims.h"
#include "services/ops/cast.h"

namespace gshard {
namespace {

// Attributes that only a part of a partitioned attention has
// (services/sharding).
int64_t PartAttribute(const Attributes& attributes, absl::string_view name) {
  return attributes.contains(name) ? IntAttribute(attributes, name) : 0;
}

}  // namespace

float FactorOf(const KernelContext& c) {
  return static_cast<float>(FloatAttribute(c.attributes(), "factor"));
}

float EpsilonOf(const KernelContext& c) {
  return static_cast<float>(FloatAttribute(c.attributes(), "epsilon"));
}

std::vector<int> DimsOf(const KernelContext& c) {
  return ToInts(IntsAttribute(c.attributes(), "dims"));
}

int64_t IndexOf(const KernelContext& c) {
  return *std::as_const(c.operands[1]).data<int64_t>();
}

uint64_t DropoutKeyOf(const KernelContext& c) {
  return FoldIn(static_cast<uint64_t>(*c.operands.back().data<int64_t>()),
                IntAttribute(c.attributes(), "salt"));
}

bool HasDropoutKey(const Attributes& attributes) {
  return FloatAttribute(attributes, "dropout_rate") > 0.0;
}

std::vector<Padding> PaddingsOf(const Attributes& attributes) {
  std::vector<Padding> paddings;
  for (size_t d = 0; d < IntsAttribute(attributes, "low").size(); ++d) {
    paddings.push_back({.low = IntsAttribute(attributes, "low")[d],
                        .high = IntsAttribute(attributes, "high")[d],
                        .interior = IntsAttribute(attributes, "interior")[d]});
  }
  return paddings;
}

std::vector<Window> WindowsOf(absl::Span<const int64_t> sizes,
                              const Attributes& attributes) {
  std::vector<Window> windows(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    windows[d].size = sizes[d];
    for (const WindowField& field : kWindowFields) {
      windows[d].*field.member = IntsAttribute(attributes, field.name)[d];
    }
  }
  return windows;
}

std::vector<Window> WindowsOf(const KernelContext& c) {
  const Dims& kernel = c.operands[1].dims();
  return WindowsOf(absl::MakeConstSpan(kernel).first(kernel.size() - 2),
                   c.attributes());
}

std::vector<Window> WindowsOfKernelGradient(const KernelContext& c) {
  return WindowsOf(IntsAttribute(c.attributes(), "kernel"), c.attributes());
}

Attributes WindowAttributes(absl::Span<const Window> windows) {
  Attributes attributes;
  for (const WindowField& field : kWindowFields) {
    std::vector<int64_t> list;
    for (const Window& window : windows) list.push_back(window.*field.member);
    attributes[field.name] = std::move(list);
  }
  return attributes;
}

AttentionOptions AttentionOptionsOf(const KernelContext& context,
                                    int key_operand) {
  const Attributes& attributes = context.attributes();
  AttentionOptions options;
  options.causal = IntAttribute(attributes, "causal") != 0;
  options.scale = static_cast<float>(FloatAttribute(attributes, "scale"));
  options.dropout_rate =
      static_cast<float>(FloatAttribute(attributes, "dropout_rate"));
  options.first_sentence = PartAttribute(attributes, "first_sentence");
  options.first_head = PartAttribute(attributes, "first_head");
  options.first_query = PartAttribute(attributes, "first_query");
  options.all_queries = PartAttribute(attributes, "all_queries");
  if (HasDropoutKey(attributes)) {
    options.dropout_key = FoldIn(
        static_cast<uint64_t>(*context.operands[key_operand].data<int64_t>()),
        IntAttribute(attributes, "salt"));
  }
  return options;
}

CrossEntropyOptions CrossEntropyOptionsOf(const KernelContext& c) {
  CrossEntropyOptions options;
  options.smoothing =
      static_cast<float>(FloatAttribute(c.attributes(), "smoothing"));
  options.z_loss = static_cast<float>(FloatAttribute(c.attributes(), "z_loss"));
  return options;
}

absl::Status CheckKeyLengths(const Tensor& lengths, int64_t keys) {
  for (const int32_t length : lengths.span<int32_t>()) {
    if (length < 0 || length > keys) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key lengths must lie in [0, ", keys, "], got ", length));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(const KernelContext& c) {
  const int64_t vocabulary = c.operands[0].dim(1);
  for (const int32_t label : c.operands[1].span<int32_t>()) {
    if (label >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("labels must lie below ", vocabulary, ", got ", label));
    }
  }
  return absl::OkStatus();
}

void WidenFactors(KernelContext& c) {
  for (const int i : {0, 1, 2}) {
    c.operands[i] = Cast(c.operands[i], ElementType::kFloat32);
  }
}

}  // namespace gshard
