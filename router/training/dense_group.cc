#include "router/training/dense_group.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/gloo_rendezvous.h"
#include "services/train/job_options.h"
#ifdef GSHARD_NCCL
#include "services/collectives/nccl_rendezvous.h"
#endif

namespace gshard {
namespace {

constexpr int64_t kMaxTimeoutMs = 24 * 3600 * 1000;

// An error that this process cannot fix by itself.
absl::Status Unfit(const absl::Status& status, absl::string_view hint) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(status.message()), "; ", hint));
}

absl::StatusOr<std::unique_ptr<Rendezvous>> MakeGlooRendezvous(
    const std::string& host, const SecurityOptions& security,
    const v1::DenseGroup& group) {
  RETURN_IF_ERROR(ValidateOpenExchange(security, "gloo", host));
  GlooRendezvousOptions options;
  options.rank = group.rank();
  options.size = group.owners_size();
  options.host = host;
  options.timeout = std::chrono::milliseconds(group.timeout_ms());
  absl::StatusOr<std::unique_ptr<Rendezvous>> rendezvous =
      GlooRendezvous::Create(options);
  if (absl::IsInvalidArgument(rendezvous.status())) {
    return Unfit(rendezvous.status(), "set --reduce_host");
  }
  return rendezvous;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> MakeNcclRendezvous(
    const SecurityOptions& security, const Device* device,
    const v1::DenseGroup& group) {
  if (device == nullptr || device->gpu() < 0) {
    return absl::FailedPreconditionError(
        "NCCL sums gradients in the memory of GPUs, and this router computes "
        "on the CPU: start it with --device=cuda:N, or the coordinator with "
        "--reduce=gloo");
  }
#ifdef GSHARD_NCCL
  // NCCL chooses where to listen, unless its environment says so.
  const char* const network = std::getenv("NCCL_SOCKET_IFNAME");
  RETURN_IF_ERROR(ValidateOpenExchange(
      security, "NCCL",
      absl::string_view(network == nullptr ? "" : network) == "lo"
          ? "localhost"
          : "any interface, as NCCL_SOCKET_IFNAME is not lo"));
  NcclOptions options;
  options.gpu = device->gpu();
  options.timeout = std::chrono::milliseconds(group.timeout_ms());
  absl::StatusOr<std::unique_ptr<Rendezvous>> rendezvous =
      NcclRendezvous::Create(group.rank(), group.owners_size(), options);
  if (!absl::IsFailedPrecondition(rendezvous.status())) return rendezvous;
  return Annotate(rendezvous.status(), absl::StrCat("GPU ", device->gpu()));
#else
  (void)security;
  (void)group;
  return absl::FailedPreconditionError(
      absl::StrCat("GPU ", device->gpu(),
                   ": this router was built without NCCL (GSHARD_CUDA=ON "
                   "builds it in)"));
#endif
}

}  // namespace

RendezvousFactory NetworkRendezvous(const std::string& host,
                                    const SecurityOptions& security,
                                    const Device* device) {
  return [host, security, device](const v1::DenseGroup& group)
             -> absl::StatusOr<std::unique_ptr<Rendezvous>> {
    switch (group.transport()) {
      case v1::DenseGroup::GLOO:
        return MakeGlooRendezvous(host, security, group);
      case v1::DenseGroup::NCCL:
        return MakeNcclRendezvous(security, device, group);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("dense_group.transport: expected GLOO or NCCL, got ",
                         group.transport()));
    }
  };
}

std::string HostOf(const std::string& advertised) {
  if (absl::StartsWith(advertised, "unix:")) return "127.0.0.1";
  const std::string host = advertised.substr(0, advertised.rfind(':'));
  // "[::1]:7000"
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

absl::StatusOr<std::unique_ptr<DenseShard>> MakeDenseShard(
    const v1::DenseGroup& group, const TrainingJob& job,
    const RendezvousFactory& make_rendezvous, Device* device,
    std::stop_token stop) {
  if (group.rank() < 0 || group.rank() >= group.owners_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dense_group.rank: expected one of ", group.owners_size(),
                     " owners, got ", group.rank()));
  }
  if (group.timeout_ms() < 1 || group.timeout_ms() > kMaxTimeoutMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("dense_group.timeout_ms: expected 1 to ", kMaxTimeoutMs,
                     ", got ", group.timeout_ms()));
  }
  DenseShardSpec spec;
  spec.parameters = ParametersOf(job.model, /*per_expert=*/false);
  spec.optimizer = MakeOptimizer(job.optimizer);
  spec.rank = group.rank();
  for (const v1::DenseOwner& owner : group.owners()) {
    spec.owners.emplace_back(owner.tensors().begin(), owner.tensors().end());
  }
  switch (group.source().from_case()) {
    case v1::ParameterSource::kCheckpointDirectory:
      spec.source.checkpoint_directory = group.source().checkpoint_directory();
      break;
    case v1::ParameterSource::kInitialSeed:
      spec.source.initial_seed =
          static_cast<uint64_t>(group.source().initial_seed());
      break;
    case v1::ParameterSource::FROM_NOT_SET:
      break;
  }
  if (group.source().from_case() == v1::ParameterSource::FROM_NOT_SET ||
      (spec.source.checkpoint_directory.empty() &&
       !group.source().has_initial_seed())) {
    return absl::InvalidArgumentError(
        "dense_group.source: expected a checkpoint or a seed, got neither");
  }
  spec.source.step = group.step();
  spec.source.skipped_steps = group.skipped_steps();
  spec.source.weights_only = group.source().weights_only();
  spec.source.stop = std::move(stop);
  spec.microbatches_per_step = job.microbatches_per_step;
  spec.device = device;
  ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> rendezvous,
                   make_rendezvous(group));
  return DenseShard::Create(std::move(spec), std::move(rendezvous));
}

}  // namespace gshard
