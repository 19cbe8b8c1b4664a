// GSHARD_SIMD in front of a function builds it for several instruction sets;
// the loader picks the best that the CPU has, so that one binary runs
// everywhere and no -march flag is needed.
//
// Only the marked function itself is compiled this way; functions that it calls
// must be inlined into it. Sanitizer runtimes start before the loader can
// choose, so sanitized builds have only the plain version.

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
