#include "tests/services/rpc/wire/wire_lines.h"

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

std::string TypeName(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

void AddEnum(const EnumDescriptor& type, std::set<std::string>* lines) {
  for (int i = 0; i < type.value_count(); ++i) {
    lines->insert(absl::StrCat(type.full_name(), ".", type.value(i)->name(),
                               " = ", type.value(i)->number()));
  }
}

void AddMessage(const Descriptor& message, std::set<std::string>* lines) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const auto* const oneof = field.real_containing_oneof();
    lines->insert(absl::StrCat(
        field.full_name(), " = ", field.number(), " ",
        field.is_repeated() ? "repeated " : "", TypeName(field),
        oneof == nullptr ? "" : absl::StrCat(" oneof ", oneof->name())));
  }
  for (int i = 0; i < message.reserved_name_count(); ++i) {
    lines->insert(absl::StrCat(message.full_name(), ".",
                               message.reserved_name(i), " = reserved"));
  }
  for (int i = 0; i < message.enum_type_count(); ++i) {
    AddEnum(*message.enum_type(i), lines);
  }
  for (int i = 0; i < message.nested_type_count(); ++i) {
    AddMessage(*message.nested_type(i), lines);
  }
}

void AddService(const ServiceDescriptor& service,
                std::set<std::string>* lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    lines->insert(absl::StrCat(method.full_name(), "(",
                               method.client_streaming() ? "stream " : "",
                               method.input_type()->full_name(), ") returns (",
                               method.server_streaming() ? "stream " : "",
                               method.output_type()->full_name(), ")"));
  }
}

}  // namespace

std::set<std::string> WireLines(const FileDescriptor& file) {
  std::set<std::string> lines;
  for (int i = 0; i < file.message_type_count(); ++i) {
    AddMessage(*file.message_type(i), &lines);
  }
  for (int i = 0; i < file.enum_type_count(); ++i) {
    AddEnum(*file.enum_type(i), &lines);
  }
  for (int i = 0; i < file.service_count(); ++i) {
    AddService(*file.service(i), &lines);
  }
  return lines;
}

}  // namespace gshard
