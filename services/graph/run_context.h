// RunContext: objects that a run provides to kernels of higher rooms, looked up
// by type: the runner of remote segments, the other devices of a partitioned
// program.

#ifndef SERVICES_GRAPH_RUN_CONTEXT_H_
#define SERVICES_GRAPH_RUN_CONTEXT_H_

#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace gshard {

class RunContext {
 public:
  // Adds an extension under the type by which it is looked up, which must be
  // spelled out: With<Base>(&derived). Null adds nothing. Not owned.
  template <typename T>
  RunContext With(std::type_identity_t<T>* extension) && {
    if (extension != nullptr) extensions_.emplace_back(Key<T>(), extension);
    return std::move(*this);
  }

  // Null if there is none of the type.
  template <typename T>
  T* Get() const {
    for (const auto& [key, extension] : extensions_) {
      if (key == Key<T>()) return static_cast<T*>(extension);
    }
    return nullptr;
  }

 private:
  template <typename T>
  static const void* Key() {
    static constexpr char kKey = 0;
    return &kKey;
  }

  absl::InlinedVector<std::pair<const void*, void*>, 2> extensions_;
};

}  // namespace gshard

#endif  // SERVICES_GRAPH_RUN_CONTEXT_H_
