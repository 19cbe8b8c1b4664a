#include "client/proto_json.h"

#include <google/protobuf/util/json_util.h>

namespace gshard {
namespace {

std::string ToJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = indented;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &json, options);
  // Fails only for message types that are not used here (Any).
  return status.ok() ? json : "{}";
}

}  // namespace

std::string ProtoToJsonLine(const google::protobuf::Message& message) {
  return ToJson(message, /*indented=*/false);
}

std::string ProtoToJsonText(const google::protobuf::Message& message) {
  return ToJson(message, /*indented=*/true);
}

}  // namespace gshard
