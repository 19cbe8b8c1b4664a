// GSHARD_SIMD in front of a function builds it for several instruction sets;
// the loader picks the best that the CPU has, so that one binary runs
// everywhere and no -march flag is needed.
//
// Only the marked function itself is built so: what it calls must be inlined
// into it. Sanitizers run before the loader's choice is possible, so sanitized
// builds have the plain version only.

#ifndef SERVICES_OPS_SIMD_H_
#define SERVICES_OPS_SIMD_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(GSHARD_SANITIZED)
#define GSHARD_SIMD \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GSHARD_SIMD
#endif

#endif  // SERVICES_OPS_SIMD_H_
