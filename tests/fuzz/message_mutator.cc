#include "tests/fuzz/message_mutator.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"
#include "services/config/text_proto.h"

// libFuzzer's own mutator, null where libFuzzer is not linked.
extern "C" __attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t* data,
                                                         size_t size,
                                                         size_t max_size);

namespace gshard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

size_t Below(FuzzRandom& random, size_t end) { return random() % end; }

template <typename T>
T Integer(FuzzRandom& random) {
  using Limits = std::numeric_limits<T>;
  const T odd[] = {T{0},
                   T{1},
                   T{2},
                   T{3},
                   T{64},
                   T{255},
                   T{65536},
                   static_cast<T>(-1),
                   Limits::min(),
                   Limits::max(),
                   Limits::max() / 2};
  return Below(random, 2) == 0 ? odd[Below(random, std::size(odd))]
                               : static_cast<T>(Below(random, 16));
}

double Real(FuzzRandom& random) {
  const double odd[] = {0,     -0.0, 1,        -1,        0.5,
                        1e-40, 1e38, INFINITY, -INFINITY, NAN};
  return odd[Below(random, std::size(odd))];
}

std::string Text(FuzzRandom& random, std::string text) {
  const absl::string_view odd[] = {"",         " ",
                                   "a",        "Hallo Welt",
                                   "de",       "m@1",
                                   "\xC3\xA4", "\xFF",
                                   "\t",       "/",
                                   "..",       "\xE2\x80\x8B",
                                   "small/1",  "0000000000000000"};
  const absl::string_view piece = odd[Below(random, std::size(odd))];
  switch (Below(random, 4)) {
    case 0:
      return std::string(piece);
    case 1:
      return text.insert(Below(random, text.size() + 1), piece.data(),
                         piece.size());
    case 2:
      return text.erase(Below(random, text.size() + 1), 1 + Below(random, 4));
    default:
      return text.size() < 4096 ? text + text : text;
  }
}

// Sets a field that is not a message. In a repeated field, sets element
// `index`, or adds one if `index` is -1.
void SetScalar(FuzzRandom& random, const FieldDescriptor* field, int index,
               Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const auto put = [&](auto set, auto set_repeated, auto add, auto value) {
    if (!field->is_repeated()) {
      (reflection.*set)(message, field, value);
    } else if (index >= 0) {
      (reflection.*set_repeated)(message, field, index, value);
    } else {
      (reflection.*add)(message, field, value);
    }
  };
  using R = Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&R::SetInt32, &R::SetRepeatedInt32, &R::AddInt32,
                 Integer<int32_t>(random));
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&R::SetInt64, &R::SetRepeatedInt64, &R::AddInt64,
                 Integer<int64_t>(random));
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(&R::SetUInt32, &R::SetRepeatedUInt32, &R::AddUInt32,
                 Integer<uint32_t>(random));
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&R::SetUInt64, &R::SetRepeatedUInt64, &R::AddUInt64,
                 Integer<uint64_t>(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&R::SetFloat, &R::SetRepeatedFloat, &R::AddFloat,
                 static_cast<float>(Real(random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(&R::SetDouble, &R::SetRepeatedDouble, &R::AddDouble,
                 Real(random));
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(&R::SetBool, &R::SetRepeatedBool, &R::AddBool,
                 Below(random, 2) == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return put(&R::SetEnumValue, &R::SetRepeatedEnumValue, &R::AddEnumValue,
                 static_cast<int>(
                     Below(random, field->enum_type()->value_count() + 1)));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string old =
          !field->is_repeated() ? reflection.GetString(*message, field)
          : index >= 0 ? reflection.GetRepeatedString(*message, field, index)
                       : "";
      const std::string text = Text(random, old);
      if (!field->is_repeated()) {
        return reflection.SetString(message, field, text);
      }
      return index >= 0
                 ? reflection.SetRepeatedString(message, field, index, text)
                 : reflection.AddString(message, field, text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

void MutateRepeated(FuzzRandom& random, const FieldDescriptor* field,
                    Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  const int size = reflection.FieldSize(*message, field);
  if (size == 0 || Below(random, 4) == 0) {
    if (!messages) return SetScalar(random, field, -1, message);
    Message* const added = reflection.AddMessage(message, field);
    // A copy of an existing element is more often valid than an empty one.
    if (size > 0) {
      added->CopyFrom(reflection.GetRepeatedMessage(
          *message, field, static_cast<int>(Below(random, size))));
    }
    return;
  }
  const int index = static_cast<int>(Below(random, size));
  switch (Below(random, 6)) {
    case 0:
      return reflection.RemoveLast(message, field);
    case 1:
      return reflection.SwapElements(message, field, index,
                                     static_cast<int>(Below(random, size)));
    default:
      return messages ? MutateMessage(random, reflection.MutableRepeatedMessage(
                                                  message, field, index))
                      : SetScalar(random, field, index, message);
  }
}

}  // namespace

void MutateMessage(FuzzRandom& random, Message* message) {
  const auto& descriptor = *message->GetDescriptor();
  if (descriptor.field_count() == 0) return;
  const FieldDescriptor* const field = descriptor.field(
      static_cast<int>(Below(random, descriptor.field_count())));
  const Reflection& reflection = *message->GetReflection();
  if (field->is_repeated()) return MutateRepeated(random, field, message);
  if (reflection.HasField(*message, field) && Below(random, 6) == 0) {
    return reflection.ClearField(message, field);
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return SetScalar(random, field, -1, message);
  }
  MutateMessage(random, reflection.MutableMessage(message, field));
}

size_t MutateBytes(FuzzRandom& random, uint8_t* data, size_t size,
                   size_t max_size) {
  if (LLVMFuzzerMutate != nullptr) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  if (size > 0) data[Below(random, size)] = static_cast<uint8_t>(random());
  return size;
}

size_t MutateMessageText(uint8_t* data, size_t size, size_t max_size,
                         unsigned seed, Message* message) {
  FuzzRandom random(seed);
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  // Some mutations are of the text itself.
  if (Below(random, 8) == 0 || !ParseTextProto(bytes, message).ok()) {
    return MutateBytes(random, data, size, max_size);
  }
  for (size_t left = 1 + Below(random, 4); left > 0; --left) {
    MutateMessage(random, message);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(*message, &text);
  if (text.size() > max_size) return MutateBytes(random, data, size, max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

}  // namespace gshard
