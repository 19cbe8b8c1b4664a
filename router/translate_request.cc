#include "router/translate_request.h"

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
#include "router/decode_request.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/rpc/server_stream.h"
#include "services/tokenizer/utf8.h"

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

// Calls visit(number, bytes) for the fields that have a length, until it
// returns an error or the bytes end or are malformed.
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

// A text field of a message, and the number that it has there.
using TextFields = std::vector<std::pair<int, absl::string_view>>;

// OK if those fields of an encoded message are UTF-8.
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

// What is shorter has no more than so many fields, and no other request that is
// valid.
constexpr size_t kManyBytes = 65536;
constexpr int64_t kMaxFields = kManyBytes;

// OK if the encoded request has no more fields with a length than `left`, which
// it takes off: parsed, tiny ones take many times their bytes and time.
absl::Status CountFields(absl::string_view request, int64_t& left) {
  const auto count = [&left](int, const std::string&) {
    return --left >= 0 ? absl::OkStatus()
                       : absl::ResourceExhaustedError(
                             absl::StrCat("the request has more than ",
                                          kMaxFields, " fields: split it"));
  };
  return VisitFields(request, [&](int number, const std::string& bytes) {
    RETURN_IF_ERROR(count(number, bytes));
    const bool has_fields =
        number == v1::TranslateRequest::kSentencesFieldNumber ||
        number == v1::TranslateRequest::kOptionsFieldNumber;
    return has_fields ? VisitFields(bytes, count) : absl::OkStatus();
  });
}

// An error that begins with a field of sentence i, or of the options.
absl::Status InSentence(int i, const absl::Status& status) {
  if (status.ok() || absl::StartsWith(status.message(), "options.")) {
    return status;
  }
  return absl::Status(status.code(),
                      absl::StrCat("sentences[", i, "].", status.message()));
}

// Parses a message; says which text is not UTF-8 if that is why it cannot.
// visit_requests(bytes, visit) calls visit(request) for the request, or more,
// of an encoded message.
template <typename Message, typename VisitRequests>
absl::StatusOr<Message> Parse(grpc::ByteBuffer buffer,
                              const VisitRequests& visit_requests) {
  RETURN_IF_ERROR(CheckRequestBytes(buffer));
  const auto visit = [&](grpc::ByteBuffer bytes, const auto& check) {
    grpc::Slice slice;
    if (!bytes.DumpToSingleSlice(&slice).ok()) return absl::OkStatus();
    return visit_requests(
        absl::string_view(reinterpret_cast<const char*>(slice.begin()),
                          slice.size()),
        check);
  };
  if (buffer.Length() > kManyBytes) {
    RETURN_IF_ERROR(
        visit(buffer, [left = kMaxFields](absl::string_view request) mutable {
          return CountFields(request, left);
        }));
  }
  grpc::ByteBuffer copy = buffer;  // shares the bytes
  auto message = ParseRaw<Message>(std::move(buffer));
  if (message.ok()) return message;
  RETURN_IF_ERROR(visit(std::move(copy), [](absl::string_view request) {
    return CheckTexts(request);
  }));
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
      [](absl::string_view message, auto check) { return check(message); });
}

absl::StatusOr<v1::TranslateStreamRequest> ParseTranslateStreamRequest(
    grpc::ByteBuffer buffer) {
  return Parse<v1::TranslateStreamRequest>(
      std::move(buffer), [](absl::string_view message, auto check) {
        return VisitFields(message, [&](int number, const std::string& bytes) {
          return number == v1::TranslateStreamRequest::kRequestFieldNumber
                     ? Annotate(check(bytes), "request")
                     : absl::OkStatus();
        });
      });
}

uint64_t PeekStreamRequestId(const grpc::ByteBuffer& buffer) {
  grpc::ByteBuffer copy = buffer;  // shares the bytes
  grpc::ProtoBufferReader reader(&copy);
  CodedInputStream input(&reader);
  uint64_t id = 0;
  constexpr int kFields = 3;  // that a message has
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
    v1::TranslateRequest request, const ModelAccess& models) {
  RETURN_IF_ERROR(CheckSentences(request));
  if (request.model().size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: expected at most ", kMaxModelBytes, " bytes, got ",
                     request.model().size()));
  }
  ASSIGN_OR_RETURN(auto model, models.Find(request.model()));
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
  return static_cast<int64_t>(sentence.text().size() +
                              sentence.target_prefix().size());
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
  if (length <= 2) {
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
                                                   terms_, model, ready)));
  prepared_.sentences.push_back(std::move(ready));
  return absl::OkStatus();
}

absl::StatusOr<PreparedTranslation> PrepareTranslation(
    v1::TranslateRequest request, const ModelAccess& models) {
  ASSIGN_OR_RETURN(TranslationDraft draft,
                   TranslationDraft::Begin(std::move(request), models));
  while (draft.next_bytes() > 0) RETURN_IF_ERROR(draft.PrepareNext());
  return std::move(draft).Take();
}

}  // namespace gshard
