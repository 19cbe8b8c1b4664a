#include "services/coordinator/training/shard_holders.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {

std::string NameOf(const ShardHolder& holder) {
  return absl::StrCat(MemberRoleName(holder.role), " '", holder.member.name,
                      "'");
}

std::vector<ShardHolder> WorkersOf(const SessionPlan& plan,
                                   const ModelConfig& model) {
  const std::vector<ParameterSpec> specs =
      ParametersOf(model, /*per_expert=*/true);
  std::vector<ShardHolder> workers;
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    ShardHolder& worker = workers.emplace_back();
    worker.member = plan.workers[w];
    for (const ParameterSpec& spec : specs) {
      for (const int32_t e : plan.placement().workers(w).experts()) {
        worker.tensors.push_back(ExpertTensorName(spec.name, e));
      }
    }
  }
  return workers;
}

MemberCommands PrepareCommands(const std::vector<ShardHolder>& holders,
                               const v1::PrepareStep& prepare,
                               const std::vector<int32_t>& ran_by) {
  MemberCommands commands;
  for (const ShardHolder& holder : holders) {
    v1::PrepareStep* const own =
        AddCommand(commands, holder.member).mutable_prepare_step();
    *own = prepare;
    if (holder.role != MemberRole::kRouter) continue;
    own->mutable_ran_by()->Add(ran_by.begin(), ran_by.end());
  }
  return commands;
}

MemberCommands CommitCommands(const std::vector<ShardHolder>& holders,
                              const v1::CommitStep& commit) {
  MemberCommands commands;
  for (const ShardHolder& holder : holders) {
    *AddCommand(commands, holder.member).mutable_commit_step() = commit;
  }
  return commands;
}

MemberCommands WriteCommands(const std::vector<ShardHolder>& holders,
                             const v1::WriteCheckpoint& write,
                             const std::string& tag, int64_t attempt,
                             const std::set<size_t>& lost) {
  MemberCommands commands;
  size_t workers = 0;
  for (const ShardHolder& holder : holders) {
    workers += holder.role == MemberRole::kExpertWorker;
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    if (lost.count(i) > 0 || holders[i].tensors.empty()) continue;
    const bool worker = i < workers;
    v1::WriteCheckpoint* const own =
        AddCommand(commands, holders[i].member).mutable_write_checkpoint();
    *own = write;
    own->set_shard(absl::StrCat(tag, worker ? "-worker-" : "-router-",
                                worker ? i : i - workers, "-", attempt));
    own->set_include_replica(worker &&
                             lost.count(i > 0 ? i - 1 : workers - 1) > 0);
  }
  return commands;
}

absl::Status AddNorms(const std::vector<ShardHolder>& holders, int64_t step,
                      absl::Span<const v1::CommandReply> replies,
                      std::vector<SquaredNorm>* norms) {
  CHECK(replies.size() == holders.size());
  for (size_t i = 0; i < holders.size(); ++i) {
    const v1::StepPrepared& prepared = replies[i].step_prepared();
    std::map<std::string, double> values;
    for (const v1::GradientNorm& norm : prepared.norms()) {
      values.emplace(norm.tensor(), norm.squared_norm());
    }
    const std::vector<std::string>& tensors = holders[i].tensors;
    size_t found = 0;
    for (const std::string& tensor : tensors) {
      const auto value = values.find(tensor);
      if (value == values.end()) continue;
      norms->push_back({tensor, value->second});
      ++found;
    }
    const size_t got = prepared.norms_size();
    if (found != tensors.size() || got != tensors.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(holders[i]), ", step ", step,
                       ": expected norms of ", tensors.size(), " tensors, got ",
                       got, " of which ", found, " are its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const ModelConfig& model, int64_t step, double loss,
                         const std::vector<SquaredNorm>& norms) {
  std::set<absl::string_view> bad;
  for (const SquaredNorm& norm : norms) {
    if (!std::isfinite(norm.value)) bad.insert(norm.tensor);
  }
  if (std::isfinite(loss) && bad.empty()) return absl::OkStatus();
  // Independent of its holder.
  std::string first;
  for (const ParameterSpec& spec : ModelParameters(model)) {
    for (int64_t e = 0; e < (spec.per_expert ? spec.dims[0] : 1); ++e) {
      const std::string name =
          spec.per_expert ? ExpertTensorName(spec.name, e) : spec.name;
      if (first.empty() && bad.count(name) > 0) first = name;
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", step, ": ",
      std::isfinite(loss) ? "" : absl::StrCat("the loss is ", loss, "; "),
      bad.empty() ? "all gradients are finite"
                  : absl::StrCat("the gradient of ", first,
                                 " is not finite, the first of ", bad.size())));
}

}  // namespace gshard
