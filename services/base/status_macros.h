// RETURN_IF_ERROR and ASSIGN_OR_RETURN, which Debian 12's Abseil lacks.
//
// They keep the success path free of nesting:
//
//   RETURN_IF_ERROR(Validate(config));
//   ASSIGN_OR_RETURN(const Tensor rows, Dispatch(tokens, routing));

#ifndef SERVICES_BASE_STATUS_MACROS_H_
#define SERVICES_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status _status = (expression); !_status.ok()) return _status; \
  } while (false)

#define GSHARD_CONCAT_INNER(a, b) a##b
#define GSHARD_CONCAT(a, b) GSHARD_CONCAT_INNER(a, b)

#define GSHARD_ASSIGN_OR_RETURN(holder, target, expression) \
  auto holder = (expression);                               \
  if (!holder.ok()) return std::move(holder).status();      \
  target = *std::move(holder)

#define ASSIGN_OR_RETURN(target, expression)                           \
  GSHARD_ASSIGN_OR_RETURN(GSHARD_CONCAT(_statusor_, __LINE__), target, \
                          expression)

namespace gshard {

// Prefixes the message with `where`, keeping the code: "step 12: ...".
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view where) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(where, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

}  // namespace gshard

#endif  // SERVICES_BASE_STATUS_MACROS_H_
