#include "services/ops/cpu_isa.h"

#include <oneapi/dnnl/dnnl.hpp>

namespace gshard {

bool HasAvx512Vnni() {
  return HasAvx512Bf16() ||
         dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_vnni;
}

bool HasAvx512Bf16() {
  static const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return isa == dnnl_cpu_isa_avx512_core_bf16 ||
         isa == dnnl_cpu_isa_avx512_core_amx;
}

}  // namespace gshard
