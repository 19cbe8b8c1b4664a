// PagePool: reference counts of the pages of a cache.
//
// Hypotheses with a common prefix share its pages.

#ifndef SERVICES_DECODING_PAGE_POOL_H_
#define SERVICES_DECODING_PAGE_POOL_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace gshard {

class PagePool {
 public:
  explicit PagePool(int64_t max_pages) : max_pages_(max_pages) {}

  // Takes the lowest free page, with one holder, so all pages ever used lie
  // below the peak number of pages in use. REQUIRES: in_use() < max_pages().
  int32_t Take();

  // Adds or removes a holder; a page without any is free. REQUIRES: the page is
  // in use.
  void Share(int32_t page);
  void Release(int32_t page);

  bool shared(int32_t page) const { return holders_[page] > 1; }
  int64_t in_use() const { return in_use_; }
  int64_t max_pages() const { return max_pages_; }

 private:
  const int64_t max_pages_;
  int64_t in_use_ = 0;
  std::vector<int32_t> holders_;  // one per page ever used
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_PAGE_POOL_H_
