// Lowerings of services/graph's operators for which the rule alone does not
// suffice, one function per file; each registers its own.

#ifndef SERVICES_PARTITION_LOWERING_STANDARD_LOWERINGS_H_
#define SERVICES_PARTITION_LOWERING_STANDARD_LOWERINGS_H_

namespace gshard {

void RegisterAttentionLowerings();
void RegisterConcatLowerings();
void RegisterConvolutionLowerings();
void RegisterCrossEntropyLowerings();
void RegisterDropoutLowerings();
void RegisterEinsumLowerings();
void RegisterEmbeddingLowerings();
void RegisterManualLowerings();
void RegisterMaskTailLowerings();
void RegisterNormLowerings();
void RegisterPadLowerings();
void RegisterReduceMaxLowerings();
void RegisterReshapeLowerings();
void RegisterReverseLowerings();
void RegisterSoftmaxLowerings();
void RegisterSumLowerings();

// Registers all of them; further calls have no effect.
void RegisterStandardLowerings();

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_STANDARD_LOWERINGS_H_
