// Reading and printing of protobuf text, with errors as values.

#ifndef SERVICES_CONFIG_TEXT_PROTO_H_
#define SERVICES_CONFIG_TEXT_PROTO_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Larger configuration texts are refused unread.
inline constexpr size_t kMaxTextProtoBytes = 1 << 20;

// Maximum nesting of messages.
inline constexpr int kMaxTextProtoDepth = 32;

enum class UnknownFields { kMistakes, kIgnored };

// Parses `text` into `message`, replacing its content.
//
// Errors: InvalidArgument, with the position of the first error: "line 3,
// column 5: ...". Repeated and unknown fields are errors, the latter unless the
// text was written by a program that may know more.
absl::Status ParseTextProto(absl::string_view text,
                            google::protobuf::Message* message,
                            UnknownFields unknown = UnknownFields::kMistakes);

// Prints fields in the order of their numbers, one per line.
std::string PrintTextProto(const google::protobuf::Message& message);

// The bytes of a configuration file. Errors start with the path: NotFound,
// PermissionDenied, or InvalidArgument if it is not a readable file or too
// large.
absl::StatusOr<std::string> ReadTextFile(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_CONFIG_TEXT_PROTO_H_
