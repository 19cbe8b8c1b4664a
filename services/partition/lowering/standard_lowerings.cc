#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {

void RegisterStandardLowerings() {
  RegisterAttentionLowerings();
  RegisterConcatLowerings();
  RegisterConvolutionLowerings();
  RegisterCrossEntropyLowerings();
  RegisterDropoutLowerings();
  RegisterEinsumLowerings();
  RegisterEmbeddingLowerings();
  RegisterManualLowerings();
  RegisterMaskTailLowerings();
  RegisterNormLowerings();
  RegisterPadLowerings();
  RegisterReduceMaxLowerings();
  RegisterReshapeLowerings();
  RegisterReverseLowerings();
  RegisterSoftmaxLowerings();
  RegisterSumLowerings();
}

}  // namespace gshard
