// SourceBlocks: the two orders of rows from several ranks for several experts:
// by rank, as received, and by expert, as used.

#ifndef SERVICES_COLLECTIVES_SOURCE_BLOCKS_H_
#define SERVICES_COLLECTIVES_SOURCE_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The bytes of one of `rows`, and an uninitialised tensor of `count` such rows.
size_t RowBytes(const Tensor& rows);
Tensor LikeRows(const Tensor& rows, int64_t count);

class SourceBlocks {
 public:
  // `counts` is i32[n, E]: rows from each rank for each expert. Kept.
  //
  // Errors: InvalidArgument for another type or rank, negative counts, or more
  // than 2^31 - 1 rows.
  static absl::StatusOr<SourceBlocks> Create(Tensor counts);

  const Tensor& counts() const { return counts_; }
  int64_t rows() const { return first_row_.back(); }

  // Number of rows from `rank`, and of those before them by rank.
  int64_t RowsFrom(int rank) const {
    return first_row_[rank + 1] - first_row_[rank];
  }
  int64_t FirstRow(int rank) const { return first_row_[rank]; }

  // Sums over ranks: i32[E].
  Tensor GroupSizes() const;

  // Reorders rows from (rank, expert) to (expert, rank), and back. REQUIRES:
  // by_rank / by_expert has rows() rows.
  Tensor ByExpert(const Tensor& by_rank) const;
  Tensor ByRank(const Tensor& by_expert) const;

  // The part of ByRank's result for `rank`.
  Tensor OfRank(const Tensor& by_expert, int rank) const;

 private:
  explicit SourceBlocks(Tensor counts);

  // Calls block(rank, row by rank, row by expert, rows) for every block.
  template <typename Block>
  void ForEach(Block block) const;

  Tensor counts_;
  std::vector<int64_t> first_row_;  // by rank, and the end
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_SOURCE_BLOCKS_H_
