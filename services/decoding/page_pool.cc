#include "services/decoding/page_pool.h"

#include "services/base/check.h"

namespace gshard {

int32_t PagePool::Take() {
  CHECK(in_use_ < max_pages_);
  ++in_use_;
  if (free_.empty()) {
    holders_.push_back(1);
    return static_cast<int32_t>(holders_.size()) - 1;
  }
  const int32_t page = free_.top();
  free_.pop();
  holders_[page] = 1;
  return page;
}

void PagePool::Share(int32_t page) {
  CHECK(holders_[page] > 0);
  ++holders_[page];
}

void PagePool::Release(int32_t page) {
  CHECK(holders_[page] > 0);
  if (--holders_[page] > 0) return;
  --in_use_;
  free_.push(page);
}

}  // namespace gshard
