// Parses a fuzzer's bytes as a protobuf message in two ways: in wire format,
// and as text, where more mutations are meaningful and the corpus is readable.

#ifndef TESTS_FUZZ_MESSAGE_INPUT_H_
#define TESTS_FUZZ_MESSAGE_INPUT_H_

#include <google/protobuf/stubs/logging.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "services/config/text_proto.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {

// The message that `text` holds, if it parses.
template <typename Message>
std::optional<Message> MessageOfText(absl::string_view text) {
  Message message;
  if (!Accepted(ParseTextProto(text, &message))) return std::nullopt;
  return message;
}

// Protobuf would log a line for each text that is not UTF-8, which costs more
// than all else.
[[maybe_unused]] inline const bool kQuietProtobuf =
    (google::protobuf::SetLogHandler(nullptr), true);

// Calls use(message) for each of the two formats in which `bytes` parse.
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
