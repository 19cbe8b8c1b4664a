// convolution and convolution_kernel_gradient with images split along spatial
// dimensions: devices exchange the borders that windows overlap, a number of
// elements that does not depend on the number of devices (GShard, arXiv
// 2006.16668, table 4 and section A.4). Batch and channels follow the rule.

#include "services/base/status_macros.h"
#include "services/graph/kernel_calls.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

// One node of either operator. Spatial dimension s is dimension s + 1 of images
// and s of kernels.
class ConvolutionNode {
 public:
  ConvolutionNode(Lowering& l, const Node& node) : l_(l), node_(node) {
    const bool forward = node.op->name == "convolution";
    const Shape& kernel =
        l.Type(forward ? node.inputs[1] : node.outputs[0]).shape;
    std::vector<int64_t> sizes;
    for (size_t s = 0; s + 2 < kernel.size(); ++s) {
      sizes.push_back(kernel[s].size());
    }
    windows_ = WindowsOf(sizes, node.attributes);
    const OpRule rule = RuleOf(l.program, node);
    std::map<int, HaloRequests> moved;
    for (size_t s = 0; s < windows_.size(); ++s) {
      moved[rule.operands[0][s + 1].front()] = [this, s](const Axes& axes) {
        return std::vector<HaloRequest>{
            {.base = l_.Type(node_.inputs[0]).shape[s + 1].size(),
             .window = windows_[s],
             .parts = l_.mesh.Parts(axes)}};
      };
    }
    cuts_ = ChooseCuts(l, node, rule, moved);
  }

  LoweredValues Forward() {
    if (cuts_.halos.empty()) return ByRule();
    ASSIGN_OR_RETURN(const ValueId x,
                     HaloOperand(l_, node_, cuts_, 0, /*mask=*/true));
    ASSIGN_OR_RETURN(ValueId kernel,
                     l_.Operand(node_, cuts_.rule, cuts_.axes, 1));
    l_.SetRole(cuts_.axes.role);
    std::vector<Window> local = windows_;
    for (size_t s = 0; s < windows_.size(); ++s) {
      const HaloPlan* const plan = PlanOf(s);
      if (plan == nullptr) continue;
      local[s] = plan->local;
      if (plan->dilation_case == DilationCase::kShiftWindow) {
        kernel = GrowKernel(kernel, s, *plan);
      }
    }
    ValueId y = l_.AddOne("convolution", {x, kernel}, WindowAttributes(local));
    for (size_t s = 0; s < windows_.size(); ++s) {
      const HaloPlan* const plan = PlanOf(s);
      if (plan == nullptr ||
          plan->dilation_case != DilationCase::kShiftResults) {
        continue;
      }
      y = DynamicSliceNode(l_, y, s + 1, FormNode(l_, AxesOf(s), plan->shift),
                           plan->result_shard);
    }
    return HaloResult(l_, node_, cuts_, y);
  }

  // Both operands are summed over the spatial dimensions, so their padding must
  // be zeros.
  LoweredValues KernelGradient() {
    if (cuts_.halos.empty()) return ByRule();
    ASSIGN_OR_RETURN(const ValueId x,
                     HaloOperand(l_, node_, cuts_, 0, /*mask=*/false));
    ASSIGN_OR_RETURN(ValueId dy, l_.Operand(node_, cuts_.rule, cuts_.axes, 1));
    l_.SetRole(cuts_.axes.role);
    std::vector<Window> local = windows_;
    std::vector<int64_t> sizes;
    for (size_t s = 0; s < windows_.size(); ++s) {
      if (const HaloPlan* const plan = PlanOf(s); plan != nullptr) {
        local[s] = plan->local;
        if (plan->dilation_case == DilationCase::kShiftResults) {
          dy = Shifted(l_.PadZeros(dy, s + 1, plan->max_shift, plan->max_shift),
                       s, s + 1, *plan, plan->local_count);
        }
      }
      sizes.push_back(local[s].size);
    }
    Attributes attributes = WindowAttributes(local);
    attributes["kernel"] = sizes;
    ValueId gradient = l_.AddOne("convolution_kernel_gradient", {x, dy},
                                 std::move(attributes));
    for (size_t s = 0; s < windows_.size(); ++s) {
      const HaloPlan* const plan = PlanOf(s);
      if (plan == nullptr ||
          plan->dilation_case != DilationCase::kShiftWindow) {
        continue;
      }
      gradient = PickKernel(gradient, s, *plan);
    }
    return HaloResult(l_, node_, cuts_, gradient);
  }

 private:
  int FactorOf(size_t s) const { return cuts_.rule.operands[0][s + 1].front(); }
  const Axes& AxesOf(size_t s) const { return cuts_.axes.of[FactorOf(s)]; }
  const HaloPlan* PlanOf(size_t s) const {
    const Halo* const halo = cuts_.Find(FactorOf(s), 0);
    return halo == nullptr ? nullptr : &halo->plan;
  }

  LoweredValues ByRule() {
    return l_.LowerByRule(node_, cuts_.rule, cuts_.axes);
  }

  // `size` elements from max_shift - shift on.
  ValueId Shifted(ValueId x, size_t s, size_t dim, const HaloPlan& plan,
                  int64_t size) {
    return DynamicSliceNode(
        l_, x, dim, FormNode(l_, AxesOf(s), plan.shift, -1, plan.max_shift),
        size);
  }

  // The window of kShiftWindow.
  ValueId GrowKernel(ValueId kernel, size_t s, const HaloPlan& plan) {
    return Shifted(l_.PadZeros(kernel, s, plan.max_shift, plan.max_shift,
                               windows_[s].window_dilation - 1),
                   s, s, plan, plan.local.size);
  }

  // The elements of the given window in a gradient of the grown one.
  ValueId PickKernel(ValueId gradient, size_t s, const HaloPlan& plan) {
    const int64_t dilation = windows_[s].window_dilation;
    const int64_t extent = Dilated(windows_[s].size, dilation);
    ValueId picked = DynamicSliceNode(
        l_, gradient, s, FormNode(l_, AxesOf(s), plan.shift), extent);
    if (dilation == 1 || !l_.b.status().ok()) return picked;
    // Folded, the elements are column 0.
    picked = l_.PadZeros(picked, s, 0, dilation - 1);
    if (!l_.b.status().ok()) return picked;
    Shape rest = l_.b.type(picked).shape;
    rest[s] = Dim(windows_[s].size);
    Shape folded = rest;
    folded.insert(folded.begin() + s + 1, Dim(dilation));
    picked = l_.AddOne("reshape", {picked}, {{"shape", folded}});
    picked = l_.Slice(picked, s + 1, 0, 1);
    return l_.AddOne("reshape", {picked}, {{"shape", rest}});
  }

  Lowering& l_;
  const Node& node_;
  std::vector<Window> windows_;  // windows of the whole
  HaloCuts cuts_;
};

}  // namespace

void RegisterConvolutionLowerings() {
  RegisterLowering("convolution",
                   [](Lowering& l, const Node& node) -> LoweredValues {
                     return ConvolutionNode(l, node).Forward();
                   });
  RegisterLowering("convolution_kernel_gradient",
                   [](Lowering& l, const Node& node) -> LoweredValues {
                     return ConvolutionNode(l, node).KernelGradient();
                   });
}

}  // namespace gshard
