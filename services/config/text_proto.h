// Reading and printing of protobuf text, with errors as values.

#ifndef SERVICES_CONFIG_TEXT_PROTO_H_
#define SERVICES_CONFIG_TEXT_PROTO_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Configuration texts above this size are refused unread.
inline constexpr size_t kMaxTextProtoBytes = 1 << 20;

// Messages within messages; deeper ones are a mistake.
inline constexpr int kMaxTextProtoDepth = 32;

enum class UnknownFields { kMistakes, kIgnored };

// Replaces `message` by what `text` says.
//
// Errors: InvalidArgument, with the position of the first mistake: "line 3,
// column 5: ...". Repeated fields are mistakes, and so are unknown ones, unless
// the text was written by a program that may know more.
absl::Status ParseTextProto(absl::string_view text,
                            google::protobuf::Message* message,
                            UnknownFields unknown = UnknownFields::kMistakes);

// Fields in the order of their numbers, one a line.
std::string PrintTextProto(const google::protobuf::Message& message);

// The bytes of a configuration file. Errors start with the path: NotFound,
// PermissionDenied, or InvalidArgument if it is no readable file or too large.
absl::StatusOr<std::string> ReadTextFile(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_CONFIG_TEXT_PROTO_H_
