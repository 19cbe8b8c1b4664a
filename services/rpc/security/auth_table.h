// AuthTable: the callers that a server knows, from the file of --auth_file:
//
//   # name      kind         credential           roles
//   webshop     token        9f86d081...b0f00a08  translate
//   ops         token        60303ae2...a6c5bd2b  train,admin
//   member      certificate  worker.gshard        expert
//   titles      token        2c26b46b...d7a9e7c3  translate:titles-*
//   team-a      token        fcde2b2e...6e6b0b4a  train:/data/team-a
//
// Each line has four words and describes one caller; a caller may have several
// lines. A token is given by its SHA-256 (`printf %s "$token" | sha256sum`),
// never in plain text; a certificate by one of its subject alternative names: a
// DNS name, URI or IP address. A comment begins with '#' at the start of a line
// or after white space.
//
// Roles are separated by commas, and each may be limited. "translate:" and
// "admin:" are limited to models by a name pattern, in which '*' matches any
// characters. "train:" is limited to an absolute folder without spaces and
// commas: all paths of a job must be in such folders of the caller.

#ifndef SERVICES_RPC_SECURITY_AUTH_TABLE_H_
#define SERVICES_RPC_SECURITY_AUTH_TABLE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// The credentials of a call.
struct Credentials {
  // From the metadata "authorization"; absent if there is none.
  std::optional<std::string> authorization;
  // From a certificate that TLS has verified.
  std::vector<std::string> certificate_names;
};

inline constexpr size_t kMaxAuthLines = 10'000;

// Immutable, hence thread-safe.
class AuthTable {
 public:
  // Errors: InvalidArgument with the line number; never quotes a digest.
  static absl::StatusOr<AuthTable> Parse(absl::string_view text);

  // The caller with these credentials. If there is a token, only the token
  // counts; comparing it takes constant time. Errors: Unauthenticated without
  // known credentials, with the same message for every invalid token.
  absl::StatusOr<Caller> Identify(const Credentials& credentials) const;

  size_t size() const { return tokens_.size() + certificates_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Token {
    Digest digest;
    Caller caller;
  };
  struct Certificate {
    std::string name;
    Caller caller;
  };

  absl::Status AddLine(absl::string_view line);

  std::vector<Token> tokens_;
  std::vector<Certificate> certificates_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_AUTH_TABLE_H_
