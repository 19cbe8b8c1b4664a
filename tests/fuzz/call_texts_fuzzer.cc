// Text around a call: trace context and request id in its metadata, a peer's
// error with details, the file of callers and their grants, and the HTTP
// headers of scrapers, in collectors' answers and for collectors.

#include <string>

#include "absl/strings/match.h"
#include "services/http/http_time.h"
#include "services/metrics/metrics_format.h"
#include "services/rpc/security/auth_table.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/trace_context.h"
#include "services/trace/otlp_headers.h"
#include "tests/fuzz/message_input.h"

namespace gshard {
namespace {

void UseTrace(absl::string_view text) {
  const TraceContext parsed = ParseTraceparent(text);
  if (!parsed.trace_id.empty()) {
    CHECK(parsed.trace_id.size() == 32 && parsed.span_id.size() == 16);
    CHECK(ParseTraceparent(parsed.Traceparent()) == parsed);
  }
  const TraceContext next = ContinueTrace(
      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", text);
  CHECK(next.state.empty() || IsTracestate(next.state));
  CHECK(next.state.size() <= kMaxTracestateBytes);
  CHECK(!ContinueTrace(text, text).trace_id.empty());
  if (IsRequestId(text)) CHECK(text.size() <= 128);
}

void UseAuthFile(absl::string_view text) {
  const auto table = AuthTable::Parse(text);
  if (!Accepted(table.status())) return;
  CHECK(table->size() <= kMaxAuthLines);
  const auto caller =
      table->Identify({.authorization = std::string(text.substr(0, 40)),
                       .certificate_names = {std::string(text)}});
  if (!Accepted(caller.status())) return;
  const std::string grants = GrantsText(caller->grants);
  CHECK(ParseGrants(grants).value() == caller->grants);
}

// The model or directory that a caller asks for is hostile input, too.
void UseCaller(absl::string_view text) {
  const auto grants = ParseGrants(text.substr(0, text.find('\n')));
  const Caller caller{"a", grants.ok() ? *grants : Grants()};
  for (const Role role : AllRoles()) {
    CHECK(MayUseModel(caller, role, text) ==
          CheckModel(caller, role, text).ok());
  }
  const Caller limited{"a", {{Role::kTrain, "/data/team-a"}}};
  CHECK(!MayTrainIn(limited, text) || absl::StartsWith(text, "/data/team-a"));
}

void UseStatus(absl::string_view bytes) {
  const std::string text(bytes);
  const absl::Status status = FromGrpcStatus(
      grpc::Status(grpc::StatusCode::UNAVAILABLE, "a peer's words", text));
  CHECK(absl::IsUnavailable(status));
  const absl::Status cut =
      FromGrpcStatus(ToGrpcStatus(absl::InvalidArgumentError(text)));
  CHECK(absl::IsInvalidArgument(cut));
  CHECK(cut.message().size() <= 4096);
  v1::Status message;
  if (message.ParseFromString(text)) {
    (void)ToGrpcStatus(FromProtoStatus(message));
  }
}

void UseHeaders(absl::string_view text) {
  (void)ContentType(AcceptedFormat(text));
  const absl::Time now = absl::FromUnixSeconds(784111777);
  const auto wait = ParseRetryAfter(text, now);
  CHECK(!wait.has_value() || *wait >= absl::ZeroDuration());
  const auto headers = ParseOtlpHeaders(text);
  if (!Accepted(headers.status())) return;
  CHECK(headers->size() <= kMaxOtlpHeaders);
  for (const std::string& line : *headers) {
    CHECK(absl::StrContains(line, ": "));
    CHECK(line.find_first_of("\r\n") == line.npos);
  }
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = gshard::Bytes(data, size);
  gshard::UseTrace(bytes);
  gshard::UseAuthFile(bytes);
  gshard::UseCaller(bytes);
  gshard::UseStatus(bytes);
  gshard::UseHeaders(bytes);
  return 0;
}
