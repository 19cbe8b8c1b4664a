#include "services/config/security_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

absl::Status ValidatePair(const SecurityOptions& options) {
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Invalid(
        "--tls_certificate and --tls_key: expected both or none of them");
  }
  return absl::OkStatus();
}

// An address in 127.0.0.0/8, not a name that begins like one.
bool IsLoopbackNumber(absl::string_view host) {
  return absl::StartsWith(host, "127.") &&
         std::all_of(host.begin(), host.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || c == '.';
         });
}

}  // namespace

void AddClientSecurityFlags(Flags& flags, SecurityOptions* options) {
  flags.Text("tls_ca", &options->tls_ca, "FILE",
             "PEM file of the authorities that may sign the other side's "
             "certificate; calls over TCP then use TLS");
  flags.Text("tls_certificate", &options->tls_certificate, "FILE",
             "PEM file of this side's certificate, with its chain");
  flags.Text("tls_key", &options->tls_key, "FILE",
             "PEM file of the certificate's private key");
  flags.Text("tls_peer_name", &options->tls_peer_name, "NAME",
             "name that certificates of called servers must have; empty: the "
             "host of their address");
  flags.Text("token_file", &options->token_file, "FILE",
             "file with the bearer token to send with every call");
  flags.Bool("insecure", &options->insecure,
             "allow what is not safe beyond this machine: to serve there "
             "without TLS or to unknown callers, to send a token without TLS, "
             "to sum gradients by gloo or NCCL, to use an object store without "
             "TLS");
}

void AddServerSecurityFlags(Flags& flags, SecurityOptions* options) {
  AddClientSecurityFlags(flags, options);
  flags.Choice("tls_clients", &options->tls_clients,
               {"require", "allow", "ignore"},
               "what a server with TLS does about certificates of clients");
  flags.Text("auth_file", &options->auth_file, "FILE",
             "file of callers, their tokens' SHA-256 or certificates' names, "
             "and roles; empty: whoever gets through may do all");
}

bool IsUnixAddress(absl::string_view address) {
  return address.empty() || absl::StartsWith(address, "unix:");
}

bool IsLocalAddress(absl::string_view address) {
  if (IsUnixAddress(address)) return true;
  return IsLocalHost(address.substr(0, address.rfind(':')));
}

bool IsLocalHost(absl::string_view host) {
  return host == "localhost" || host == "[::1]" || host == "::1" ||
         IsLoopbackNumber(host);
}

bool ServesTls(const SecurityOptions& options, absl::string_view address) {
  return !IsUnixAddress(address) && !options.tls_certificate.empty();
}

bool CallsWithTls(const SecurityOptions& options, absl::string_view address) {
  return !IsUnixAddress(address) && !options.tls_ca.empty();
}

absl::Status ValidateServerSecurity(const SecurityOptions& options,
                                    absl::string_view listen) {
  RETURN_IF_ERROR(ValidatePair(options));
  const bool tls = !options.tls_certificate.empty();
  const bool checks_clients = tls && options.tls_clients != "ignore";
  if (checks_clients && options.tls_ca.empty()) {
    return Invalid(absl::StrCat(
        "--tls_ca: expected the authorities of clients' certificates; without "
        "any, use --tls_clients=ignore instead of ",
        options.tls_clients));
  }
  if (options.insecure || IsLocalAddress(listen)) return absl::OkStatus();
  if (!tls) {
    return Invalid(absl::StrCat(
        "--listen=", listen,
        " is reached from other machines: expected --tls_certificate, --tls_key"
        " and --tls_ca, or --insecure to serve there without TLS"));
  }
  if (options.auth_file.empty() && options.tls_clients != "require") {
    return Invalid(absl::StrCat(
        "--listen=", listen,
        " is reached from other machines: expected --auth_file or "
        "--tls_clients=require to know the callers, or --insecure to let "
        "everybody do everything"));
  }
  return absl::OkStatus();
}

absl::Status ValidateClientSecurity(const SecurityOptions& options,
                                    absl::string_view address) {
  RETURN_IF_ERROR(ValidatePair(options));
  if (!options.token_file.empty() && !options.insecure &&
      !IsLocalAddress(address) && !CallsWithTls(options, address)) {
    return Invalid(absl::StrCat(
        "--token_file: the token would travel to ", address,
        " unencrypted: expected --tls_ca, or --insecure to send it so"));
  }
  return absl::OkStatus();
}

absl::Status ValidateOpenExchange(const SecurityOptions& options,
                                  absl::string_view library,
                                  absl::string_view host) {
  if (options.insecure || IsLocalHost(host)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      library, " would listen on '", host,
      "' for other machines, and neither asks who connects nor encrypts: "
      "expected a host that only this machine reaches, or --insecure where the "
      "network is the cluster's own"));
}

}  // namespace gshard
