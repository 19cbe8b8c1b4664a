// Translation requests, of calls and of streams, and all checks that a router
// makes before they join a batch.

#include <string>
#include <utility>

#include "router/edge/translate_request.h"
#include "router/models/decode_request.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/router/fake_model.h"

namespace gshard {
namespace {

const ModelTable& Models() {
  static ModelTable& table = *[] {
    auto* const models = new ModelTable;
    CHECK(models->Add(std::make_shared<FakeModel>("m@1", "de")).ok());
    return models;
  }();
  return table;
}

grpc::ByteBuffer Buffer(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// Checks the invariants that the search relies on.
void CheckPrepared(const PreparedTranslation& prepared) {
  CHECK(prepared.model != nullptr);
  CHECK(!prepared.sentences.empty());
  CHECK(prepared.sentences.size() <= size_t{kMaxSentences});
  for (const SourceSentence& sentence : prepared.sentences) {
    const DecodeOptions& options = sentence.options;
    CHECK(sentence.ids.size() <= size_t{FakeModel::kPositions});
    CHECK(options.beam_size >= 1 && options.beam_size <= kMaxBeamSize);
    CHECK(options.n_best >= 1 && options.n_best <= options.beam_size);
    CHECK(options.length_penalty >= 0 &&
          options.length_penalty <= kMaxLengthPenalty);
    CHECK(options.max_length >= 1 &&
          options.max_length <= FakeModel::kPositions);
    size_t tokens = options.prefix.size();
    for (const auto& phrase : options.phrases) tokens += phrase.size();
    CHECK(tokens == 0 || tokens < static_cast<size_t>(options.max_length));
  }
}

void Prepare(const v1::TranslateRequest& request) {
  const ModelAccess models(&Models(), {"anybody", AllGrants()},
                           Role::kTranslate);
  const auto prepared = PrepareTranslation(request, models);
  if (Accepted(prepared.status())) CheckPrepared(*prepared);
}

void Receive(absl::string_view bytes) {
  const auto request = ParseTranslateRequest(Buffer(bytes));
  if (Accepted(request.status())) Prepare(*request);
  const auto streamed = ParseTranslateStreamRequest(Buffer(bytes));
  if (Accepted(streamed.status())) Prepare(streamed->request());
  (void)Accepted(ParseExplainRoutingRequest(Buffer(bytes)).status());
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = gshard::Bytes(data, size);
  gshard::Receive(bytes);
  const auto text = gshard::MessageOfText<gshard::v1::TranslateRequest>(bytes);
  if (text.has_value()) gshard::Receive(text->SerializeAsString());
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  gshard::v1::TranslateRequest message;
  return gshard::MutateMessageText(data, size, max_size, seed, &message);
}
