#include "services/config/text_proto.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {
namespace {

// Keeps the first error.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!text_.empty()) return;
    // Positions count from 0; -1 stands for the text as a whole.
    text_ = line < 0 ? message
                     : absl::StrCat("line ", line + 1, ", column ", column + 1,
                                    ": ", message);
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status TooLarge(size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected at most ", kMaxTextProtoBytes,
                   " bytes of configuration, got ", bytes));
}

}  // namespace

absl::Status ParseTextProto(absl::string_view text,
                            google::protobuf::Message* message,
                            UnknownFields unknown) {
  if (text.size() > kMaxTextProtoBytes) return TooLarge(text.size());
  google::protobuf::io::ArrayInputStream input(text.data(),
                                               static_cast<int>(text.size()));
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.AllowUnknownField(unknown == UnknownFields::kIgnored);
  parser.SetRecursionLimit(kMaxTextProtoDepth);
  if (!parser.Parse(&input, message)) {
    return absl::InvalidArgumentError(error.text());
  }
  return absl::OkStatus();
}

std::string PrintTextProto(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  CHECK(printer.PrintToString(message, &text));
  return text;
}

absl::StatusOr<std::string> ReadTextFile(absl::string_view path) {
  const std::string name(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(name.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    const int error = errno;
    return absl::ErrnoToStatus(error, name);
  }
  // Reads one byte more than allowed, to detect larger files.
  std::string text(kMaxTextProtoBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get())) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected a file, got: ", std::strerror(errno)));
  }
  if (text.size() > kMaxTextProtoBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", TooLarge(text.size()).message()));
  }
  return text;
}

}  // namespace gshard
