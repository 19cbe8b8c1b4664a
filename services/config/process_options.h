// The flags that all of our server processes have, under the same names.

#ifndef SERVICES_CONFIG_PROCESS_OPTIONS_H_
#define SERVICES_CONFIG_PROCESS_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "services/config/flags.h"

namespace gshard {

struct ProcessOptions {
  std::string listen = "0.0.0.0:7000";
  std::string metrics_address;  // empty: no metrics
  bool reflection = false;
  int64_t max_message_mib = 64;
  int64_t drain_seconds = 30;
  std::string log_level = "info";

  // Of members, that is, routers and expert workers.
  std::string coordinator;
  std::string advertise;  // empty: see AdvertisedAddress
  std::string name;       // empty: see MemberName
  int64_t lease_ms = 5000;
};

// Declares --listen, --metrics_address, --reflection, --max_message_mib,
// --drain_seconds and --log_level. `options` must outlive `flags`.
void AddProcessFlags(Flags& flags, ProcessOptions* options);

// Declares --coordinator, --advertise, --name and --lease_ms.
void AddMemberFlags(Flags& flags, ProcessOptions* options);

// Makes options.log_level the process's.
void ApplyLogLevel(const ProcessOptions& options);

// Where others reach a process that listens at `listening`: --advertise, or
// else `listening`, with the machine's name in place of 0.0.0.0 or [::].
std::string AdvertisedAddress(const ProcessOptions& options,
                              absl::string_view listening);

// --name, or else "<role>-<machine>-<port>", of a unix socket
// "<role>-<file's name>". Characters that names may not have become '-'.
std::string MemberName(const ProcessOptions& options, absl::string_view role,
                       absl::string_view advertised);

}  // namespace gshard

#endif  // SERVICES_CONFIG_PROCESS_OPTIONS_H_
