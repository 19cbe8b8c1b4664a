// Converts hypotheses to the response message.

#ifndef ROUTER_EDGE_TRANSLATE_ANSWER_H_
#define ROUTER_EDGE_TRANSLATE_ANSWER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/edge/translate_request.h"

namespace gshard {

// Limit of an encoded answer, a little below that of gRPC's clients unless they
// set another: one that is longer would be lost when all of its work is done,
// and its stream with it.
inline constexpr size_t kMaxAnswerBytes = (size_t{4} << 20) - 128;

// Properties of the request that the answer reports. Cheap to copy.
struct AnswerContext {
  explicit AnswerContext(const PreparedTranslation& prepared);

  std::shared_ptr<TranslationModel> model;
  // Per sentence.
  std::vector<int32_t> source_tokens, unknown_tokens, phrases;
  bool require_full = false;
};

// results[i] belongs to sentence i. Errors: those of TranslationModel::Decode;
// Unavailable if choices were lost and the request requires all experts;
// ResourceExhausted for more than kMaxAnswerBytes.
absl::StatusOr<v1::TranslateResponse> MakeAnswer(
    const AnswerContext& context, const std::vector<Hypotheses>& results);

}  // namespace gshard

#endif  // ROUTER_EDGE_TRANSLATE_ANSWER_H_
