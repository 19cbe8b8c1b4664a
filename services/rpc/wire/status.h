// Errors between absl::Status (inside), grpc::Status (at the edge of a call)
// and gshard.v1.Status (inside a stream's messages). Codes have the same
// numbers in all three; an unknown number becomes UNKNOWN. Delays before a
// retry (retry_delay.h) travel in all: error_details.proto.

#ifndef SERVICES_RPC_WIRE_STATUS_H_
#define SERVICES_RPC_WIRE_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "proto/gshard/v1/status.pb.h"

namespace gshard {

// Messages longer than 4096 bytes are cut, at the end of a UTF-8 character:
// they travel in trailers, whose size gRPC limits.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

v1::Status ToProtoStatus(const absl::Status& status);
absl::Status FromProtoStatus(const v1::Status& status);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_STATUS_H_
