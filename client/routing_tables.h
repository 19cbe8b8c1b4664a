// The response of ExplainRouting as human-readable tables.

#ifndef CLIENT_ROUTING_TABLES_H_
#define CLIENT_ROUTING_TABLES_H_

#include <string>

#include "proto/gshard/v1/translation.pb.h"

namespace gshard {

// A table per stack, with a row per token and a column per layer, with both
// choices and their weights; then the visited experts, busiest first, and the
// workers that hold them.
std::string RoutingTables(const v1::ExplainRoutingResponse& routing);

}  // namespace gshard

#endif  // CLIENT_ROUTING_TABLES_H_
