// Launches of the other kernels of routers, without matrix products;
// conventions as in launch.h.

#ifndef SERVICES_CUDA_KERNELS_LAUNCH_DENSE_H_
#define SERVICES_CUDA_KERNELS_LAUNCH_DENSE_H_

#include "services/cuda/kernels/arithmetic.h"
#include "services/cuda/kernels/gate_rows.h"
#include "services/cuda/kernels/int8_rows.h"
#include "services/cuda/kernels/launch.h"
#include "services/cuda/kernels/lookup.h"
#include "services/cuda/kernels/norm_rows.h"
#include "services/cuda/kernels/softmax_rows.h"
#include "services/cuda/kernels/strides.h"
#include "services/cuda/kernels/token_rows.h"
#include "services/cuda/kernels/top_tokens.h"

// The function types of these headers that LaunchElements and LaunchRows
// accept.
#define GSHARD_DENSE_ELEMENTS(F)                                               \
  F(Binary)                                                                    \
  F(CombineTokens)                                                             \
  F(CopyElements)                                                              \
  F(CopyStrided<BFloat16>)                                                     \
  F(CopyStrided<float>)                                                        \
  F(CrossEntropyGradientElements)                                              \
  F(DispatchTokens)                                                            \
  F(DropElements) F(Exponential) F(FillZeros) F(PanelColumns) F(PositionRows)  \
      F(ProbabilitySums) F(PutRows) F(ReduceStrided) F(ScaleBy) F(SumOfLosses) \
          F(TableGradient) F(TableRows)
#define GSHARD_DENSE_ROWS(F)                                               \
  F(BestOfChunks)                                                          \
  F(CombineGradientRows)                                                   \
  F(CrossEntropyRows)                                                      \
  F(GateGradient)                                                          \
  F(MergeChunks)                                                           \
  F(PagedAttentionRows) F(RmsNormGradientRows) F(RmsNormRows) F(RoundRows) \
      F(SumsOfChunks) F(TopTwo)

// Explicitly instantiates both templates for all of these types, in the .cu
// files that define them.
#define GSHARD_LAUNCH_ELEMENTS(Function) \
  template cudaError_t LaunchElements(const Function&, int64_t, cudaStream_t);
#define GSHARD_LAUNCH_ROWS(Function) \
  template cudaError_t LaunchRows(const Function&, int64_t, cudaStream_t);
#define GSHARD_INSTANTIATE_DENSE                \
  GSHARD_DENSE_ELEMENTS(GSHARD_LAUNCH_ELEMENTS) \
  GSHARD_DENSE_ROWS(GSHARD_LAUNCH_ROWS)

namespace gshard::cuda {

// RowsBlock (rows.h) for rows [0, rows).
template <typename Function>
cudaError_t LaunchRows(const Function& function, int64_t rows,
                       cudaStream_t stream);

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_LAUNCH_DENSE_H_
