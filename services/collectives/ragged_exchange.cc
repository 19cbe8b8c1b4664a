#include "services/collectives/ragged_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/source_blocks.h"

namespace gshard {
namespace {

std::string Name(const Tensor& tensor) {
  return tensor.empty() ? "nothing" : tensor.TypeString();
}

absl::Status CheckRows(const Tensor& rows, int64_t count) {
  if (rows.empty() || rows.rank() < 1 || rows.dim(0) != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", count, " rows, as the sizes of the groups add up to, got ",
        Name(rows)));
  }
  return absl::OkStatus();
}

absl::StatusOr<SourceBlocks> OwnBlocks(const Tensor& group_sizes) {
  if (group_sizes.empty() || group_sizes.type() != ElementType::kInt32 ||
      group_sizes.rank() != 1 || group_sizes.dim(0) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected group sizes i32[E] for E > 0, got ", Name(group_sizes)));
  }
  return SourceBlocks::Create(group_sizes.Reshaped({1, group_sizes.dim(0)}));
}

// Rows of each rank's block of experts. group_sizes are those of one member.
std::vector<int64_t> RowsOfBlocks(const Tensor& group_sizes, int members) {
  const int64_t block = ExpertBlock(group_sizes.dim(0), members);
  std::vector<int64_t> rows(members, 0);
  for (int64_t e = 0; e < group_sizes.dim(0); ++e) {
    rows[e / block] += group_sizes.i32()[e];
  }
  return rows;
}

// Sends rows[r] rows of `from`, which are in rank order, to each rank r and
// fills `to` in the same way with received[r] rows from each.
absl::Status ExchangeRows(Communicator& comm, const Tensor& from,
                          const std::vector<int64_t>& sent, Tensor* to,
                          const std::vector<int64_t>& received) {
  const size_t row = RowBytes(from);
  std::vector<SendBytes> send(comm.size());
  std::vector<ReceiveBytes> receive(comm.size());
  const std::byte* send_from = from.raw();
  std::byte* receive_to = to->raw();
  for (int r = 0; r < comm.size(); ++r) {
    send[r] = {send_from, sent[r] * row};
    receive[r] = {receive_to, received[r] * row};
    send_from += send[r].size;
    receive_to += receive[r].size;
  }
  return comm.Exchange(send, receive);
}

std::vector<int64_t> RowsFromEach(const SourceBlocks& blocks) {
  std::vector<int64_t> rows(blocks.counts().dim(0));
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = blocks.RowsFrom(r);
  return rows;
}

}  // namespace

int64_t ExpertBlock(int64_t experts, int members) {
  return (experts + members - 1) / members;
}

absl::StatusOr<RaggedRows> RaggedAllToAll(Communicator& comm,
                                          const Tensor& rows,
                                          const Tensor& group_sizes) {
  const int n = comm.size();
  ASSIGN_OR_RETURN(const SourceBlocks own, OwnBlocks(group_sizes));
  RETURN_IF_ERROR(CheckRows(rows, own.rows()));

  const int64_t experts = group_sizes.dim(0), block = ExpertBlock(experts, n);
  Tensor sent_sizes = Tensor::Zeros(ElementType::kInt32, {n, block});
  std::copy_n(group_sizes.i32(), experts, sent_sizes.i32());
  ASSIGN_OR_RETURN(Tensor counts, AllToAll(comm, sent_sizes, 0, 0));
  ASSIGN_OR_RETURN(const SourceBlocks blocks,
                   SourceBlocks::Create(std::move(counts)));

  Tensor by_rank = LikeRows(rows, blocks.rows());
  RETURN_IF_ERROR(ExchangeRows(comm, rows, RowsOfBlocks(group_sizes, n),
                               &by_rank, RowsFromEach(blocks)));
  return RaggedRows{blocks.ByExpert(by_rank), blocks.GroupSizes(),
                    blocks.counts()};
}

absl::StatusOr<Tensor> RaggedAllToAllBack(Communicator& comm,
                                          const Tensor& rows,
                                          const Tensor& counts,
                                          const Tensor& group_sizes) {
  const int n = comm.size();
  ASSIGN_OR_RETURN(const SourceBlocks own, OwnBlocks(group_sizes));
  ASSIGN_OR_RETURN(const SourceBlocks blocks, SourceBlocks::Create(counts));
  const int64_t block = ExpertBlock(group_sizes.dim(0), n);
  if (counts.dim(0) != n || counts.dim(1) != block) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected counts i32[", n, ", ", block, "] for ",
                     group_sizes.dim(0), " experts, got ", Name(counts)));
  }
  RETURN_IF_ERROR(CheckRows(rows, blocks.rows()));

  Tensor result = LikeRows(rows, own.rows());
  RETURN_IF_ERROR(ExchangeRows(comm, blocks.ByRank(rows), RowsFromEach(blocks),
                               &result, RowsOfBlocks(group_sizes, n)));
  return result;
}

absl::StatusOr<RaggedRows> RaggedAllGather(Communicator& comm,
                                           const Tensor& rows,
                                           const Tensor& group_sizes) {
  const int n = comm.size();
  ASSIGN_OR_RETURN(const SourceBlocks own, OwnBlocks(group_sizes));
  RETURN_IF_ERROR(CheckRows(rows, own.rows()));
  ASSIGN_OR_RETURN(Tensor counts, AllGather(comm, own.counts(), 0));
  ASSIGN_OR_RETURN(const SourceBlocks blocks,
                   SourceBlocks::Create(std::move(counts)));

  const std::vector<int64_t> received = RowsFromEach(blocks);
  const size_t row = RowBytes(rows);
  Tensor by_rank = LikeRows(rows, blocks.rows());
  std::vector<SendBytes> send(n, {rows.raw(), rows.bytes()});
  std::vector<ReceiveBytes> receive(n);
  for (int r = 0; r < n; ++r) {
    receive[r] = {by_rank.raw() + blocks.FirstRow(r) * row, received[r] * row};
  }
  RETURN_IF_ERROR(comm.Exchange(send, receive));
  return RaggedRows{blocks.ByExpert(by_rank), blocks.GroupSizes(),
                    blocks.counts()};
}

absl::StatusOr<Tensor> RaggedLocalRows(const Tensor& rows, const Tensor& counts,
                                       int rank) {
  ASSIGN_OR_RETURN(const SourceBlocks blocks, SourceBlocks::Create(counts));
  if (rank < 0 || rank >= counts.dim(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rank below ", counts.dim(0), ", got ", rank));
  }
  RETURN_IF_ERROR(CheckRows(rows, blocks.rows()));
  return blocks.OfRank(rows, rank);
}

}  // namespace gshard
