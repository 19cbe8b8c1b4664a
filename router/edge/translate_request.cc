#include "router/edge/translate_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/models/decode_request.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/rpc/server/server_stream.h"

namespace gshard {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A name, '@' and a version, each of at most 128 bytes.
constexpr size_t kMaxModelBytes = 257;

// Workers come back within a lease or are replaced.
constexpr std::chrono::milliseconds kFullRetryDelay{1'000};

absl::Status NotUtf8(absl::string_view field, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": expected UTF-8, byte ", FirstMalformedByte(text), " is not"));
}

// Calls visit(number, bytes) for length-delimited fields, until it returns an
// error or the bytes end or are malformed.
template <typename Visit>
absl::Status VisitFields(absl::string_view message, const Visit& visit) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(message.data()),
                         static_cast<int>(message.size()));
  while (const uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) ==
        WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      int length = 0;
      std::string bytes;
      if (!input.ReadVarintSizeAsInt(&length) ||
          !input.ReadString(&bytes, length)) {
        break;
      }
      RETURN_IF_ERROR(visit(WireFormatLite::GetTagFieldNumber(tag), bytes));
    } else if (!WireFormatLite::SkipField(&input, tag)) {
      break;
    }
  }
  return absl::OkStatus();
}

// Text fields of a message, with their numbers.
using TextFields = std::vector<std::pair<int, absl::string_view>>;

// OK if these fields of an encoded message are UTF-8.
absl::Status CheckTexts(absl::string_view message, const std::string& where,
                        const TextFields& fields) {
  return VisitFields(message, [&](int number, const std::string& bytes) {
    for (const auto& [field, name] : fields) {
      if (field == number && !IsUtf8(bytes)) {
        return NotUtf8(absl::StrCat(where, name), bytes);
      }
    }
    return absl::OkStatus();
  });
}

// OK if every text of the encoded request is UTF-8.
absl::Status CheckTexts(absl::string_view request) {
  using v1::Sentence, v1::Term, v1::TranslateOptions, v1::TranslateRequest;
  int sentence = 0, term = 0;
  RETURN_IF_ERROR(CheckTexts(request, "",
                             {{TranslateRequest::kModelFieldNumber, "model"}}));
  return VisitFields(request, [&](int number, const std::string& bytes) {
    if (number == TranslateRequest::kSentencesFieldNumber) {
      return CheckTexts(
          bytes, absl::StrCat("sentences[", sentence++, "]."),
          {{Sentence::kTextFieldNumber, "text"},
           {Sentence::kSourceLanguageFieldNumber, "source_language"},
           {Sentence::kTargetPrefixFieldNumber, "target_prefix"}});
    }
    if (number != TranslateRequest::kOptionsFieldNumber) {
      return absl::OkStatus();
    }
    return VisitFields(bytes, [&](int field, const std::string& encoded) {
      if (field != TranslateOptions::kTermsFieldNumber) {
        return absl::OkStatus();
      }
      return CheckTexts(encoded, absl::StrCat("options.terms[", term++, "]."),
                        {{Term::kSourceFieldNumber, "source"},
                         {Term::kTargetFieldNumber, "target"}});
    });
  });
}

// Maximum number of fields of a request; a message with fewer bytes cannot have
// more.
constexpr size_t kManyBytes = 65536;
constexpr int64_t kMaxFields = kManyBytes;

// OK if the encoded message, including nested ones, has at most `left` fields,
// which it decrements: parsed, tiny fields, even unknown ones, take many times
// their bytes and time. A group counts as its content. Malformed data is left
// to the parser, which stops at the same place.
absl::Status CountFields(absl::string_view message,
                         const google::protobuf::Descriptor& type,
                         int64_t& left) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(message.data()),
                         static_cast<int>(message.size()));
  while (const uint32_t tag = input.ReadTag()) {
    if (--left < 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the request has more than ", kMaxFields, " fields: split it"));
    }
    const auto wire_type = WireFormatLite::GetTagWireType(tag);
    if (wire_type == WireFormatLite::WIRETYPE_START_GROUP ||
        wire_type == WireFormatLite::WIRETYPE_END_GROUP) {
      continue;
    }
    if (wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) break;
      continue;
    }
    int length = 0;
    if (!input.ReadVarintSizeAsInt(&length)) break;
    const int begin = input.CurrentPosition();
    if (!input.Skip(length)) break;
    const google::protobuf::FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr || field->message_type() == nullptr) continue;
    RETURN_IF_ERROR(CountFields(message.substr(begin, length),
                                *field->message_type(), left));
  }
  return absl::OkStatus();
}

