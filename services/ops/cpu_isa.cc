#include "services/ops/cpu_isa.h"

#include <oneapi/dnnl/dnnl.hpp>

namespace gshard {

namespace {

dnnl_cpu_isa_t Isa() {
  static const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return isa;
}

}  // namespace

bool HasAvx2() {
#if defined(__x86_64__)
  // A set of extensions has the bits of those that it includes.
  return (Isa() & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 &&
         __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool HasAvx512() {
  return HasAvx512Vnni() || Isa() == dnnl_cpu_isa_avx512_core;
}

bool HasAvx512Vnni() {
  return HasAvx512Bf16() || Isa() == dnnl_cpu_isa_avx512_core_vnni;
}

bool HasAvx512Bf16() {
  return Isa() == dnnl_cpu_isa_avx512_core_bf16 ||
         Isa() == dnnl_cpu_isa_avx512_core_amx;
}

}  // namespace gshard
