// What `gshard partition` prints of one partitioned program: tables for people
// and JSON for programs.

#ifndef CLIENT_PARTITION_SUMMARY_H_
#define CLIENT_PARTITION_SUMMARY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "services/partition/report/partition_report.h"
#include "services/partition/partitioner.h"

namespace gshard {

struct PartitionSummary {
  std::string program;  // its name
  double seconds = 0;   // that partitioning took
  Partitioned partitioned;
  PartitionReport report;
  int64_t norm_scales = 0;  // of the parameters; the paper does not count them
  // Tokens of a step, of all routers together: pairs of a source and a target
  // token in training.
  int64_t tokens = 1;
};

// Time, nodes, parameters, memory, and communication by kind.
std::string SummaryToText(const PartitionSummary& summary);

// Memory alone; each collective and crossing in a line.
std::string MemoryToText(const PartitionSummary& summary);
std::string CommunicationToText(const PartitionSummary& summary);

// Every number exact.
nlohmann::ordered_json SummaryToJson(const PartitionSummary& summary);

}  // namespace gshard

#endif  // CLIENT_PARTITION_SUMMARY_H_
