// The answer of ExplainRouting as tables for people.

#ifndef CLIENT_ROUTING_TABLES_H_
#define CLIENT_ROUTING_TABLES_H_

#include <string>

#include "proto/gshard/v1/translation.pb.h"

namespace gshard {

// A table for each stack, a token a row and a layer a column, with both choices
// and their weights; then the experts that were visited, busiest first, and the
// workers that hold them.
std::string RoutingTables(const v1::ExplainRoutingResponse& routing);

}  // namespace gshard

#endif  // CLIENT_ROUTING_TABLES_H_
