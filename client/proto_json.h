// Messages as JSON, in protobuf's own mapping: field names as in the .proto
// files, all fields present, 64-bit numbers as text, enums by name.

#ifndef CLIENT_PROTO_JSON_H_
#define CLIENT_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <string>

namespace gshard {

// One line without line feed, or indented lines.
std::string ProtoToJsonLine(const google::protobuf::Message& message);
std::string ProtoToJsonText(const google::protobuf::Message& message);

}  // namespace gshard

#endif  // CLIENT_PROTO_JSON_H_
