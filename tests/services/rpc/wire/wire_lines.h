// The wire format that a .proto file defines, as lines that can be compared:
// one per field, enumerator and method.
//
//   gshard.v1.Heartbeat.session_loads = 5 repeated gshard.v1.SessionLoad
//   gshard.v1.JoinRequest.heartbeat = 2 gshard.v1.Heartbeat oneof event
//   gshard.v1.MemberRole.MEMBER_ROLE_ROUTER = 1
//   gshard.v1.CoordinatorService.Join(stream gshard.v1.JoinRequest) returns
//       (stream gshard.v1.JoinResponse)                  [all on one line]

#ifndef TESTS_SERVICES_RPC_WIRE_WIRE_LINES_H_
#define TESTS_SERVICES_RPC_WIRE_WIRE_LINES_H_

#include <google/protobuf/descriptor.h>

#include <set>
#include <string>

namespace gshard {

std::set<std::string> WireLines(const google::protobuf::FileDescriptor& file);

}  // namespace gshard

#endif  // TESTS_SERVICES_RPC_WIRE_WIRE_LINES_H_
