// How the lines of the log (log.h) look.

#ifndef SERVICES_BASE_LOG_STYLE_H_
#define SERVICES_BASE_LOG_STYLE_H_

namespace gshard {

enum class LogStyle {
  kJson,   // for machines, the default
  kPlain,  // for a person: gshard: warning: slow: file="/a", seconds=3
};

// Of all lines that follow. Thread-safe.
void SetLogStyle(LogStyle style);

}  // namespace gshard

#endif  // SERVICES_BASE_LOG_STYLE_H_
