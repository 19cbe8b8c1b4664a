// The decoding functions of CudaRun: the cache and the choice of tokens.

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/cuda/cuda_device.h"
#include "services/cuda/kernels/launch_dense.h"

namespace gshard {
namespace {

// Arguments of the kernels of top_tokens.h.
struct WantedOfRows {
  int64_t most = 1;  // at least 1: kernels divide by it
  std::vector<int32_t> wanted, never, never_span, also, also_begin = {0};

  explicit WantedOfRows(absl::Span<const TokensWanted> rows) {
    // Most rows share the same `never` list, so each list is stored once.
    std::map<std::pair<const int32_t*, size_t>, int32_t> begin_of;
    for (const TokensWanted& row : rows) {
      most = std::max<int64_t>(most, row.count);
      wanted.push_back(row.count);
      const auto [found, added] =
          begin_of.try_emplace({row.never.data(), row.never.size()},
                               static_cast<int32_t>(never.size()));
      if (added) never.insert(never.end(), row.never.begin(), row.never.end());
      never_span.push_back(found->second);
      never_span.push_back(found->second +
                           static_cast<int32_t>(row.never.size()));
      also.insert(also.end(), row.also.begin(), row.also.end());
      also_begin.push_back(static_cast<int32_t>(also.size()));
    }
  }
};

}  // namespace

absl::Status CudaRun::CopyRanges(const Tensor& from,
                                 absl::Span<const ElementRange> ranges,
                                 Tensor& to) {
  Use({&from, &to});
  std::vector<cuda::RangeOfElements> there;
  int64_t most = 0;
  for (const ElementRange& range : ranges) {
    CHECK(range.from >= 0 && range.from + range.count <= from.size());
    CHECK(range.to >= 0 && range.to + range.count <= to.size());
    there.push_back({range.from, range.to, range.count});
    most = std::max(most, range.count);
  }
  if (most == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Tensor uploaded, Upload(there));
  return Launched(cuda::LaunchElements(
      cuda::CopyElements{In<float>(from), In<cuda::RangeOfElements>(uploaded),
                         most, Out<float>(to)},
      static_cast<int64_t>(there.size()) * most, stream_));
}

absl::StatusOr<std::vector<std::vector<TokenScore>>> CudaRun::TopTokensOfRows(
    const Tensor& logits, absl::Span<const TokensWanted> wanted) {
  const auto R = static_cast<int64_t>(wanted.size());
  CHECK(logits.dim(0) == R);
  const int64_t V = logits.dim(1);
  std::vector<std::vector<TokenScore>> rows(R);
  if (logits.size() == 0) return rows;
  Use({&logits});
  const WantedOfRows of_rows(wanted);
  const int64_t C = cuda::BlocksAlong(V, cuda::kChunkTokens), K = of_rows.most;
  ASSIGN_OR_RETURN(const Tensor counts, Upload(of_rows.wanted));
  ASSIGN_OR_RETURN(const Tensor never, Upload(of_rows.never));
  ASSIGN_OR_RETURN(const Tensor never_span, Upload(of_rows.never_span));
  ASSIGN_OR_RETURN(const Tensor also, Upload(of_rows.also));
  ASSIGN_OR_RETURN(const Tensor also_begin, Upload(of_rows.also_begin));
  const auto floats = [this](Dims dims) {
    return NewTensor(ElementType::kFloat32, std::move(dims));
  };
  static_assert(sizeof(cuda::Choice) == 2 * sizeof(float));
  ASSIGN_OR_RETURN(Tensor best, floats({R, C, K, 2}));
  ASSIGN_OR_RETURN(Tensor chunk_max, floats({R, C}));
  ASSIGN_OR_RETURN(Tensor chunk_sum, floats({R, C}));
  ASSIGN_OR_RETURN(Tensor token, NewTensor(ElementType::kInt32, {R, K}));
  ASSIGN_OR_RETURN(Tensor logit, floats({R, K}));
  ASSIGN_OR_RETURN(Tensor also_logit, floats({also.size()}));
  ASSIGN_OR_RETURN(Tensor maximum, floats({R}));
  ASSIGN_OR_RETURN(Tensor sum, floats({R}));
  RETURN_IF_ERROR(Launched(cuda::LaunchRows(
      cuda::BestOfChunks{In<float>(logits), V, C, In<int32_t>(counts), K,
                         In<int32_t>(never), In<int32_t>(never_span),
                         Out<cuda::Choice>(best), Out<float>(chunk_max)},
      R * C, stream_)));
  RETURN_IF_ERROR(Launched(cuda::LaunchRows(
      cuda::SumsOfChunks{In<float>(logits), V, C, In<float>(chunk_max),
                         Out<float>(chunk_sum)},
      R * C, stream_)));
  RETURN_IF_ERROR(Launched(cuda::LaunchRows(
      cuda::MergeChunks{In<float>(logits), V, C, In<int32_t>(counts), K,
                        In<cuda::Choice>(best), In<float>(chunk_max),
                        In<float>(chunk_sum), In<int32_t>(also),
                        In<int32_t>(also_begin), Out<int32_t>(token),
                        Out<float>(logit), Out<float>(also_logit),
                        Out<float>(maximum), Out<float>(sum)},
      R, stream_)));
  for (Tensor* const result : {&token, &logit, &also_logit, &maximum, &sum}) {
    ASSIGN_OR_RETURN(*result, ToHost(*result));
  }
  RETURN_IF_ERROR(Finish());
  for (int64_t r = 0; r < R; ++r) {
    std::vector<TokenScore> of_row;
    for (int64_t k = r * K; k < r * K + wanted[r].count; ++k) {
      if (token.i32()[k] == cuda::Choice::kNobody) break;
      of_row.push_back({token.i32()[k], logit.f32()[k]});
    }
    rows[r] = ScoreTokens(std::move(of_row), wanted[r],
                          also_logit.span<float>().subspan(
                              of_rows.also_begin[r], wanted[r].also.size()),
                          maximum.f32()[r], sum.f32()[r]);
  }
  return rows;
}

}  // namespace gshard