// Prefixes an error with a field of sentence i, or of the options.
absl::Status InSentence(int i, const absl::Status& status) {
  if (status.ok() || absl::StartsWith(status.message(), "options.")) {
    return status;
  }
  return absl::Status(status.code(),
                      absl::StrCat("sentences[", i, "].", status.message()));
}

// Calls visit(bytes) with the whole content of a buffer.
template <typename Visit>
absl::Status VisitBytes(const grpc::ByteBuffer& buffer, const Visit& visit) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok()) return absl::OkStatus();
  return visit(absl::string_view(reinterpret_cast<const char*>(slice.begin()),
                                 slice.size()));
}

// Parses a message. If that fails, check_texts(bytes) says which text is not
// UTF-8.
template <typename Message, typename CheckTexts>
absl::StatusOr<Message> Parse(grpc::ByteBuffer buffer,
                              const CheckTexts& check_texts) {
  RETURN_IF_ERROR(CheckRequestBytes(buffer));
  if (buffer.Length() > kManyBytes) {
    RETURN_IF_ERROR(VisitBytes(buffer, [](absl::string_view bytes) {
      int64_t left = kMaxFields;
      return CountFields(bytes, *Message::descriptor(), left);
    }));
  }
  auto message = ParseRaw<Message>(buffer);  // shares the bytes
  if (message.ok()) return message;
  RETURN_IF_ERROR(VisitBytes(buffer, check_texts));
  return message.status();
}

