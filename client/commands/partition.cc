// gshard partition: shows how a model is partitioned.

#include <chrono>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/json_output.h"
#include "client/partition_summary.h"
#include "services/base/status_macros.h"
#include "services/config/model_config.h"
#include "services/model/expert_slices.h"
#include "services/model/step_sizes.h"
#include "services/model/transformer.h"
#include "services/partition/report/program_dot.h"
#include "services/sharding/propagation.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

constexpr char kSlices[] = "model";  // the mesh axis
constexpr int64_t kHypotheses = 4;   // per sentence, the routers' default

struct Options {
  std::string config;
  int64_t routers = 1;
  int64_t workers = 1;
  int64_t slices = 1;
  std::string print = "summary";
  std::string dot;
  bool json = false;
  bool serving = false;
  bool training = false;
  int64_t tokens_per_microbatch = 4096;
  int64_t sentence_length = 256;
};

absl::StatusOr<DeviceMesh> MeshOf(const Options& options) {
  return DeviceMesh::Create({{"router", options.routers, "router"},
                             {"expert", options.workers, "worker"},
                             {kSlices, options.slices, "worker"}});
}

int64_t NormScales(const Partitioned& partitioned) {
  int64_t scales = 0;
  for (const auto& [name, placed] : partitioned.parameters) {
    if (absl::EndsWith(name, ".norm")) {
      scales += ShapeSize(placed.type.shape).size();
    }
  }
  return scales;
}

absl::StatusOr<PartitionSummary> Summarize(const Program& program,
                                           const DeviceMesh& mesh,
                                           const StepSizes& step) {
  using Clock = std::chrono::steady_clock;
  PartitionSummary summary;
  summary.program = program.name;
  const auto start = Clock::now();
  ASSIGN_OR_RETURN(summary.partitioned, Partition(program, mesh));
  summary.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  ASSIGN_OR_RETURN(const SymbolSizes sizes, SizesOfStep(program, mesh, step));
  ASSIGN_OR_RETURN(summary.report,
                   ReportPartition(summary.partitioned, mesh, sizes));
  summary.norm_scales = NormScales(summary.partitioned);
  // A decoder step advances each hypothesis by one position.
  const bool is_decoder = absl::EndsWith(program.name, ".decode");
  summary.tokens = SaturatingMultiply(
      step.sentences, is_decoder ? step.hypotheses : step.positions);
  return summary;
}

absl::StatusOr<std::string> Printed(const std::string& what,
                                    const PartitionSummary& summary,
                                    const Program& program,
                                    const DeviceMesh& mesh) {
  if (what == "program") {
    std::string text;
    for (size_t role = 0; role < mesh.roles().size(); ++role) {
      absl::StrAppend(&text, "# ", mesh.roles()[role], "\n",
                      RoleToText(summary.partitioned, static_cast<int>(role)));
    }
    return text;
  }
  if (what == "collectives") return CommunicationToText(summary);
  if (what == "memory") return MemoryToText(summary);
  if (what == "explain") {
    ASSIGN_OR_RETURN(const Shardings shardings, Propagate(program, mesh));
    return Explain(program, mesh, shardings);
  }
  return SummaryToText(summary);
}

absl::Status WriteDot(const std::string& path, const PartitionSummary& summary,
                      const DeviceMesh& mesh) {
  ASSIGN_OR_RETURN(const NodeRange layer,
                   FirstMoeLayer(summary.partitioned.program));
  ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path));
  RETURN_IF_ERROR(file->Append(ProgramToDot(summary.partitioned, mesh, layer)));
  return file->Close();
}

// A training step's program, or the two of translation.
absl::StatusOr<std::vector<Program>> ProgramsOf(const ModelConfig& model,
                                                bool serving) {
  std::vector<Program> programs;
  if (!serving) {
    ASSIGN_OR_RETURN(programs.emplace_back(),
                     BuildTrainProgram(model, LossConfig()));
    return programs;
  }
  ASSIGN_OR_RETURN(programs.emplace_back(), BuildEncodeProgram(model));
  ASSIGN_OR_RETURN(programs.emplace_back(), BuildDecodeProgram(model));
  return programs;
}

