// The output of `gshard partition` for one partitioned program: human-readable
// tables, and JSON.

#ifndef CLIENT_PARTITION_SUMMARY_H_
#define CLIENT_PARTITION_SUMMARY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "services/partition/report/partition_report.h"
#include "services/partition/partitioner.h"

namespace gshard {

struct PartitionSummary {
  std::string program;
  double seconds = 0;   // taken by partitioning
  Partitioned partitioned;
  PartitionReport report;
  int64_t norm_scales = 0;  // part of the parameters; the paper omits them
  // Tokens of a step, over all routers: pairs of a source and a target token in
  // training.
  int64_t tokens = 1;
};

// Time, nodes, parameters, memory, and communication by kind.
std::string SummaryToText(const PartitionSummary& summary);

// Memory alone; one line per collective and crossing.
std::string MemoryToText(const PartitionSummary& summary);
std::string CommunicationToText(const PartitionSummary& summary);

// All numbers are exact.
nlohmann::ordered_json SummaryToJson(const PartitionSummary& summary);

}  // namespace gshard

#endif  // CLIENT_PARTITION_SUMMARY_H_
