// JSON as commands print it. Of text that is not UTF-8, as a path may be, each
// byte becomes U+FFFD: JSON has no other text.

#ifndef CLIENT_JSON_OUTPUT_H_
#define CLIENT_JSON_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace gshard {

// One line without line feed, or indented lines.
inline std::string JsonLine(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gshard

#endif  // CLIENT_JSON_OUTPUT_H_
