#include "router/translate_request.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/rpc/server_stream.h"
#include "services/tokenizer/utf8.h"

namespace gshard {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A name, '@' and a version, each of at most 128 bytes.
constexpr size_t kMaxModelBytes = 257;

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

// OK if every text of the encoded request is UTF-8.
absl::Status CheckTexts(absl::string_view request) {
  int sentence = 0;
  return VisitFields(request, [&](int number, const std::string& bytes) {
    if (number == v1::TranslateRequest::kModelFieldNumber && !IsUtf8(bytes)) {
      return NotUtf8("model", bytes);
    }
    if (number != v1::TranslateRequest::kSentencesFieldNumber) {
      return absl::OkStatus();
    }
    const std::string where = absl::StrCat("sentences[", sentence++, "].");
    return VisitFields(bytes, [&](int field, const std::string& text) {
      if (IsUtf8(text)) return absl::OkStatus();
      if (field == v1::Sentence::kTextFieldNumber) {
        return NotUtf8(where + "text", text);
      }
      if (field == v1::Sentence::kSourceLanguageFieldNumber) {
        return NotUtf8(where + "source_language", text);
      }
      return absl::OkStatus();
    });
  });
}

absl::Status OutOfRange(absl::string_view field, int64_t low, int64_t high,
                        int64_t got) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", low, " to ", high, ", got ", got));
}

// All but max_length, which depends on the sentence.
absl::StatusOr<DecodeOptions> CheckOptions(const v1::TranslateOptions& options,
                                           int64_t max_positions) {
  DecodeOptions decode;
  if (options.beam_size() < 0 || options.beam_size() > kMaxBeamSize) {
    return OutOfRange("options.beam_size", 1, kMaxBeamSize,
                      options.beam_size());
  }
  if (options.beam_size() > 0) decode.beam_size = options.beam_size();
  if (options.has_length_penalty()) {
    decode.length_penalty = options.length_penalty();
    if (!(decode.length_penalty >= 0.0 &&
          decode.length_penalty <= kMaxLengthPenalty)) {
      return absl::InvalidArgumentError(
          absl::StrCat("options.length_penalty: expected 0 to ",
                       kMaxLengthPenalty, ", got ", decode.length_penalty));
    }
  }
  if (options.max_length() < 0 || options.max_length() > max_positions) {
    return OutOfRange("options.max_length", 1, max_positions,
                      options.max_length());
  }
  if (options.greedy()) {
    if (options.beam_size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("options.greedy: contradicts options.beam_size ",
                       options.beam_size()));
    }
    decode.beam_size = 1;
    decode.length_penalty = 0.0;
  }
  if (options.n_best() < 0 || options.n_best() > decode.beam_size) {
    return OutOfRange("options.n_best", 1, decode.beam_size, options.n_best());
  }
  if (options.n_best() > 0) decode.n_best = options.n_best();
  return decode;
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

absl::StatusOr<v1::TranslateRequest> ParseTranslateRequest(
    grpc::ByteBuffer buffer) {
  grpc::ByteBuffer copy = buffer;  // shares the bytes
  auto request = ParseRaw<v1::TranslateRequest>(std::move(buffer));
  if (request.ok()) return request;
  grpc::Slice slice;
  if (copy.DumpToSingleSlice(&slice).ok()) {
    RETURN_IF_ERROR(CheckTexts(absl::string_view(
        reinterpret_cast<const char*>(slice.begin()), slice.size())));
  }
  return request.status();
}

absl::StatusOr<PreparedTranslation> PrepareTranslation(
    const v1::TranslateRequest& request, const ModelTable& models) {
  RETURN_IF_ERROR(CheckSentences(request));
  if (request.model().size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: expected at most ", kMaxModelBytes, " bytes, got ",
                     request.model().size()));
  }
  PreparedTranslation prepared;
  auto model = models.Find(request.model());
  if (!model.ok()) return Annotate(model.status(), "model");
  prepared.model = *std::move(model);
  const int64_t positions = prepared.model->max_positions();
  ASSIGN_OR_RETURN(const DecodeOptions options,
                   CheckOptions(request.options(), positions));
  for (int i = 0; i < request.sentences_size(); ++i) {
    const v1::Sentence& sentence = request.sentences(i);
    const std::string& language = sentence.source_language().empty()
                                      ? prepared.model->default_language()
                                      : sentence.source_language();
    auto ids = prepared.model->Encode(sentence.text(), language);
    if (!ids.ok()) {
      return absl::Status(
          ids.status().code(),
          absl::StrCat("sentences[", i, "].", ids.status().message()));
    }
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
    prepared.sentences.push_back({*std::move(ids), options});
    prepared.sentences.back().options.require_full = request.require_full();
    prepared.sentences.back().options.max_length =
        request.options().max_length() > 0
            ? request.options().max_length()
            : static_cast<int>(std::min(2 * length + 10, positions));
  }
  return prepared;
}

}  // namespace gshard
