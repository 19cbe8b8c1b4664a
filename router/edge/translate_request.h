// TranslateRequest: parsing, validation and tokenization of requests.

#ifndef ROUTER_EDGE_TRANSLATE_REQUEST_H_
#define ROUTER_EDGE_TRANSLATE_REQUEST_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/models/decode_request.h"
#include "router/models/model_access.h"
#include "services/decoding/translator.h"

namespace gshard {

inline constexpr int kMaxSentences = 64;  // per call
inline constexpr size_t kMaxTextBytes = 16384;
inline constexpr int64_t kMinSourceTokens = 3;  // language, text and end

// Limit of an encoded request, above the sum of its fields' limits. Longer ones
// are not parsed, since tiny messages occupy many times their bytes.
inline constexpr size_t kMaxRequestBytes = size_t{4} << 20;

// A request that is ready for translation.
struct PreparedTranslation {
  std::shared_ptr<TranslationModel> model;
  std::vector<SourceSentence> sentences;
};

// OK up to kMaxRequestBytes, else ResourceExhausted.
absl::Status CheckRequestBytes(const grpc::ByteBuffer& buffer);

// Parses a message. Protobuf refuses text that is not UTF-8 without naming the
// field; this names it for fields to translate. Errors: InvalidArgument naming
// the field; ResourceExhausted for more bytes, or more fields in total,
// including unknown ones, than a valid request may have.
absl::StatusOr<v1::TranslateRequest> ParseTranslateRequest(
    grpc::ByteBuffer buffer);
absl::StatusOr<v1::TranslateStreamRequest> ParseTranslateStreamRequest(
    grpc::ByteBuffer buffer);
absl::StatusOr<v1::ExplainRoutingRequest> ParseExplainRoutingRequest(
    grpc::ByteBuffer buffer);

// The id of an unparsed message, if it is among the first fields, where all
// writers put it; else 0. Takes constant time.
uint64_t PeekStreamRequestId(const grpc::ByteBuffer& buffer);

// The error of a request that requires all experts while some have no worker:
// Unavailable, with a retry delay.
absl::Status NotFull(const TranslationModel& model);

// Prepares a request one sentence at a time: texts may be long, and other
// requests wait for the thread.
class TranslationDraft {
 public:
  // Checks everything except sentences. Errors, here and below, as in
  // translation.proto: InvalidArgument naming the field, NotFound,
  // PermissionDenied, ResourceExhausted, Unavailable. Sets `model` to the name
  // of the model, without its version, as soon as it is known.
  static absl::StatusOr<TranslationDraft> Begin(v1::TranslateRequest request,
                                                const ModelAccess& models,
                                                std::string& model);

  size_t sentences() const {
    return static_cast<size_t>(request_.sentences_size());
  }
  // The options of a sentence with this many tokens, except for what depends on
  // its text.
  DecodeOptions OptionsOf(int64_t source_tokens) const;

  // Bytes of the next sentence's texts, those to keep counted again; 0 if there
  // is none.
  int64_t next_bytes() const;

  // Checks and tokenizes the next sentence. REQUIRES: next_bytes() > 0.
  absl::Status PrepareNext();

  // REQUIRES: next_bytes() == 0.
  PreparedTranslation Take() && { return std::move(prepared_); }

 private:
  explicit TranslationDraft(v1::TranslateRequest request)
      : request_(std::move(request)), terms_(request_.options()) {}

  v1::TranslateRequest request_;
  RequestTerms terms_;
  DecodeOptions options_;
  PreparedTranslation prepared_;
};

// Prepares a whole request at once.
absl::StatusOr<PreparedTranslation> PrepareTranslation(
    v1::TranslateRequest request, const ModelAccess& models);

}  // namespace gshard

#endif  // ROUTER_EDGE_TRANSLATE_REQUEST_H_
