// What this processor computes with. oneDNN is asked, so that DNNL_MAX_CPU_ISA
// holds for all products.

#ifndef SERVICES_OPS_CPU_ISA_H_
#define SERVICES_OPS_CPU_ISA_H_

namespace gshard {

bool HasAvx512();      // with its extensions BW, DQ and VL
bool HasAvx512Vnni();  // products of int8
bool HasAvx512Bf16();

}  // namespace gshard

#endif  // SERVICES_OPS_CPU_ISA_H_
