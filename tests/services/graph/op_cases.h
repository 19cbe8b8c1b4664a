// Cases for every operator of services/graph, one function per file of ops/.

#ifndef TESTS_SERVICES_GRAPH_OP_CASES_H_
#define TESTS_SERVICES_GRAPH_OP_CASES_H_

#include <vector>

#include "tests/testing/op_case.h"

namespace gshard {

std::vector<OpCase> SourceCases();
std::vector<OpCase> ElementwiseCases();
std::vector<OpCase> ShapeCases();
std::vector<OpCase> PaddingCases();
std::vector<OpCase> ReduceMaxCases();
std::vector<OpCase> ContractionCases();
std::vector<OpCase> ConvolutionCases();
std::vector<OpCase> NormCases();
std::vector<OpCase> LookupCases();
std::vector<OpCase> AttentionCases();
std::vector<OpCase> LossCases();
std::vector<OpCase> RaggedCases();
std::vector<OpCase> BFloat16Cases();

inline std::vector<OpCase> AllGraphCases() {
  std::vector<OpCase> all;
  for (const auto& cases :
       {SourceCases(), ElementwiseCases(), ShapeCases(), PaddingCases(),
        ReduceMaxCases(), ContractionCases(), ConvolutionCases(), NormCases(),
        LookupCases(), AttentionCases(), LossCases(), RaggedCases(),
        BFloat16Cases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_GRAPH_OP_CASES_H_
