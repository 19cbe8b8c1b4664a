// The reference back end: a kernel in plain loops for every operator of graph
// and moe, which defines the operator.

#ifndef TESTS_REFERENCE_KERNELS_H_
#define TESTS_REFERENCE_KERNELS_H_

namespace gshard {

// Registers kernels for Backend::kReference. Calling again does nothing.
void RegisterReferenceKernels();

}  // namespace gshard

#endif  // TESTS_REFERENCE_KERNELS_H_
