// Fisher-Yates shuffle with the random numbers of a key.

#ifndef SERVICES_DATA_SHUFFLE_H_
#define SERVICES_DATA_SHUFFLE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "services/base/random.h"

namespace gshard {

template <typename T>
void Shuffle(uint64_t key, std::vector<T>* items) {
  for (size_t i = items->size(); i > 1; --i) {
    std::swap((*items)[i - 1], (*items)[RandomBelow(key, i, i)]);
  }
}

}  // namespace gshard

#endif  // SERVICES_DATA_SHUFFLE_H_
