// A whole system on this machine: a coordinator, routers and expert workers,
// connected by unix sockets.

#ifndef CLIENT_LOCAL_SYSTEM_H_
#define CLIENT_LOCAL_SYSTEM_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/system_layout.h"
#include "services/config/process_options.h"
#include "services/graph/device.h"
#include "services/storage/object_client.h"

namespace gshard {

struct LocalSystemOptions {
  std::string directory = {};  // for sockets and logs; see SystemLayout
  int64_t routers = 1;
  int64_t workers = 1;

  // Ports on 127.0.0.1 for metrics: the coordinator's, then one for each router
  // and each worker. 0: none.
  int64_t metrics_port_base = 0;

  // Where the coordinator stores jobs and served models for the next system;
  // empty: not stored.
  std::string state_directory = {};

  // Per process: see ProcessOptions. 0: a share of the CPUs.
  int64_t threads = 0;

  int64_t drain_seconds = 30;
  std::string log_level = "info";

  TraceOptions trace = {};        // for all processes
  ObjectStoreOptions store = {};  // for those of MakeProcessSystem

  // The devices that the members of each role take in turns; opened, null for
  // the CPU, for MakeEmbeddedSystem. Not empty.
  std::vector<std::string> device_names = {"cpu"};
  std::vector<std::shared_ptr<Device>> devices = {nullptr};

  // The coordinator's --reduce.
  std::string reduce = "coordinator";

  // The routers' --enable_debug_calls.
  bool enable_debug_calls = false;

  // Folder of the programs; used by MakeProcessSystem only.
  std::string program_directory = {};
};

// One member of the system, or its coordinator.
struct LocalMember {
  enum class Role { kCoordinator, kRouter, kWorker };

  Role role;
  int64_t index;                // among those of its role
  std::string name;             // "coordinator", "router-0", ...
  std::string address;          // "unix:/..."
  std::string metrics_address;  // "127.0.0.1:9464"; empty: none
};

// The element of `list` whose turn it is for this member of its role.
template <typename T>
const T& InTurn(const std::vector<T>& list, const LocalMember& member) {
  return list[member.index % list.size()];
}

// The coordinator first, then routers, then workers.
std::vector<LocalMember> LocalMembers(const LocalSystemOptions& options);

// Not thread-safe.
class LocalSystem {
 public:
  virtual ~LocalSystem() = default;

  // Starts everything; members may still be joining when it returns. After an
  // error call Stop().
  virtual absl::Status Start() = 0;

  // Aborted with its name and the reason if a member has ended by itself.
  virtual absl::Status Check() = 0;

  // Stops in order: the coordinator, which parks the running job with a
  // checkpoint, then routers, then workers, each when it has completed accepted
  // work. Returns whether all did so within the drain time, which applies to
  // each of the three.
  virtual bool Stop() = 0;
};

// All roles inside this process.
std::unique_ptr<LocalSystem> MakeEmbeddedSystem(
    const LocalSystemOptions& options);

// One process per member.
std::unique_ptr<LocalSystem> MakeProcessSystem(
    const LocalSystemOptions& options);

}  // namespace gshard

#endif  // CLIENT_LOCAL_SYSTEM_H_
