#include "client/system_layout.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

SystemLayout::SystemLayout(const std::string& directory)
    : directory_(AbsolutePath(directory)) {}

std::string SystemLayout::SocketPath(const std::string& member) const {
  return absl::StrCat(directory_, "/", member, ".sock");
}

std::string SystemLayout::Address(const std::string& member) const {
  return absl::StrCat("unix:", SocketPath(member));
}

std::string SystemLayout::LogPath(const std::string& member) const {
  return absl::StrCat(directory_, "/logs/", member, ".log");
}

SystemFlags::SystemFlags(const Console& console) {
  const char* home = console.environment("HOME");
  directory = absl::StrCat(home == nullptr ? "" : home, "/.gshard");
}

void SystemFlags::DeclareDirectory(Flags& flags) {
  flags.Text("directory", &directory, "DIR",
             "folder with the sockets and logs of a system of `gshard up`");
}

void SystemFlags::Declare(Flags& flags) {
  DeclareDirectory(flags);
  flags.Text("coordinator", &coordinator, "ADDRESS",
             "coordinator to ask, \"host:port\" or \"unix:/path\"; left out: "
             "the one in --directory");
  AddClientSecurityFlags(flags, &security);
}

std::string SystemFlags::CoordinatorAddress() const {
  return coordinator.empty() ? Layout().Address("coordinator") : coordinator;
}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> SystemFlags::Connect()
    const {
  auto client = CoordinatorClient::Create(CoordinatorAddress(), security);
  if (absl::IsInvalidArgument(client.status())) {
    return UsageError(Annotate(client.status(), "--coordinator"));
  }
  return client;
}

}  // namespace gshard
