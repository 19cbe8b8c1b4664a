#include "services/checkpoint/json_text.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using nlohmann::json;

// Builds the value during parsing, and stops at errors that the value would not
// show: duplicate keys and exceeded limits.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  StrictBuilder(json& root, const JsonLimits& limits)
      : root_(root), limits_(limits) {}

  bool null() override { return Place(nullptr); }
  bool boolean(bool value) override { return Place(value); }
  bool number_integer(int64_t value) override { return Place(value); }
  bool number_unsigned(uint64_t value) override { return Place(value); }
  bool number_float(double value, const std::string& /*text*/) override {
    return Place(value);
  }
  bool string(std::string& value) override { return Place(std::move(value)); }
  bool binary(json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override {
    return Place(json::object()) && Enter();
  }
  bool start_array(std::size_t /*size*/) override {
    return Place(json::array()) && Enter();
  }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(std::string& value) override {
    if (around_.back()->contains(value)) {
      return Fail(absl::StrCat("wrong: the key '", absl::CHexEscape(value),
                               "' occurs twice"));
    }
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail(absl::StrCat("not JSON at byte ", position));
  }

  const std::string& problem() const { return problem_; }

 private:
  bool Place(json value) {
    if (++values_ > limits_.max_values) {
      return Fail(
          absl::StrCat("too long: over ", limits_.max_values, " values"));
    }
    if (around_.empty()) {
      root_ = std::move(value);
      last_ = &root_;
    } else if (around_.back()->is_array()) {
      last_ = &around_.back()->emplace_back(std::move(value));
    } else {
      last_ = &(*around_.back())[key_];
      *last_ = std::move(value);
    }
    return true;
  }
  bool Enter() {
    around_.push_back(last_);
    return static_cast<int>(around_.size()) <= limits_.max_depth ||
           Fail(absl::StrCat("nested deeper than ", limits_.max_depth));
  }
  bool Leave() {
    around_.pop_back();
    return true;
  }
  bool Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  json& root_;
  const JsonLimits limits_;
  int64_t values_ = 0;
  std::vector<json*> around_;  // the objects and arrays not yet closed
  json* last_ = nullptr;       // last value added
  std::string key_;
  std::string problem_;
};

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text,
                                     const JsonLimits& limits) {
  json value;
  StrictBuilder builder(value, limits);
  const bool parsed =
      json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!parsed) {
    return absl::DataLossError(absl::StrCat(
        "expected a JSON object, got text that is ", builder.problem()));
  }
  if (!value.is_object()) {
    return absl::DataLossError(
        absl::StrCat("expected a JSON object, got ", value.type_name()));
  }
  return value;
}

std::string FormatJson(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<std::string> JsonString(const json& object,
                                       const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return absl::DataLossError(
        absl::StrCat("expected a string '", key, "', got ",
                     found == object.end() ? "nothing" : found->type_name()));
  }
  return found->get<std::string>();
}

absl::StatusOr<int64_t> JsonCount(const json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() ||
      found->get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::DataLossError(
        absl::StrCat("expected an integer '", key, "' >= 0, got ",
                     found == object.end() ? "nothing" : FormatJson(*found)));
  }
  return found->get<int64_t>();
}

}  // namespace gshard
