// gshard plan: estimates a model's cost.

#include "services/train/plan.h"

#include <ostream>

#include "client/commands.h"
#include "services/base/status_macros.h"
#include "services/config/model_config.h"
#include "services/train/plan_report.h"

namespace gshard {

absl::Status PlanCommand(Arguments arguments, Console& console) {
  std::string config;
  std::string optimizer = "adafactor";
  PlanOptions options;
  int64_t memory_gib = 0;
  bool json = false;
  Flags flags("gshard plan",
              "Says what a model costs: parameters, memory of each router and "
              "expert worker for training and serving, bytes exchanged per "
              "token. Computed from its configuration; nothing is allocated.");
  flags.Text("config", &config, "FILE", "ModelConfig as protobuf text");
  flags.Require("config");
  flags.Integer("routers", &options.routers, 1, 65536, "routers");
  flags.Integer("workers", &options.workers, 1, 65536, "expert workers");
  flags.Integer("tokens_per_microbatch", &options.tokens_per_microbatch, 1,
                16777216, "tokens of a microbatch, on either side");
  flags.Integer("sentence_length", &options.sentence_length, 1, 65536,
                "pieces of a sentence, for the size of attention weights");
  flags.Choice("optimizer", &optimizer, {"adafactor", "adam"},
               "what keeps state beside the parameters");
  flags.Integer("memory_gib", &memory_gib, 0, 1 << 20,
                "GiB that each process has, on its GPU or its host: says what "
                "fits, and how many workers are needed; 0: unknown");
  flags.Bool("json", &json, "print one JSON object");
  flags.Example(
      "gshard plan --config deploy/config/gshard_2048e_36l.textproto --routers "
      "16 --workers 64 --memory_gib 80");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();

  options.memory_bytes = memory_gib << 30;
  if (optimizer == "adam") options.optimizer = AdamConfig();
  ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config));
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, options));
  *console.out << (json ? PlanToJson(plan) : PlanToText(plan));
  return absl::OkStatus();
}

}  // namespace gshard