absl::Status CheckSentences(const v1::TranslateRequest& request) {
  if (request.sentences_size() == 0) {
    return OutOfRange("sentences", 1, kMaxSentences, 0);
  }
  if (request.sentences_size() > kMaxSentences) {
    return absl::ResourceExhaustedError(
        absl::StrCat("sentences: expected at most ", kMaxSentences, ", got ",
                     request.sentences_size(), ": split the call"));
  }
  for (int i = 0; i < request.sentences_size(); ++i) {
    const size_t bytes = request.sentences(i).text().size();
    if (bytes == 0 || bytes > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("sentences[", i, "].text: expected 1 to ", kMaxTextBytes,
                       " bytes, got ", bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequestBytes(const grpc::ByteBuffer& buffer) {
  if (buffer.Length() <= kMaxRequestBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the request has ", buffer.Length(),
                   " bytes, expected at most ", kMaxRequestBytes));
}

absl::StatusOr<v1::TranslateRequest> ParseTranslateRequest(
    grpc::ByteBuffer buffer) {
  return Parse<v1::TranslateRequest>(
      std::move(buffer),
      [](absl::string_view bytes) { return CheckTexts(bytes); });
}

absl::StatusOr<v1::TranslateStreamRequest> ParseTranslateStreamRequest(
    grpc::ByteBuffer buffer) {
  return Parse<v1::TranslateStreamRequest>(
      std::move(buffer), [](absl::string_view message) {
        return VisitFields(message, [](int number, const std::string& bytes) {
          return number == v1::TranslateStreamRequest::kRequestFieldNumber
                     ? Annotate(CheckTexts(bytes), "request")
                     : absl::OkStatus();
        });
      });
}

absl::StatusOr<v1::ExplainRoutingRequest> ParseExplainRoutingRequest(
    grpc::ByteBuffer buffer) {
  return Parse<v1::ExplainRoutingRequest>(
      std::move(buffer), [](absl::string_view) { return absl::OkStatus(); });
}

uint64_t PeekStreamRequestId(const grpc::ByteBuffer& buffer) {
  grpc::ByteBuffer copy = buffer;  // shares the bytes
  grpc::ProtoBufferReader reader(&copy);
  CodedInputStream input(&reader);
  uint64_t id = 0;
  constexpr int kFields = 3;
  for (int i = 0; i < kFields; ++i) {
    const uint32_t tag = input.ReadTag();
    if (tag ==
        WireFormatLite::MakeTag(v1::TranslateStreamRequest::kIdFieldNumber,
                                WireFormatLite::WIRETYPE_VARINT)) {
      return input.ReadVarint64(&id) ? id : 0;
    }
    if (tag == 0 || WireFormatLite::GetTagWireType(tag) ==
                        WireFormatLite::WIRETYPE_START_GROUP) {
      return 0;
    }
    if (!WireFormatLite::SkipField(&input, tag)) return 0;
  }
  return 0;
}

absl::Status NotFull(const TranslationModel& model) {
  return WithRetryDelay(
      absl::UnavailableError(absl::StrCat(
          "require_full: no expert worker is there for some experts of model ",
          model.id())),
      kFullRetryDelay);
}

absl::StatusOr<TranslationDraft> TranslationDraft::Begin(
    v1::TranslateRequest request, const ModelAccess& models,
    std::string& name) {
  RETURN_IF_ERROR(CheckSentences(request));
  if (request.model().size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: expected at most ", kMaxModelBytes, " bytes, got ",
                     request.model().size()));
  }
  ASSIGN_OR_RETURN(auto model, models.Find(request.model()));
  name = model->name();
  if (request.require_full() && !model->full()) return NotFull(*model);
  ASSIGN_OR_RETURN(DecodeOptions options,
                   CheckOptions(request.options(), model->max_positions()));
  options.require_full = request.require_full();
  TranslationDraft draft(std::move(request));
  draft.options_ = std::move(options);
  draft.prepared_.model = std::move(model);
  return draft;
}

int64_t TranslationDraft::next_bytes() const {
  const auto next = static_cast<int>(prepared_.sentences.size());
  if (next == request_.sentences_size()) return 0;
  const v1::Sentence& sentence = request_.sentences(next);
  const auto size = static_cast<int64_t>(sentence.text().size());
  int64_t bytes = size + static_cast<int64_t>(sentence.target_prefix().size());
  // Not checked yet: none has more bytes than the text.
  for (const v1::TextSpan& span : sentence.keep()) {
    bytes += std::clamp<int64_t>(int64_t{span.end()} - span.begin(), 0, size);
  }
  return bytes;
}

DecodeOptions TranslationDraft::OptionsOf(int64_t source_tokens) const {
  DecodeOptions options = options_;
  options.max_length =
      MaxLength(request_.options(), source_tokens, *prepared_.model);
  return options;
}

absl::Status TranslationDraft::PrepareNext() {
  const auto i = static_cast<int>(prepared_.sentences.size());
  const v1::Sentence& sentence = request_.sentences(i);
  const TranslationModel& model = *prepared_.model;
  const int64_t positions = model.max_positions();
  const std::string& language = sentence.source_language().empty()
                                    ? model.default_language()
                                    : sentence.source_language();
  auto ids = model.Encode(sentence.text(), language);
  if (!ids.ok()) return InSentence(i, ids.status());
  const auto length = static_cast<int64_t>(ids->size());
  if (length < kMinSourceTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sentences[", i, "].text: expected text, got white space only"));
  }
  if (length > positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("sentences[", i, "].text: expected at most ", positions,
                     " tokens, got ", length));
  }
  SourceSentence ready{*std::move(ids), options_};
  RETURN_IF_ERROR(InSentence(i, AddSentenceOptions(sentence, request_.options(),
                                                   model, terms_, ready)));
  prepared_.sentences.push_back(std::move(ready));
  return absl::OkStatus();
}

absl::StatusOr<PreparedTranslation> PrepareTranslation(
    v1::TranslateRequest request, const ModelAccess& models) {
  std::string model;
  ASSIGN_OR_RETURN(TranslationDraft draft,
                   TranslationDraft::Begin(std::move(request), models, model));
  while (draft.next_bytes() > 0) RETURN_IF_ERROR(draft.PrepareNext());
  return std::move(draft).Take();
}

}  // namespace gshard
