#include "services/ops/cpu_isa.h"

#include <oneapi/dnnl/dnnl.hpp>

namespace gshard {

namespace {

// A set of extensions has the bits of those that it includes, so that one that
// a later oneDNN adds is known by what it includes.
bool Has(dnnl_cpu_isa_t extensions) {
  static const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return (isa & extensions) == extensions;
}

}  // namespace

bool HasAvx2() {
#if defined(__x86_64__)
  return Has(dnnl_cpu_isa_avx2) && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool HasAvx512() { return Has(dnnl_cpu_isa_avx512_core); }

bool HasAvx512Vnni() { return Has(dnnl_cpu_isa_avx512_core_vnni); }

bool HasAvx512Bf16() { return Has(dnnl_cpu_isa_avx512_core_bf16); }

}  // namespace gshard
