// TranslateRequest: from the wire to token ids, everything checked.

#ifndef ROUTER_TRANSLATE_REQUEST_H_
#define ROUTER_TRANSLATE_REQUEST_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/model_table.h"
#include "services/decoding/translator.h"

namespace gshard {

inline constexpr int kMaxSentences = 64;  // of one call
inline constexpr size_t kMaxTextBytes = 16384;

// Of an encoded request: more than its fields may have together. What is
// longer is not parsed, for tiny messages take many times their bytes.
inline constexpr size_t kMaxRequestBytes = size_t{4} << 20;

// A request that may be translated.
struct PreparedTranslation {
  std::shared_ptr<TranslationModel> model;
  std::vector<SourceSentence> sentences;
};

// Parses a message. Protobuf refuses a text that is not UTF-8 without saying
// which; this says. Errors: InvalidArgument naming the field; ResourceExhausted
// beyond kMaxRequestBytes.
absl::StatusOr<v1::TranslateRequest> ParseTranslateRequest(
    grpc::ByteBuffer buffer);
absl::StatusOr<v1::TranslateStreamRequest> ParseTranslateStreamRequest(
    grpc::ByteBuffer buffer);

// The error of a request that requires all experts while some have no worker:
// Unavailable, with the delay after which to try again.
absl::Status NotFull(const TranslationModel& model);

// Checks every field and tokenizes. Errors, as translation.proto says:
// InvalidArgument naming the field, NotFound, ResourceExhausted, Unavailable.
absl::StatusOr<PreparedTranslation> PrepareTranslation(
    const v1::TranslateRequest& request, const ModelTable& models);

}  // namespace gshard

#endif  // ROUTER_TRANSLATE_REQUEST_H_
