// Instruction set extensions of this processor, as reported by oneDNN, so that
// DNNL_MAX_CPU_ISA limits all products alike.

#ifndef SERVICES_OPS_CPU_ISA_H_
#define SERVICES_OPS_CPU_ISA_H_

namespace gshard {

bool HasAvx2();        // and FMA; of what has AVX512, too
bool HasAvx512();      // with the extensions BW, DQ and VL
bool HasAvx512Vnni();  // int8 products
bool HasAvx512Bf16();

}  // namespace gshard

#endif  // SERVICES_OPS_CPU_ISA_H_
