// Format of log lines (log.h).

#ifndef SERVICES_BASE_LOG_STYLE_H_
#define SERVICES_BASE_LOG_STYLE_H_

namespace gshard {

enum class LogStyle {
  kJson,   // for machines, the default
  kPlain,  // for a person: gshard: warning: slow: file="/a", seconds=3
};

// Applies to all later lines. Thread-safe.
void SetLogStyle(LogStyle style);

}  // namespace gshard

#endif  // SERVICES_BASE_LOG_STYLE_H_
