// The reference back end: for every operator of graph and moe a kernel in plain
// loops, which says what the operator is.

#ifndef TESTS_REFERENCE_KERNELS_H_
#define TESTS_REFERENCE_KERNELS_H_

namespace gshard {

// For Backend::kReference. Calling again does nothing.
void RegisterReferenceKernels();

}  // namespace gshard

#endif  // TESTS_REFERENCE_KERNELS_H_
