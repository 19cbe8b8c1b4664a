// Conversions of errors between absl::Status (inside a process), grpc::Status
// (at the edge of a call) and gshard.v1.Status (inside a stream's messages).
// Codes have the same numbers in all three; an unknown number becomes UNKNOWN.
// All three carry the delay before a retry (retry_delay.h); see
// error_details.proto.

#ifndef SERVICES_RPC_WIRE_STATUS_H_
#define SERVICES_RPC_WIRE_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "proto/gshard/v1/status.pb.h"

namespace gshard {

// Messages longer than 4096 bytes are truncated, at a UTF-8 character boundary:
// they travel in trailers, whose size gRPC limits.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

v1::Status ToProtoStatus(const absl::Status& status);
absl::Status FromProtoStatus(const v1::Status& status);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_STATUS_H_
