// SentencePiece models, and texts and ids that they encode and decode. The
// first byte is the length of a text in bytes; the model follows the text.

#include <algorithm>
#include <string>
#include <vector>

#include "services/base/utf8.h"
#include "services/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

void UseText(const Tokenizer& tokenizer, absl::string_view text) {
  const auto ids = tokenizer.Encode(text);
  // A malformed model may fail to encode even valid UTF-8.
  CHECK(ids.ok() ? IsUtf8(text)
                 : !IsUtf8(text) || absl::IsDataLoss(ids.status()));
  if (!Accepted(ids.status())) return;
  for (const int32_t id : *ids) {
    CHECK(id >= 0 && id < tokenizer.vocab_size());
  }
  const auto decoded = tokenizer.Decode(*ids);
  CHECK(decoded.ok() || absl::IsDataLoss(decoded.status()));
}

void Use(const Tokenizer& tokenizer, absl::string_view text) {
  UseText(tokenizer, text);
  UseText(tokenizer, "Guten Tag, <pad> \xe2\x96\x81 \xf0\x9f\x99\x82 ab  c");
  std::vector<int32_t> ids;
  std::string pieces;
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 64); ++id) {
    ids.push_back(id);
    pieces += tokenizer.IdToPiece(id);
  }
  UseText(tokenizer, pieces);
  const auto decoded = tokenizer.Decode(ids);
  CHECK(decoded.ok() || absl::IsDataLoss(decoded.status()));
  ids.push_back(tokenizer.vocab_size());
  CHECK(absl::IsOutOfRange(tokenizer.Decode(ids).status()));
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest = gshard::Bytes(data + 1, size - 1);
  const absl::string_view text = rest.substr(0, data[0]);
  const auto tokenizer =
      gshard::Tokenizer::FromModelBytes(std::string(rest.substr(text.size())));
  if (gshard::Accepted(tokenizer.status())) gshard::Use(**tokenizer, text);
  return 0;
}
