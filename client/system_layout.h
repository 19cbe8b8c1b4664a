// The locations of a `gshard up` system's members, so that other commands find
// it without addresses.

#ifndef CLIENT_SYSTEM_LAYOUT_H_
#define CLIENT_SYSTEM_LAYOUT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/command.h"
#include "client/coordinator_client.h"
#include "services/config/flags.h"
#include "services/config/security_options.h"

namespace gshard {

// Unix sockets in one folder:
//
//   DIR/coordinator.sock, DIR/router-0.sock, DIR/worker-0.sock, ...
//   DIR/logs/coordinator.log, ...
class SystemLayout {
 public:
  // Relative paths start at the current directory.
  explicit SystemLayout(const std::string& directory);

  const std::string& directory() const { return directory_; }

  // `member` is "coordinator", "router-0", "worker-0", ...
  std::string SocketPath(const std::string& member) const;
  std::string Address(const std::string& member) const;
  std::string LogPath(const std::string& member) const;

 private:
  const std::string directory_;
};

// The flags to find a system: --directory, whose default is ~/.gshard, and
// --coordinator, whose default is the one in that folder. Declare() adds the
// security flags: --tls_ca, --token_file and others.
struct SystemFlags {
  explicit SystemFlags(const Console& console);

  void Declare(Flags& flags);
  void DeclareDirectory(Flags& flags);

  SystemLayout Layout() const { return SystemLayout(directory); }
  std::string CoordinatorAddress() const;
  // Connects to the coordinator. Errors: usage errors of flags; those of
  // reading files.
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect() const;

  std::string directory;
  std::string coordinator;  // empty: the one in `directory`
  SecurityOptions security;
};

}  // namespace gshard

#endif  // CLIENT_SYSTEM_LAYOUT_H_
