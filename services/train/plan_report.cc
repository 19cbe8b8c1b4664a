#include "services/train/plan_report.h"

#include <nlohmann/json.hpp>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/base/amount_text.h"
#include "services/base/table.h"

namespace gshard {
namespace {

using Json = nlohmann::ordered_json;

// "619.37 B": billions, millions or thousands.
std::string Rounded(int64_t count) {
  if (count >= 1'000'000'000) return absl::StrFormat("%.2f B", count / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.2f M", count / 1e6);
  if (count >= 1'000) return absl::StrFormat("%.2f k", count / 1e3);
  return absl::StrCat(count);
}

// "1 router", "2 routers".
std::string Count(int64_t count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

const char* OptimizerName(const Plan& plan) {
  return std::holds_alternative<AdamConfig>(plan.options.optimizer)
             ? "adam"
             : "adafactor";
}

std::string Summary(const Plan& plan) {
  const ModelConfig& model = plan.model;
  const int64_t moe_layers = plan.encoder_moe_layers + plan.decoder_moe_layers;
  std::string text = absl::StrCat("model ", model.name, ": ",
                                  model.encoder_layers, " encoder and ",
                                  Count(model.decoder_layers, "decoder layer"));
  if (moe_layers == 0) {
    absl::StrAppend(&text, ", all dense\n");
  } else {
    absl::StrAppend(&text, ",\n  ", moe_layers, " of them MoE layers of ",
                    model.experts, " experts (",
                    GroupedText(plan.total_experts), " in all)\n");
  }
  absl::StrAppend(&text, "on ", Count(plan.options.routers, "router"), " and ",
                  Count(plan.options.workers, "expert worker"));
  if (moe_layers > 0) {
    absl::StrAppend(&text, ", ", plan.most_experts_per_worker);
    if (plan.fewest_experts_per_worker != plan.most_experts_per_worker) {
      absl::StrAppend(&text, " or ", plan.fewest_experts_per_worker);
    }
    absl::StrAppend(&text, " experts of each layer a worker");
  }
  absl::StrAppend(&text, "\n");
  return text;
}

Table ParameterTable(const Plan& plan) {
  const ParameterCounts& counts = plan.parameters;
  Table table({"PARAMETERS", "exact", "rounded"}, {1, 2});
  const auto add = [&table](const char* name, int64_t count) {
    table.AddRow({name, GroupedText(count), Rounded(count)});
  };
  add("experts", counts.experts);
  add("attention", counts.attention);
  add("dense feed-forward", counts.dense_ffn);
  add("gates", counts.gates);
  add("embeddings", counts.embeddings);
  add("output projection", counts.output_projection);
  add("positions", counts.positions);
  add("total as in the paper, without norms", counts.TotalWithoutNorms());
  add("norm scales", counts.norm_scales);
  add("total with norm scales", counts.Total());
  add("active per token, without embeddings", plan.active_parameters);
  return table;
}

// A process and what it does.
struct Process {
  const char* name;
  const char* key;  // in JSON
  const MemoryPlan* memory;
  std::string fewest_workers;  // empty except for workers
};

std::vector<Process> ProcessesOf(const Plan& plan) {
  const auto fewest = [](int64_t workers) {
    return workers == 0 ? "none" : GroupedText(workers);
  };
  std::vector<Process> processes;
  if (plan.trains() && !plan.options.routers_reduce) {
    processes.push_back({"coordinator, train", "coordinator_training",
                         &plan.coordinator_training, ""});
  }
  if (plan.trains()) {
    processes.push_back(
        {"router, train", "router_training", &plan.router_training, ""});
    processes.push_back({"worker, train", "worker_training",
                         &plan.worker_training,
                         fewest(plan.fewest_workers_training)});
  }
  processes.push_back(
      {"router, serve", "router_serving", &plan.router_serving, ""});
  processes.push_back({"worker, serve", "worker_serving", &plan.worker_serving,
                       fewest(plan.fewest_workers_serving)});
  return processes;
}

Table MemoryTable(const Plan& plan) {
  Table table(
      {"MEMORY", "weights", "gradients", "optimizer", "activations*", "total"},
      {1, 2, 3, 4, 5});
  for (const Process& process : ProcessesOf(plan)) {
    const MemoryPlan& memory = *process.memory;
    table.AddRow({process.name, BytesText(memory.weights),
                  BytesText(memory.gradients),
                  BytesText(memory.optimizer_state),
                  BytesText(memory.activations), BytesText(memory.Total())});
  }
  return table;
}

// What fits into the memory of a router or worker.
Table RoomTable(const Plan& plan) {
  const int64_t limit = plan.options.memory_bytes;
  Table table({absl::StrCat("WITHIN ", BytesText(limit)), "fits",
               "fewest workers that fit"},
              {1, 2});
  for (const Process& process : ProcessesOf(plan)) {
    if (process.memory == &plan.coordinator_training) continue;
    table.AddRow({process.name, process.memory->Total() <= limit ? "yes" : "no",
                  process.fewest_workers});
  }
  return table;
}

Table ExchangeTable(const Plan& plan) {
  const ExchangePlan& exchange = plan.exchange;
  Table table({"EXCHANGE PER TOKEN", "bytes"}, {1});
  const auto add = [&table](const char* name, int64_t bytes) {
    table.AddRow({name, GroupedText(bytes)});
  };
  add("one MoE layer, to workers, forward", exchange.layer_each_way);
  add("one MoE layer, from workers, forward", exchange.layer_each_way);
  if (plan.trains()) {
    add("one MoE layer, to workers, backward", exchange.layer_each_way);
    add("one MoE layer, from workers, backward", exchange.layer_each_way);
  }
  add("source token, all layers, forward", exchange.source_token_forward);
  if (plan.trains()) {
    add("source token, all layers, backward", exchange.source_token_backward);
  }
  add("target token, all layers, forward", exchange.target_token_forward);
  if (plan.trains()) {
    add("target token, all layers, backward", exchange.target_token_backward);
  }
  return table;
}

Json MemoryJson(const MemoryPlan& memory) {
  return {{"weights_bytes", memory.weights},
          {"gradients_bytes", memory.gradients},
          {"optimizer_state_bytes", memory.optimizer_state},
          {"activations_estimate_bytes", memory.activations},
          {"total_bytes", memory.Total()}};
}

}  // namespace

std::string PlanToText(const Plan& plan) {
  std::string text = Summary(plan);
  absl::StrAppend(&text, "\n");
  absl::StrAppend(&text, ParameterTable(plan).ToText());
  absl::StrAppend(&text, "\n");
  absl::StrAppend(&text, MemoryTable(plan).ToText());
  absl::StrAppend(
      &text, "* estimate for ", GroupedText(plan.options.tokens_per_microbatch),
      " tokens; float32; ", plan.trains() ? OptimizerName(plan) : "not trained",
      ";\n  the worker is one with most experts\n\n");
  if (plan.options.memory_bytes > 0) {
    absl::StrAppend(&text, RoomTable(plan).ToText());
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, ExchangeTable(plan).ToText());
  if (plan.trains()) {
    absl::StrAppend(&text, "\ngradients from a router per microbatch: ",
                    BytesText(plan.dense_gradient_bytes), "\n");
  }
  return text;
}

std::string PlanToJson(const Plan& plan) {
  const ParameterCounts& counts = plan.parameters;
  const ExchangePlan& exchange = plan.exchange;
  Json json = {
      {"model", plan.model.name},
      {"routers", plan.options.routers},
      {"workers", plan.options.workers},
      {"tokens_per_microbatch", plan.options.tokens_per_microbatch},
      {"optimizer", OptimizerName(plan)},
      {"encoder_moe_layers", plan.encoder_moe_layers},
      {"decoder_moe_layers", plan.decoder_moe_layers},
      {"total_experts", plan.total_experts},
      {"most_experts_per_worker", plan.most_experts_per_worker},
      {"fewest_experts_per_worker", plan.fewest_experts_per_worker},
      {"parameters",
       {{"experts", counts.experts},
        {"attention", counts.attention},
        {"dense_ffn", counts.dense_ffn},
        {"gates", counts.gates},
        {"embeddings", counts.embeddings},
        {"output_projection", counts.output_projection},
        {"positions", counts.positions},
        {"total_without_norms", counts.TotalWithoutNorms()},
        {"norm_scales", counts.norm_scales},
        {"total", counts.Total()},
        {"active_per_token", plan.active_parameters}}},
      {"memory", Json::object()},
      {"exchange_per_token",
       {{"layer_each_way_bytes", exchange.layer_each_way},
        {"source_forward_bytes", exchange.source_token_forward},
        {"source_backward_bytes", exchange.source_token_backward},
        {"target_forward_bytes", exchange.target_token_forward},
        {"target_backward_bytes", exchange.target_token_backward}}},
      {"dense_gradient_bytes_per_microbatch", plan.dense_gradient_bytes}};
  for (const Process& process : ProcessesOf(plan)) {
    json["memory"][process.key] = MemoryJson(*process.memory);
  }
  if (plan.options.memory_bytes > 0) {
    Json& within = json["within"];
    within["memory_bytes"] = plan.options.memory_bytes;
    if (plan.trains()) {
      within["fewest_workers_training"] = plan.fewest_workers_training;
    }
    within["fewest_workers_serving"] = plan.fewest_workers_serving;
  }
  return json.dump(2) + "\n";
}

}  // namespace gshard
