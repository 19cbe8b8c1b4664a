#include "services/rpc/security/audit.h"

#include <string>

#include "absl/strings/string_view.h"
#include "services/base/log.h"

namespace gshard {
namespace {

constexpr size_t kMaxBytes = 1024;  // of one field

absl::string_view CutField(absl::string_view text) {
  return text.substr(0, kMaxBytes);
}

}  // namespace

void Audit(const Act& act, const absl::Status& outcome) {
  const std::string text = outcome.ToString();
  Log(outcome.ok() ? LogSeverity::kInfo : LogSeverity::kWarning, "audit",
      {{"act", act.name},
       {"caller", act.requester.caller.name},
       {"request_id", act.requester.request_id},
       {"target", CutField(act.target)},
       {"directory", CutField(act.directory)},
       {"outcome", CutField(text)}});
}

}  // namespace gshard
