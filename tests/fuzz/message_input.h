// A protobuf message out of a fuzzer's bytes, in two ways: as they come off the
// wire, and as text, in which more mutations mean something and the corpus can
// be read.

#ifndef TESTS_FUZZ_MESSAGE_INPUT_H_
#define TESTS_FUZZ_MESSAGE_INPUT_H_

#include <google/protobuf/stubs/logging.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "services/config/text_proto.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {

// The message that `text` is, if it is one.
template <typename Message>
std::optional<Message> MessageOfText(absl::string_view text) {
  Message message;
  if (!Accepted(ParseTextProto(text, &message))) return std::nullopt;
  return message;
}

// Of a text that is not UTF-8 protobuf writes a line, which costs more than all
// else.
[[maybe_unused]] inline const bool kQuietProtobuf =
    (google::protobuf::SetLogHandler(nullptr), true);

// Calls use(message) for each of the two that `bytes` are.
template <typename Message, typename Use>
void ForEachMessage(absl::string_view bytes, const Use& use) {
  Message wire;
  if (wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    use(wire);
  }
  if (const auto text = MessageOfText<Message>(bytes)) use(*text);
}

}  // namespace gshard

#endif  // TESTS_FUZZ_MESSAGE_INPUT_H_
