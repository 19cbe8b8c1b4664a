#include "services/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/base/log_style.h"

namespace gshard {
namespace {

std::atomic<LogSeverity> threshold{LogSeverity::kInfo};
std::atomic<LogStyle> style{LogStyle::kJson};

std::string& ProcessFields() {
  static std::string* const fields = new std::string;
  return *fields;
}

// Fields of the thread's LogScope, each preceded by a comma.
thread_local std::string scope_fields;

// Bytes of the well-formed UTF-8 sequence that `text` starts with; 0 if it
// starts with none.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return static_cast<unsigned char>(text[i]);
  };
  const size_t length = byte(0) < 0x80            ? 1
                        : byte(0) >> 5 == 0b110   ? 2
                        : byte(0) >> 4 == 0b1110  ? 3
                        : byte(0) >> 3 == 0b11110 ? 4
                                                  : 0;
  if (length <= 1) return length;
  if (text.size() < length) return 0;
  uint32_t point = byte(0) & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 0b10) return 0;
    point = point << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = 0xD800 <= point && point <= 0xDFFF;
  if (point < kLeast[length] || point > 0x10FFFF || surrogate) return 0;
  return length;
}

// `text` as a JSON string. JSON is UTF-8: malformed bytes become U+FFFD.
std::string Quote(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    if (length == 0) {
      quoted += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (length == 1 && c < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
    } else {
      absl::StrAppend(&quoted, text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return quoted + "\"";
}

absl::string_view Name(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kDebug:
      return "DEBUG";
    case LogSeverity::kInfo:
      return "INFO";
    case LogSeverity::kWarning:
      return "WARNING";
    case LogSeverity::kError:
      return "ERROR";
  }
  return "UNKNOWN";
}

std::string JsonLine(LogSeverity severity, absl::string_view message,
                     LogFields fields) {
  std::string line = absl::StrCat(
      "{\"time\":\"",
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(),
                       absl::UTCTimeZone()),
      "\",\"severity\":\"", Name(severity), "\",\"message\":", Quote(message),
      ProcessFields(), scope_fields);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",", Quote(field.key), ":", field.json);
  }
  return line + "}\n";
}

// Values stay quoted, so that input data cannot control a terminal.
std::string PlainLine(LogSeverity severity, absl::string_view message,
                      LogFields fields) {
  std::string line = absl::StrCat(
      "gshard: ", absl::AsciiStrToLower(Name(severity)), ": ", message);
  const char* separator = ": ";
  for (const LogField& field : fields) {
    absl::StrAppend(&line, separator, field.key, "=", field.json);
    separator = ", ";
  }
  return line + "\n";
}

}  // namespace

LogField::LogField(absl::string_view key, absl::string_view value)
    : key(key), json(Quote(value)) {}
LogField::LogField(absl::string_view key, bool value)
    : key(key), json(value ? "true" : "false") {}
LogField::LogField(absl::string_view key, double value)
    : key(key),
      json(std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null") {}
LogField::LogField(absl::string_view key, int64_t value, int)
    : key(key), json(absl::StrCat(value)) {}

void SetLogThreshold(LogSeverity severity) { threshold = severity; }

void SetLogStyle(LogStyle wanted) { style = wanted; }

void SetLogField(const LogField& field) {
  absl::StrAppend(&ProcessFields(), ",", Quote(field.key), ":", field.json);
}

LogScope::LogScope(LogFields fields) : outer_(scope_fields) {
  scope_fields.clear();
  for (const LogField& field : fields) {
    absl::StrAppend(&scope_fields, ",", Quote(field.key), ":", field.json);
  }
}

LogScope::~LogScope() { scope_fields = outer_; }

void Log(LogSeverity severity, absl::string_view message, LogFields fields) {
  if (severity < threshold.load(std::memory_order_relaxed)) return;
  const std::string line = style.load() == LogStyle::kPlain
                               ? PlainLine(severity, message, fields)
                               : JsonLine(severity, message, fields);
  // One write per line keeps lines of different threads and processes intact. A
  // failed write is ignored: there is nowhere to report it.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace gshard