absl::Status CheckOptions(const Options& options) {
  if (options.serving && options.training) {
    return UsageError("--serving and --training: expected one of them");
  }
  if (options.tokens_per_microbatch < options.sentence_length) {
    return UsageError(absl::StrCat(
        "--tokens_per_microbatch: expected at least a sentence of ",
        options.sentence_length, " tokens, got ",
        options.tokens_per_microbatch));
  }
  if (options.json && options.print != "summary") {
    return UsageError("--json: expected no --print beside it");
  }
  return absl::OkStatus();
}

absl::Status PrintPartition(const Options& options, std::ostream& out) {
  ASSIGN_OR_RETURN(ModelConfig model, LoadModelConfig(options.config));
  // The microbatches of several routers are one batch here, so groups must be
  // set explicitly.
  const int64_t sentences =
      options.tokens_per_microbatch / options.sentence_length;
  if (model.gate.group_size == 0) {
    model.gate.group_size = sentences * options.sentence_length;
  }
  ASSIGN_OR_RETURN(const DeviceMesh mesh, MeshOf(options));
  ASSIGN_OR_RETURN(std::vector<Program> programs,
                   ProgramsOf(model, options.serving));
  if (options.slices > 1) {
    for (Program& program : programs) SliceExperts(program, kSlices);
  }
  const StepSizes step = {.sentences = options.routers * sentences,
                          .positions = options.sentence_length,
                          .hypotheses = kHypotheses};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (size_t i = 0; i < programs.size(); ++i) {
    ASSIGN_OR_RETURN(const PartitionSummary summary,
                     Summarize(programs[i], mesh, step));
    if (i == 0 && !options.dot.empty()) {
      RETURN_IF_ERROR(WriteDot(options.dot, summary, mesh));
    }
    if (options.json) {
      json.push_back(SummaryToJson(summary));
      continue;
    }
    ASSIGN_OR_RETURN(const std::string text,
                     Printed(options.print, summary, programs[i], mesh));
    out << (i > 0 ? "\n" : "") << text;
  }
  if (options.json) {
    out << JsonText(json.size() == 1 ? json[0] : json) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PartitionCommand(Arguments arguments, Console& console) {
  Options options;
  Flags flags("gshard partition",
              "Partitions a model for routers and expert workers, and says "
              "what comes out: nodes, parameters and memory of each role, what "
              "devices send to each other. Nothing is allocated or run.");
  flags.Text("config", &options.config, "FILE", "ModelConfig as protobuf text");
  flags.Require("config");
  flags.Integer("routers", &options.routers, 1, 65536, "routers");
  flags.Integer("workers", &options.workers, 1, 65536, "expert workers");
  flags.Integer("slices", &options.slices, 1, 1024,
                "workers that share each expert");
  flags.Choice("print", &options.print,
               {"summary", "program", "collectives", "memory", "explain"},
               "the nodes of each role; each collective with its bytes; "
               "memory; or where each sharding comes from");
  flags.Text("dot", &options.dot, "FILE",
             "write a picture of the first MoE layer, for Graphviz");
  flags.Bool("json", &options.json,
             "print one JSON object; with --serving, an array of two");
  flags.Bool("training", &options.training,
             "partition a step of training; so it is without --serving");
  flags.Bool("serving", &options.serving,
             "partition the encoder and a step of the decoder");
  flags.Integer("tokens_per_microbatch", &options.tokens_per_microbatch, 1,
                16777216, "tokens of a router's microbatch, on either side");
  flags.Integer("sentence_length", &options.sentence_length, 1, 65536,
                "pieces of a sentence");
  flags.Example(
      "gshard partition --config deploy/config/gshard_2048e_36l.textproto "
      "--routers 2048 --workers 2048");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOptions(options));
  return PrintPartition(options, *console.out);
}

}  // namespace gshard
