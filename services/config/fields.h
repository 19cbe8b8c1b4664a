// Visitors over the fields of a configuration struct and its protobuf message.
//
// Each struct lists its fields once, in a function
//
//   template <typename Visitor, typename Struct>
//   void VisitFields(Visitor& visitor, Struct& config)
//
// that gives every field its name in the message and its range. FieldReader
// copies a message into the struct, FieldWriter the struct into a message, and
// FieldChecker checks the ranges. An enum with value n is number n + 1 in the
// message, whose 0 means "not set".
//
// Only services/config/*.cc include this header, since it depends on protobuf.

#ifndef SERVICES_CONFIG_FIELDS_H_
#define SERVICES_CONFIG_FIELDS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/base/check.h"
#include "services/config/interval.h"

namespace gshard {

// Format of a text field.
enum class TextKind {
  kName,      // see IsName
  kLanguage,  // see IsLanguageName
  kPath,      // 1 to 4096 bytes without NUL; no URL but s3://
};
enum class Presence { kRequired, kOptional };  // kOptional: may be empty

// Copies the fields that are set in a message; others keep their values. Does
// not validate.
class FieldReader {
 public:
  // `message` must outlive the reader.
  explicit FieldReader(const google::protobuf::Message& message)
      : message_(message), reflection_(*message.GetReflection()) {}

  void Integer(const char* name, int64_t& field, int64_t, int64_t) {
    if (const auto* f = Find(name)) field = reflection_.GetInt64(message_, f);
  }
  void Real(const char* name, double& field, Interval) {
    if (const auto* f = Find(name)) field = reflection_.GetDouble(message_, f);
  }
  void Bool(const char* name, bool& field) {
    if (const auto* f = Find(name)) field = reflection_.GetBool(message_, f);
  }
  void Text(const char* name, std::string& field, TextKind, Presence) {
    if (const auto* f = Find(name)) field = reflection_.GetString(message_, f);
  }
  template <typename T>
  void Enum(const char* name, T& field,
            const google::protobuf::EnumDescriptor*) {
    if (const auto* f = Find(name)) {
      // An undefined number may be INT_MIN.
      const auto number =
          static_cast<uint32_t>(reflection_.GetEnumValue(message_, f));
      field = static_cast<T>(static_cast<int>(number - 1));
    }
  }
  template <typename T>
  void Group(const char* name, T& field) {
    if (const auto* f = Find(name)) {
      FieldReader reader(reflection_.GetMessage(message_, f));
      VisitFields(reader, field);
    }
  }
  template <typename T>
  void Groups(const char* name, std::vector<T>& field, size_t) {
    const auto* f = message_.GetDescriptor()->FindFieldByName(name);
    CHECK(f != nullptr);
    for (int i = 0; i < reflection_.FieldSize(message_, f); ++i) {
      FieldReader reader(reflection_.GetRepeatedMessage(message_, f, i));
      VisitFields(reader, field.emplace_back());
    }
  }
  template <typename T, typename... Ts>
  void Alternative(const char* name, std::variant<Ts...>& field) {
    if (Find(name) == nullptr) return;
    field = T();
    Group(name, std::get<T>(field));
  }

 private:
  // Null if the message does not have the field.
  const google::protobuf::FieldDescriptor* Find(const char* name) const {
    const auto* field = message_.GetDescriptor()->FindFieldByName(name);
    CHECK(field != nullptr);
    return reflection_.HasField(message_, field) ? field : nullptr;
  }

  const google::protobuf::Message& message_;
  const google::protobuf::Reflection& reflection_;
};

// Sets every field of a message.
class FieldWriter {
 public:
  // `message` must outlive the writer.
  explicit FieldWriter(google::protobuf::Message* message)
      : message_(message), reflection_(*message->GetReflection()) {}

  void Integer(const char* name, int64_t field, int64_t, int64_t) {
    reflection_.SetInt64(message_, Find(name), field);
  }
  void Real(const char* name, double field, Interval) {
    reflection_.SetDouble(message_, Find(name), field);
  }
  void Bool(const char* name, bool field) {
    reflection_.SetBool(message_, Find(name), field);
  }
  void Text(const char* name, const std::string& field, TextKind, Presence) {
    reflection_.SetString(message_, Find(name), field);
  }
  template <typename T>
  void Enum(const char* name, T field,
            const google::protobuf::EnumDescriptor*) {
    reflection_.SetEnumValue(message_, Find(name), static_cast<int>(field) + 1);
  }
  template <typename T>
  void Group(const char* name, T& field) {
    FieldWriter writer(reflection_.MutableMessage(message_, Find(name)));
    VisitFields(writer, field);
  }
  template <typename T>
  void Groups(const char* name, const std::vector<T>& field, size_t) {
    for (const T& group : field) {
      FieldWriter writer(reflection_.AddMessage(message_, Find(name)));
      VisitFields(writer, group);
    }
  }
  template <typename T, typename... Ts>
  void Alternative(const char* name, const std::variant<Ts...>& field) {
    if (const T* value = std::get_if<T>(&field)) Group(name, *value);
  }

 private:
  const google::protobuf::FieldDescriptor* Find(const char* name) const {
    const auto* field = message_->GetDescriptor()->FindFieldByName(name);
    CHECK(field != nullptr);
    return field;
  }

  google::protobuf::Message* message_;
  const google::protobuf::Reflection& reflection_;
};

// Finds the first field outside its range.
class FieldChecker {
 public:
  // `prefix` is prepended to field names in errors: "gate.".
  explicit FieldChecker(std::string prefix = "") : prefix_(std::move(prefix)) {}

  void Integer(const char* name, int64_t field, int64_t low, int64_t high);
  void Real(const char* name, double field, Interval interval);
  void Bool(const char*, bool) {}
  void Text(const char* name, const std::string& field, TextKind kind,
            Presence presence);
  template <typename T>
  void Enum(const char* name, T field,
            const google::protobuf::EnumDescriptor* values) {
    const auto number = static_cast<uint32_t>(static_cast<int>(field)) + 1;
    EnumNumber(name, static_cast<int>(number), values);
  }
  template <typename T>
  void Group(const char* name, T& field) {
    FieldChecker checker(prefix_ + name + ".");
    VisitFields(checker, field);
    if (status_.ok()) status_ = checker.status();
  }
  template <typename T>
  void Groups(const char* name, const std::vector<T>& field, size_t most) {
    if (field.size() > most) {
      Fail(name, "at most " + std::to_string(most),
           std::to_string(field.size()));
    }
    for (size_t i = 0; i < field.size() && status_.ok(); ++i) {
      Group(absl::StrCat(name, "[", i, "]").c_str(), field[i]);
    }
  }
  template <typename T, typename... Ts>
  void Alternative(const char* name, const std::variant<Ts...>& field) {
    if (const T* value = std::get_if<T>(&field)) Group(name, *value);
  }

  // Ok, or InvalidArgument: "gate.min_capacity: expected 0 to 65536, got -1".
  const absl::Status& status() const { return status_; }

 private:
  void EnumNumber(const char* name, int number,
                  const google::protobuf::EnumDescriptor* values);
  void Fail(const char* name, absl::string_view expected,
            absl::string_view got);

  std::string prefix_;
  absl::Status status_;
};

}  // namespace gshard

#endif  // SERVICES_CONFIG_FIELDS_H_
