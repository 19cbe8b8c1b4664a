// How a node calls a kernel of any back end: attributes become arguments, the
// values of operands (ids, lengths, sizes) are checked, and return values
// become results. `function` is one of services/ops, or has the same signature.

#ifndef SERVICES_GRAPH_KERNEL_CALLS_H_
#define SERVICES_GRAPH_KERNEL_CALLS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/ops/attention.h"
#include "services/ops/cross_entropy.h"
#include "services/ops/einsum.h"
#include "services/ops/padding.h"
#include "services/ops/paged_attention.h"
#include "services/ops/ragged_dot.h"
#include "services/ops/window.h"

namespace gshard {

// Attributes and operands by their meaning to a kernel.
float FactorOf(const KernelContext& c);
float EpsilonOf(const KernelContext& c);
std::vector<int> DimsOf(const KernelContext& c);   // "dims"
int64_t IndexOf(const KernelContext& c);           // operand 1, i64[]
uint64_t DropoutKeyOf(const KernelContext& c);     // the last operand
bool HasDropoutKey(const Attributes& attributes);  // for attention
std::vector<Padding> PaddingsOf(const Attributes& attributes);

// For a convolution node, for its kernel gradient's node, and for attributes
// that have been checked, with their sizes.
std::vector<Window> WindowsOf(const KernelContext& c);
std::vector<Window> WindowsOfKernelGradient(const KernelContext& c);
std::vector<Window> WindowsOf(absl::Span<const int64_t> sizes,
                              const Attributes& attributes);
// Windows as attributes, without the sizes.
Attributes WindowAttributes(absl::Span<const Window> windows);
struct WindowField {
  const char* name;  // attribute name
  int64_t Window::*member;
};
inline constexpr WindowField kWindowFields[] = {
    {"stride", &Window::stride},
    {"pad_low", &Window::pad_low},
    {"pad_high", &Window::pad_high},
    {"base_dilation", &Window::base_dilation},
    {"window_dilation", &Window::window_dilation},
};

// Operand `key_operand` is the dropout key, if there is one.
AttentionOptions AttentionOptionsOf(const KernelContext& c, int key_operand);
CrossEntropyOptions CrossEntropyOptionsOf(const KernelContext& c);

// InvalidArgument with the first one that is out of range.
absl::Status CheckKeyLengths(const Tensor& lengths, int64_t keys);
absl::Status CheckLabels(const KernelContext& c);

// Casts q, k and v to float32, as the kernels take them.
void WidenFactors(KernelContext& c);

// A kernel with one result, that of `function`, which cannot fail.
template <typename Function>
Kernel ResultOf(Function function) {
  return [function](KernelContext& c) {
    c.results[0] = function(c);
    return absl::OkStatus();
  };
}

template <typename Function>
absl::Status CallAttention(KernelContext& c, Function function) {
  RETURN_IF_ERROR(CheckKeyLengths(c.operands[3], c.operands[1].dim(1)));
  WidenFactors(c);
  AttentionResult result =
      function(c.operands[0], c.operands[1], c.operands[2], c.operands[3],
               AttentionOptionsOf(c, 4), c.results.size() > 1);
  c.results[0] = std::move(result.out);
  if (c.results.size() > 1) c.results[1] = std::move(result.statistics);
  return absl::OkStatus();
}

template <typename Function>
absl::Status CallAttentionGradient(KernelContext& c, Function function) {
  RETURN_IF_ERROR(CheckKeyLengths(c.operands[3], c.operands[1].dim(1)));
  WidenFactors(c);
  AttentionGradients gradients =
      function(c.operands[0], c.operands[1], c.operands[2], c.operands[3],
               AttentionOptionsOf(c, 6), c.operands[4], c.operands[5]);
  c.results[0] = std::move(gradients.dq);
  c.results[1] = std::move(gradients.dk);
  c.results[2] = std::move(gradients.dv);
  return absl::OkStatus();
}

template <typename Function>
absl::Status CallPagedAttention(KernelContext& c, Function function) {
  const Tensor& keys = c.operands[1];
  RETURN_IF_ERROR(
      CheckPages(c.operands[3], c.operands[4], keys.dim(0), keys.dim(1)));
  c.results[0] =
      function(c.operands[0], keys, c.operands[2], c.operands[3], c.operands[4],
               static_cast<float>(FloatAttribute(c.attributes(), "scale")));
  return absl::OkStatus();
}

template <typename Function>
absl::Status CallCrossEntropy(KernelContext& c, Function function) {
  RETURN_IF_ERROR(CheckLabels(c));
  CrossEntropyResult result =
      function(c.operands[0], c.operands[1], CrossEntropyOptionsOf(c));
  c.results[0] = std::move(result.loss_sum);
  c.results[1] = std::move(result.log_sum_exp);
  return absl::OkStatus();
}

template <typename Function>
absl::Status CallCrossEntropyGradient(KernelContext& c, Function function) {
  RETURN_IF_ERROR(CheckLabels(c));
  const CrossEntropyOptions options = CrossEntropyOptionsOf(c);
  c.results[0] =
      function(c.Take(0), c.operands[1], c.operands[2], options, c.operands[3]);
  return absl::OkStatus();
}

template <typename Function>
absl::Status CallEinsum(KernelContext& c, Function function) {
  ASSIGN_OR_RETURN(const EinsumSpec spec,
                   ParseEinsum(StringAttribute(c.attributes(), "equation")));
  c.results[0] = function(spec, c.operands[0], c.operands[1]);
  return absl::OkStatus();
}

// A kernel of `function`(a, b, group_sizes).
template <typename Function>
Kernel RaggedKernel(Function function) {
  return [function](KernelContext& c) -> absl::Status {
    RETURN_IF_ERROR(CheckGroupSizes(c.operands[2], c.operands[0].dim(0)));
    c.results[0] = function(c.operands[0], c.operands[1], c.operands[2]);
    return absl::OkStatus();
  };
}

// A kernel of `function`(dresult, group_sizes).
template <typename Function>
Kernel RaggedBiasGradientKernel(Function function) {
  return [function](KernelContext& c) -> absl::Status {
    RETURN_IF_ERROR(CheckGroupSizes(c.operands[1], c.operands[0].dim(0)));
    c.results[0] = function(c.operands[0], c.operands[1]);
    return absl::OkStatus();
  };
}

// Stores a norm's return value as results.
template <typename Result>
absl::Status SetRmsNorm(KernelContext& c, Result result) {
  c.results[0] = std::move(result.y);
  c.results[1] = std::move(result.inverse_rms);
  return absl::OkStatus();
}

template <typename Result>
absl::Status SetLayerNorm(KernelContext& c, Result result) {
  c.results[0] = std::move(result.y);
  c.results[1] = std::move(result.mean);
  c.results[2] = std::move(result.inverse_std);
  return absl::OkStatus();
}

}  // namespace gshard

#endif  // SERVICES_GRAPH_KERNEL_CALLS_H_
