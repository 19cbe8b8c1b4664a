// Kernels of attention: matrix products per head, with softmax in between.
//
//   B  sentences    N  heads    Lq, Lk  positions    D  width of a head

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/cuda/ops/products.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

// One call of attention or of its gradient.
class AttentionCall {
 public:
  AttentionCall(KernelContext& c, int key_operand)
      : c_(c),
        call_(c),
        batch_(c.operands[0].dim(0)),
        heads_(c.operands[0].dim(2)),
        width_(c.operands[0].dim(3)),
        queries_(c.operands[0].dim(1)),
        keys_(c.operands[1].dim(1)),
        key_operand_(key_operand) {}

  absl::Status Begin() {
    ASSIGN_OR_RETURN(const Tensor lengths, call_.HostOperand(3));
    RETURN_IF_ERROR(CheckKeyLengths(lengths, keys_));
    if (HasDropoutKey(c_.attributes())) {
      RETURN_IF_ERROR(call_.CheckOnHost(key_operand_));
    }
    const AttentionOptions options = AttentionOptionsOf(c_, key_operand_);
    ASSIGN_OR_RETURN(mask_.lengths, call_.Ints(3));
    mask_.heads = heads_;
    mask_.queries = queries_;
    mask_.keys = keys_;
    mask_.first_sentence = options.first_sentence;
    mask_.first_head = options.first_head;
    mask_.first_query = options.first_query;
    mask_.all_queries =
        options.all_queries > 0 ? options.all_queries : queries_;
    mask_.causal = options.causal;
    mask_.scale = options.scale;
    mask_.dropout_rate = options.dropout_rate;
    mask_.dropout_key = options.dropout_key;
    return absl::OkStatus();
  }

  absl::Status Forward() {
    RETURN_IF_ERROR(Begin());
    ASSIGN_OR_RETURN(const float* const q, Heads(0, queries_));
    ASSIGN_OR_RETURN(const float* const k, Heads(1, keys_));
    ASSIGN_OR_RETURN(const float* const v, Heads(2, keys_));
    cuda::AttentionSoftmax softmax = {mask_, nullptr, nullptr};
    const bool keeps = c_.results.size() > 1;
    ASSIGN_OR_RETURN(softmax.scores,
                     keeps
                         ? call_.NewFloats(1, {batch_, heads_, queries_, keys_})
                         : call_.Scratch<float>(rows() * keys_));
    if (drops()) {
      ASSIGN_OR_RETURN(softmax.dropped, call_.Scratch<float>(rows() * keys_));
    }
    ASSIGN_OR_RETURN(float* const out, call_.Scratch<float>(rows() * width_));
    RETURN_IF_ERROR(Multiply(call_, Sizes(queries_, width_, keys_), q, k,
                             /*transposed=*/true, softmax.scores));
    RETURN_IF_ERROR(call_.Rows(softmax, rows()));
    const float* const factors = drops() ? softmax.dropped : softmax.scores;
    RETURN_IF_ERROR(Multiply(call_, Sizes(queries_, keys_, width_), factors, v,
                             /*transposed=*/false, out));
    return SetResult(0, out, queries_);
  }

  absl::Status Backward() {
    RETURN_IF_ERROR(Begin());
    ASSIGN_OR_RETURN(const float* const q, Heads(0, queries_));
    ASSIGN_OR_RETURN(const float* const k, Heads(1, keys_));
    ASSIGN_OR_RETURN(const float* const v, Heads(2, keys_));
    ASSIGN_OR_RETURN(const float* const dout, Heads(5, queries_));
    cuda::AttentionSoftmaxGradient softmax = {mask_, nullptr, nullptr, nullptr};
    ASSIGN_OR_RETURN(softmax.probabilities, call_.Floats(4));
    ASSIGN_OR_RETURN(softmax.gradient, call_.Scratch<float>(rows() * keys_));
    if (drops()) {
      ASSIGN_OR_RETURN(softmax.dropped, call_.Scratch<float>(rows() * keys_));
    }
    RETURN_IF_ERROR(Multiply(call_, Sizes(queries_, width_, keys_), dout, v,
                             /*transposed=*/true, softmax.gradient));
    RETURN_IF_ERROR(call_.Rows(softmax, rows()));
    const int64_t of_keys = batch_ * heads_ * keys_ * width_;
    ASSIGN_OR_RETURN(float* const dq, call_.Scratch<float>(rows() * width_));
    RETURN_IF_ERROR(Multiply(call_, Sizes(queries_, keys_, width_),
                             softmax.gradient, k, /*transposed=*/false, dq));
    RETURN_IF_ERROR(SetResult(0, dq, queries_));
    const ProductSizes over_queries = Sizes(keys_, queries_, width_);
    ASSIGN_OR_RETURN(float* const dk, call_.Scratch<float>(of_keys));
    RETURN_IF_ERROR(
        MultiplyTransposed(call_, over_queries, softmax.gradient, q, dk));
    RETURN_IF_ERROR(SetResult(1, dk, keys_));
    ASSIGN_OR_RETURN(float* const dv, call_.Scratch<float>(of_keys));
    RETURN_IF_ERROR(MultiplyTransposed(
        call_, over_queries, drops() ? softmax.dropped : softmax.probabilities,
        dout, dv));
    return SetResult(2, dv, keys_);
  }

