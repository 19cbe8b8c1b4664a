#include "tests/reference/kernels.h"

#include <map>
#include <string>
#include <utility>

#include "services/base/check.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/op.h"
#include "services/moe/graph_ops.h"
#include "services/moe/missing_experts.h"
#include "tests/reference/attention.h"
#include "tests/reference/cast.h"
#include "tests/reference/convolution.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/einsum.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/gating.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/missing_experts.h"
#include "tests/reference/padding.h"
#include "tests/reference/paged_attention.h"
#include "tests/reference/ragged_dot.h"
#include "tests/reference/reduce_max.h"
#include "tests/reference/rms_norm.h"
#include "tests/reference/shape.h"
#include "tests/reference/softmax.h"

namespace gshard {
namespace {

// Operators that only move data or are defined by their loop. Their CPU kernels
// are plain enough to serve as the reference.
constexpr const char* kPlain[] = {
    "broadcast",
    "combine",
    "combine_gradient",
    "concat",
    "constant",
    "dispatch",
    "dispatch_gradient",
    "dropout_rows",
    "dynamic_slice",
    "embedding",
    "embedding_gradient",
    "plan_dispatch",
    "sinusoidal_positions",
    "reshape",
    "slice",
    "slice_gradient",
    "top2_gating_gradient",
    "transpose",
    "update_cache",
};

// A kernel whose only result is `function`(context).
template <typename Function>
Kernel One(Function function) {
  return [function](KernelContext& c) {
    c.results[0] = function(c);
    return absl::OkStatus();
  };
}

// A kernel that computes `function` of operand 0, or of operands 0 and 1.
Kernel Unary(Tensor (*function)(const Tensor&)) {
  return One([function](KernelContext& c) { return function(c.operands[0]); });
}
Kernel Binary(Tensor (*function)(const Tensor&, const Tensor&)) {
  return One([function](KernelContext& c) {
    return function(c.operands[0], c.operands[1]);
  });
}

std::map<std::string, Kernel> ElementwiseKernels() {
  return {
      {"add", Binary(reference::Add)},
      {"subtract", Binary(reference::Subtract)},
      {"multiply", Binary(reference::Multiply)},
      {"divide", Binary(reference::Divide)},
      {"exp", Unary(reference::Exp)},
      {"relu", Unary(reference::Relu)},
      {"relu_gradient", Binary(reference::ReluGradient)},
      {"scale", One([](KernelContext& c) {
         return reference::Scale(c.operands[0], FactorOf(c));
       })},
      {"cast", One([](KernelContext& c) {
         return reference::Cast(c.operands[0], c.result_types[0].type);
       })},
      {"dropout", One([](KernelContext& c) {
         return reference::Dropout(c.operands[0],
                                   FloatAttribute(c.attributes(), "rate"),
                                   DropoutKeyOf(c));
       })},
  };
}

std::map<std::string, Kernel> NormKernels() {
  return {
      {"softmax", Unary(reference::Softmax)},
      {"softmax_gradient", Binary(reference::SoftmaxGradient)},
      {"rms_norm",
       [](KernelContext& c) {
         return SetRmsNorm(
             c, reference::RmsNorm(c.operands[0], c.operands[1], EpsilonOf(c)));
       }},
      {"rms_norm_gradient",
       [](KernelContext& c) {
         RmsNormGradients g = reference::RmsNormGradient(
             c.operands[0], c.operands[1], c.operands[2], c.operands[3]);
         c.results[0] = std::move(g.dx);
         c.results[1] = std::move(g.dscale);
         return absl::OkStatus();
       }},
      {"layer_norm",
       [](KernelContext& c) {
         return SetLayerNorm(c,
                             reference::LayerNorm(c.operands[0], c.operands[1],
                                                  c.operands[2], EpsilonOf(c)));
       }},
      {"layer_norm_gradient",
       [](KernelContext& c) {
         LayerNormGradients g = reference::LayerNormGradient(
             c.operands[0], c.operands[1], c.operands[2], c.operands[3],
             c.operands[4]);
         c.results[0] = std::move(g.dx);
         c.results[1] = std::move(g.dscale);
         c.results[2] = std::move(g.dbias);
         return absl::OkStatus();
       }},
  };
}

std::map<std::string, Kernel> ShapeKernels() {
  return {
      {"pad", One([](KernelContext& c) {
         return reference::Pad(c.operands[0], PaddingsOf(c.attributes()),
                               FloatAttribute(c.attributes(), "value"));
       })},
      {"mask_tail", One([](KernelContext& c) {
         return reference::MaskTail(
             c.operands[0], IntAttribute(c.attributes(), "dim"), IndexOf(c),
             FloatAttribute(c.attributes(), "value"));
       })},
      {"reverse", One([](KernelContext& c) {
         return reference::Reverse(c.operands[0], DimsOf(c));
       })},
      {"reduce_sum", One([](KernelContext& c) {
         return reference::ReduceSum(c.operands[0], DimsOf(c));
       })},
      {"reduce_max", One([](KernelContext& c) {
         return reference::ReduceMax(c.operands[0], DimsOf(c));
       })},
      {"reduce_max_gradient", One([](KernelContext& c) {
         return reference::ReduceMaxGradient(c.operands[0], c.operands[1],
                                             c.operands[2], DimsOf(c));
       })},
  };
}

std::map<std::string, Kernel> ProductKernels() {
  return {
      {"einsum",
       [](KernelContext& c) { return CallEinsum(c, reference::Einsum); }},
      {"convolution", One([](KernelContext& c) {
         return reference::Convolution(c.operands[0], c.operands[1],
                                       WindowsOf(c));
       })},
      {"convolution_kernel_gradient", One([](KernelContext& c) {
         return reference::ConvolutionKernelGradient(
             c.operands[0], c.operands[1], WindowsOfKernelGradient(c));
       })},
      {"ragged_dot", RaggedKernel(reference::RaggedDot)},
      {"ragged_dot_rows_gradient",
       RaggedKernel(reference::RaggedDotRowsGradient)},
      {"ragged_dot_weights_gradient",
       RaggedKernel(reference::RaggedDotWeightsGradient)},
      {"ragged_bias_add", RaggedKernel(reference::RaggedBiasAdd)},
      {"ragged_bias_gradient",
       RaggedBiasGradientKernel(reference::RaggedBiasGradient)},
  };
}

std::map<std::string, Kernel> AttentionAndLossKernels() {
  return {
      {"attention",
       [](KernelContext& c) {
         return CallAttention(c, [](const Tensor& q, const Tensor& k,
                                    const Tensor& v, const Tensor& lengths,
                                    const AttentionOptions& options, bool) {
           return reference::Attention(q, k, v, lengths, options);
         });
       }},
      {"attention_gradient",
       [](KernelContext& c) {
         return CallAttentionGradient(c, reference::AttentionGradient);
       }},
      {"paged_attention",
       [](KernelContext& c) {
         return CallPagedAttention(c, reference::PagedAttention);
       }},
      {"cross_entropy",
       [](KernelContext& c) {
         return CallCrossEntropy(c, reference::CrossEntropy);
       }},
      {"cross_entropy_gradient",
       [](KernelContext& c) {
         return CallCrossEntropyGradient(
             c, [](const Tensor& logits, const Tensor& labels, const Tensor&,
                   const CrossEntropyOptions& options, const Tensor& dloss) {
               return reference::CrossEntropyGradient(logits, labels, options,
                                                      dloss);
             });
       }},
  };
}

std::map<std::string, Kernel> MoeKernels() {
  return {{"top2_gating", GatingKernel(reference::Top2Gating)},
          {"renormalize_choices",
           RenormalizeKernel(reference::RenormalizeForMissingExperts)}};
}

}  // namespace

void RegisterReferenceKernels() {
  RegisterMoeOps();
  for (auto kernels :
       {ElementwiseKernels(), NormKernels(), ShapeKernels(), ProductKernels(),
        AttentionAndLossKernels(), MoeKernels()}) {
    RegisterKernels(Backend::kReference, std::move(kernels));
  }
  std::map<std::string, Kernel> plain;
  for (const char* op : kPlain) {
    const Kernel* const kernel = FindKernel(op, Backend::kCpu);
    CHECK(kernel != nullptr);
    plain[op] = *kernel;
  }
  RegisterKernels(Backend::kReference, std::move(plain));
}

}  // namespace gshard
