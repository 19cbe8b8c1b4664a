// The operators of this room, one function per file of ops/.

#ifndef SERVICES_GRAPH_OPS_STANDARD_OPS_H_
#define SERVICES_GRAPH_OPS_STANDARD_OPS_H_

#include <vector>

#include "services/graph/op.h"

namespace gshard {

std::vector<OpDef> SourceOps();
std::vector<OpDef> ElementwiseOps();
std::vector<OpDef> ShapeOps();
std::vector<OpDef> PaddingOps();
std::vector<OpDef> ReduceMaxOps();
std::vector<OpDef> ContractionOps();
std::vector<OpDef> ConvolutionOps();
std::vector<OpDef> NormOps();
std::vector<OpDef> LookupOps();
std::vector<OpDef> AttentionOps();
std::vector<OpDef> LossOps();
std::vector<OpDef> RaggedOps();

}  // namespace gshard

#endif  // SERVICES_GRAPH_OPS_STANDARD_OPS_H_