 private:
  int64_t rows() const { return batch_ * heads_ * queries_; }
  bool drops() const { return mask_.dropout_rate > 0.0f; }
  ProductSizes Sizes(int64_t m, int64_t k, int64_t n) const {
    return {.batch = batch_ * heads_, .m = m, .k = k, .n = n};
  }

  // Operand i, [B, L, N, D], as float32 [B, N, L, D]. Padded keys and values
  // are set to zero, so that they add nothing to sums whatever they contain.
  absl::StatusOr<const float*> Heads(int i, int64_t length) {
    ASSIGN_OR_RETURN(const cuda::FloatsOrRounded x, call_.FloatsOrRounded(i));
    const int64_t size = c_.operands[i].size();
    ASSIGN_OR_RETURN(float* const out, call_.Scratch<float>(size));
    const bool padded = i == 1 || i == 2;
    RETURN_IF_ERROR(
        call_.Elements(cuda::SwapHeads{x, padded ? mask_.lengths : nullptr,
                                       length, heads_, width_, out},
                       size));
    return out;
  }

  // Sets result i, [B, L, N, D], from x [B, N, L, D].
  absl::Status SetResult(int i, const float* x, int64_t length) {
    ASSIGN_OR_RETURN(float* const out,
                     call_.NewFloats(i, {batch_, length, heads_, width_}));
    return call_.Elements(
        cuda::SwapHeads{{x, nullptr}, nullptr, heads_, length, width_, out},
        c_.results[i].size());
  }

  KernelContext& c_;
  KernelCall call_;
  const int64_t batch_, heads_, width_, queries_, keys_;
  const int key_operand_;
  cuda::AttentionMask mask_ = {};
};

absl::Status PagedAttentionKernel(KernelContext& c) {
  KernelCall call(c);
  const Tensor& keys = c.operands[1];
  ASSIGN_OR_RETURN(const Tensor pages, call.HostOperand(3));
  ASSIGN_OR_RETURN(const Tensor lengths, call.HostOperand(4));
  RETURN_IF_ERROR(CheckPages(pages, lengths, keys.dim(0), keys.dim(1)));
  cuda::PagedAttentionRows attention = {};
  attention.heads = keys.dim(2);
  attention.width = keys.dim(3);
  attention.positions = keys.dim(1);
  attention.most_pages = pages.dim(1);
  attention.scale = static_cast<float>(FloatAttribute(c.attributes(), "scale"));
  if (attention.width > cuda::PagedAttentionRows::kMostWidth) {
    return absl::UnimplementedError(
        absl::StrCat("expected heads of a width up to ",
                     cuda::PagedAttentionRows::kMostWidth, " on a GPU, got ",
                     attention.width));
  }
  ASSIGN_OR_RETURN(attention.q, call.Floats(0));
  ASSIGN_OR_RETURN(attention.keys, call.Floats(1));
  ASSIGN_OR_RETURN(attention.values, call.Floats(2));
  ASSIGN_OR_RETURN(attention.pages, call.Ints(3));
  ASSIGN_OR_RETURN(attention.lengths, call.Ints(4));
  ASSIGN_OR_RETURN(attention.out, call.NewFloats(0, c.operands[0].dims()));
  return call.Rows(attention, lengths.size() * attention.heads);
}

}  // namespace

KernelSet AttentionKernels() {
  return {
      {"attention",
       [](KernelContext& c) { return AttentionCall(c, 4).Forward(); }},
      {"attention_gradient",
       [](KernelContext& c) { return AttentionCall(c, 6).Backward(); }},
      {"paged_attention", PagedAttentionKernel},
  };
}

}  // namespace gshard
