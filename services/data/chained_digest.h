// ChainedDigest: the digest of bytes that come in parts, however they are cut:
// SHA-256 of (the digest of the blocks before, this block), block by block.

#ifndef SERVICES_DATA_CHAINED_DIGEST_H_
#define SERVICES_DATA_CHAINED_DIGEST_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/checkpoint/sha256.h"

namespace gshard {

class ChainedDigest {
 public:
  void Append(absl::string_view part) {
    while (block_.size() + part.size() >= kBlockBytes) {
      const size_t taken = kBlockBytes - block_.size();
      absl::StrAppend(&block_, part.substr(0, taken));
      part.remove_prefix(taken);
      CloseBlock();
    }
    absl::StrAppend(&block_, part);
  }

  // 64 hexadecimal digits. The digest then begins anew.
  std::string Finish() {
    CloseBlock();
    std::string digest;
    digest.swap(before_);
    return digest;
  }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 20;

  void CloseBlock() {
    before_ = Sha256(absl::StrCat(before_, block_));
    block_.clear();
  }

  std::string before_;
  std::string block_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_CHAINED_DIGEST_H_
