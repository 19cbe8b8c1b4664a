// A training session's dense group, from the coordinator's message to a
// DenseShard.

#ifndef ROUTER_TRAINING_DENSE_GROUP_H_
#define ROUTER_TRAINING_DENSE_GROUP_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/training/dense_shard.h"
#include "services/collectives/rendezvous.h"
#include "services/config/security_options.h"
#include "services/config/training_job.h"
#include "services/graph/device.h"

namespace gshard {

// Makes this router's end of the group's rendezvous.
using RendezvousFactory =
    std::function<absl::StatusOr<std::unique_ptr<Rendezvous>>(
        const v1::DenseGroup& group)>;

// Over the network: GLOO listens on `host`, a name or address of this machine;
// NCCL, between the memories of the routers' GPUs, on the network that it
// chooses, or only on loopback if the environment has NCCL_SOCKET_IFNAME=lo.
// Neither authenticates peers: beyond this machine both need
// `security.insecure`. `device` is the router's, null for the CPU. Errors of
// the factory: FailedPrecondition if that is not set, if `host` is not a host,
// or for NCCL if it is not built in or `device` is not a GPU; InvalidArgument
// for another transport.
RendezvousFactory NetworkRendezvous(const std::string& host,
                                    const SecurityOptions& security = {},
                                    const Device* device = nullptr);

// The host at which other routers reach the router with the address
// `advertised`, as in RegisterMember.
std::string HostOf(const std::string& advertised);

// `device` as in DenseShardSpec, `stop` as in ParameterSource. Errors:
// InvalidArgument naming the field; those of `make_rendezvous` and of
// DenseShard::Create.
absl::StatusOr<std::unique_ptr<DenseShard>> MakeDenseShard(
    const v1::DenseGroup& group, const TrainingJob& job,
    const RendezvousFactory& make_rendezvous, Device* device = nullptr,
    std::stop_token stop = {});

}  // namespace gshard

#endif  // ROUTER_TRAINING_DENSE_GROUP_H_
