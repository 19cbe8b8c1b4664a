// Structured logs: one JSON object per line on standard error.
//
//   LogInfo("step committed", {{"step", 12}, {"loss", 3.25}});
//   {"time":"...","severity":"INFO","message":"step committed","step":12,...}
//
// The message is a constant phrase; variable data goes into fields. Never log
// users' text or secrets. Thread-safe: each line is one write.

#ifndef SERVICES_BASE_LOG_H_
#define SERVICES_BASE_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gshard {

enum class LogSeverity { kDebug, kInfo, kWarning, kError };

// One key with its value, already written as JSON.
struct LogField {
  LogField(absl::string_view key, absl::string_view value);
  LogField(absl::string_view key, const char* value)
      : LogField(key, absl::string_view(value)) {}
  LogField(absl::string_view key, const std::string& value)
      : LogField(key, absl::string_view(value)) {}
  LogField(absl::string_view key, const absl::Status& value)
      : LogField(key, value.ToString()) {}
  LogField(absl::string_view key, bool value);
  LogField(absl::string_view key, double value);
  template <typename T, typename = std::enable_if_t<std::is_integral_v<T> &&
                                                    !std::is_same_v<T, bool>>>
  LogField(absl::string_view key, T value)
      : LogField(key, static_cast<int64_t>(value), 0) {}

  std::string key;
  std::string json;

 private:
  LogField(absl::string_view key, int64_t value, int);
};

using LogFields = std::initializer_list<LogField>;

void Log(LogSeverity severity, absl::string_view message, LogFields fields);

inline void LogInfo(absl::string_view message, LogFields fields = {}) {
  Log(LogSeverity::kInfo, message, fields);
}
inline void LogWarning(absl::string_view message, LogFields fields = {}) {
  Log(LogSeverity::kWarning, message, fields);
}
inline void LogError(absl::string_view message, LogFields fields = {}) {
  Log(LogSeverity::kError, message, fields);
}

// Lines below `severity` are not written. Default: kInfo.
void SetLogThreshold(LogSeverity severity);

// A field that every later line of the process carries, e.g. its role. Call
// before threads start.
void SetLogField(const LogField& field);

// Fields that every line of this thread carries as long as the object lives,
// instead of those of the scope around it.
class LogScope {
 public:
  explicit LogScope(LogFields fields);
  ~LogScope();

  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const std::string outer_;
};

}  // namespace gshard

#endif  // SERVICES_BASE_LOG_H_
