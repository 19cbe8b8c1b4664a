#include "tests/services/collectives/collectives_cases.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/ragged_exchange.h"
#include "tests/services/collectives/reference_collectives.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using reference::Tensors;

absl::Status Expect(const std::string& what, const Tensor& got,
                    const Tensor& expected) {
  const auto equal = TensorEqual(got, expected);
  if (equal) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ": ", equal.message()));
}

// Arguments of n members. Floats differ widely in size, so that their sum's
// bits depend on its order.
Tensors Arguments(int n, ElementType type, const Dims& dims) {
  Tensors tensors;
  for (int rank = 0; rank < n; ++rank) {
    Tensor tensor(type, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const float x = RandomNormal(rank, i);
      const int32_t whole = static_cast<int32_t>(RandomBits(rank, i) >> 36);
      switch (type) {
        case ElementType::kFloat32:
          tensor.f32()[i] = x * x * x * x * x;
          break;
        case ElementType::kFloat64:
          tensor.data<double>()[i] = double{x} * x * x * x * x;
          break;
        case ElementType::kInt32:
          tensor.i32()[i] = rank % 2 == 0 ? whole : -whole;
          break;
        case ElementType::kInt64:
          tensor.data<int64_t>()[i] = whole * int64_t{1000003} - rank;
          break;
        case ElementType::kBFloat16:
          tensor.data<BFloat16>()[i] = ToBFloat16(x);
          break;
        case ElementType::kUint8:
          tensor.data<uint8_t>()[i] = whole & 255;
          break;
        case ElementType::kInt8:  // is never row-major
          break;
      }
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

constexpr ElementType kNumbers[] = {ElementType::kFloat32,
                                    ElementType::kFloat64, ElementType::kInt32,
                                    ElementType::kInt64};

absl::Status AllReduceCase(Communicator& comm) {
  // Empty, scalar, odd, and above the size that is sent at once; the last ones
  // are sent in chunks of different sizes.
  for (const Dims& dims : {Dims{0}, Dims{}, Dims{5, 0, 2}, Dims{1}, Dims{7, 3},
                           Dims{1024}, Dims{1025}, Dims{7, 11, 131}}) {
    for (const ElementType type : kNumbers) {
      const Tensors arguments = Arguments(comm.size(), type, dims);
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
        const Tensor& own = arguments[comm.rank()];
        const Tensor before = own.Clone();
        ASSIGN_OR_RETURN(const Tensor got, AllReduce(comm, own, reduction));
        RETURN_IF_ERROR(Expect(absl::StrCat(own.TypeString(), " reduction ",
                                            static_cast<int>(reduction)),
                               got,
                               reference::AllReduce(arguments, reduction)));
        RETURN_IF_ERROR(Expect("argument", own, before));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReduceScatterCase(Communicator& comm) {
  const int64_t n = comm.size();
  const Dims shapes[] = {{n},       {3 * n, 5}, {2, 3 * n, 7},
                         {3, 0, n}, {0, n},     {5, 130 * n}};
  const int dims[] = {0, 0, 1, 2, 1, 1};
  for (int i = 0; i < 6; ++i) {
    for (const ElementType type : kNumbers) {
      const Tensors arguments = Arguments(comm.size(), type, shapes[i]);
      const Tensor& own = arguments[comm.rank()];
      ASSIGN_OR_RETURN(const Tensor got, ReduceScatter(comm, own, dims[i]));
      RETURN_IF_ERROR(
          Expect(absl::StrCat(own.TypeString(), " dim ", dims[i]), got,
                 reference::ReduceScatter(arguments, dims[i], comm.rank())));
    }
  }
  return absl::OkStatus();
}

absl::Status AllGatherCase(Communicator& comm) {
  for (const Dims& dims : {Dims{1}, Dims{0, 3}, Dims{2, 3, 5}, Dims{3, 4000}}) {
    for (const ElementType type : {ElementType::kUint8, ElementType::kInt64}) {
      const Tensors arguments = Arguments(comm.size(), type, dims);
      const Tensor& own = arguments[comm.rank()];
      for (int dim = 0; dim < own.rank(); ++dim) {
        ASSIGN_OR_RETURN(const Tensor got, AllGather(comm, own, dim));
        RETURN_IF_ERROR(Expect(absl::StrCat(own.TypeString(), " dim ", dim),
                               got, reference::Concatenate(arguments, dim)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AllToAllCase(Communicator& comm) {
  const int64_t n = comm.size();
  for (const Dims& dims : {Dims{n, n, n}, Dims{2 * n, n, 3 * n}, Dims{n, 0, n},
                           Dims{3 * n, 4 * n, 20 * n}}) {
    const Tensors arguments =
        Arguments(comm.size(), ElementType::kFloat32, dims);
    const Tensor& own = arguments[comm.rank()];
    for (int split = 0; split < 3; ++split) {
      for (int concat = 0; concat < 3; ++concat) {
        const std::string what =
            absl::StrCat(own.TypeString(), " split ", split, " to ", concat);
        ASSIGN_OR_RETURN(const Tensor got, AllToAll(comm, own, split, concat));
        if (own.size() < 4000) {
          RETURN_IF_ERROR(Expect(
              what, got,
              reference::AllToAll(arguments, split, concat, comm.rank())));
        }
        ASSIGN_OR_RETURN(const Tensor back, AllToAll(comm, got, concat, split));
        RETURN_IF_ERROR(Expect(absl::StrCat(what, " and back"), back, own));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PermuteCase(Communicator& comm) {
  const int n = comm.size();
  std::vector<int> ring(n), shift(n), same(n), nobody(n, -1), first(n, 0);
  for (int r = 0; r < n; ++r) {
    ring[r] = (r + 1) % n;
    shift[r] = r - 1;  // rank 0 gets zeros
    same[r] = r;
  }
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{3, 5}, Dims{200, 333}}) {
    const Tensors arguments = Arguments(n, ElementType::kInt32, dims);
    for (const auto& source : {ring, shift, same, nobody, first}) {
      ASSIGN_OR_RETURN(const Tensor got,
                       Permute(comm, arguments[comm.rank()], source));
      const int from = source[comm.rank()];
      RETURN_IF_ERROR(Expect(absl::StrCat("from ", from), got,
                             from < 0 ? Tensor::Zeros(ElementType::kInt32, dims)
                                      : arguments[from]));
    }
  }
  return absl::OkStatus();
}

// Group sizes of n members, each for `experts` experts. Some experts get no
// rows; every third member has none.
Tensors GroupSizes(int n, int experts, int most) {
  Tensors sizes;
  for (int rank = 0; rank < n; ++rank) {
    Tensor own = Tensor::Zeros(ElementType::kInt32, {experts});
    for (int e = 0; e < experts; ++e) {
      if (rank % 3 != 2) own.i32()[e] = RandomBelow(rank + experts, e, most);
    }
    sizes.push_back(own);
  }
  return sizes;
}

absl::Status RaggedCase(Communicator& comm) {
  const int n = comm.size(), rank = comm.rank();
  for (const int experts : {1, 2, 3, 8, 13}) {
    for (const int most : {1, 4, 300}) {
      const Tensors sizes = GroupSizes(n, experts, most);
      Tensors rows;
      for (int r = 0; r < n; ++r) {
        const int64_t count =
            std::accumulate(sizes[r].i32(), sizes[r].i32() + experts, 0);
        rows.push_back(Arguments(n, ElementType::kFloat32, {count, 2, 3})[r]);
      }
      const std::string what =
          absl::StrCat(experts, " experts of up to ", most - 1, " rows");

      const RaggedRows expected = reference::RaggedAllToAll(rows, sizes, rank);
      ASSIGN_OR_RETURN(const RaggedRows mine,
                       RaggedAllToAll(comm, rows[rank], sizes[rank]));
      RETURN_IF_ERROR(Expect(what + ": rows", mine.rows, expected.rows));
      RETURN_IF_ERROR(
          Expect(what + ": sizes", mine.group_sizes, expected.group_sizes));
      RETURN_IF_ERROR(Expect(what + ": counts", mine.counts, expected.counts));
      ASSIGN_OR_RETURN(
          const Tensor back,
          RaggedAllToAllBack(comm, mine.rows, mine.counts, sizes[rank]));
      RETURN_IF_ERROR(Expect(what + ": back", back, rows[rank]));

      const RaggedRows everything = reference::RaggedAllGather(rows, sizes);
      ASSIGN_OR_RETURN(const RaggedRows all,
                       RaggedAllGather(comm, rows[rank], sizes[rank]));
      RETURN_IF_ERROR(Expect(what + ": all rows", all.rows, everything.rows));
      RETURN_IF_ERROR(Expect(what + ": all sizes", all.group_sizes,
                             everything.group_sizes));
      RETURN_IF_ERROR(
          Expect(what + ": all counts", all.counts, everything.counts));
      for (int r = 0; r < n; ++r) {
        ASSIGN_OR_RETURN(const Tensor part,
                         RaggedLocalRows(all.rows, all.counts, r));
        RETURN_IF_ERROR(Expect(what + ": part", part, rows[r]));
      }
    }
  }
  return absl::OkStatus();
}

// Several groups of one world at once: the ranks reversed, evens and odds, and
// each rank alone.
absl::Status GroupsCase(World& world) {
  std::vector<int> reversed, like, alone = {world.rank()};
  for (int r = 0; r < world.size(); ++r) {
    reversed.insert(reversed.begin(), r);
    if (r % 2 == world.rank() % 2) like.push_back(r);
  }
  const Tensors arguments =
      Arguments(world.size(), ElementType::kFloat32, {2, 1000});
  const Tensor& own = arguments[world.rank()];
  for (int round = 0; round < 3; ++round) {
    for (const std::vector<int>& ranks : {reversed, like, alone}) {
      ASSIGN_OR_RETURN(Communicator* const comm, world.Group(ranks));
      Tensors members;
      for (const int rank : ranks) members.push_back(arguments[rank]);
      ASSIGN_OR_RETURN(const Tensor got, AllGather(*comm, own, 1));
      RETURN_IF_ERROR(Expect(absl::StrCat(ranks.size(), " members"), got,
                             reference::Concatenate(members, 1)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCollectivesCases(World& world) {
  ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
  RETURN_IF_ERROR(Annotate(AllReduceCase(*comm), "all-reduce"));
  RETURN_IF_ERROR(Annotate(ReduceScatterCase(*comm), "reduce-scatter"));
  RETURN_IF_ERROR(Annotate(AllGatherCase(*comm), "all-gather"));
  RETURN_IF_ERROR(Annotate(AllToAllCase(*comm), "all-to-all"));
  RETURN_IF_ERROR(Annotate(PermuteCase(*comm), "permute"));
  RETURN_IF_ERROR(Annotate(RaggedCase(*comm), "ragged"));
  return Annotate(GroupsCase(world), "groups");
}

}  // namespace gshard
