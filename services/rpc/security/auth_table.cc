#include "services/rpc/security/auth_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/name.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

bool IsDigest(absl::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
         });
}

// The token after "Bearer " (case-insensitive); empty if the scheme is another
// one.
absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

// The line without its comment. A '#' inside a word is part of it: paths and
// names may contain one.
absl::string_view WithoutComment(absl::string_view line) {
  for (size_t i = line.find('#'); i != line.npos; i = line.find('#', i + 1)) {
    if (i == 0 || absl::ascii_isspace(static_cast<unsigned char>(line[i - 1])))
      return line.substr(0, i);
  }
  return line;
}

}  // namespace

absl::StatusOr<AuthTable> AuthTable::Parse(absl::string_view text) {
  AuthTable table;
  int number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line =
        absl::StripAsciiWhitespace(WithoutComment(whole));
    if (line.empty()) continue;
    RETURN_IF_ERROR(
        Annotate(table.AddLine(line), absl::StrCat("line ", number)));
    if (table.size() > kMaxAuthLines) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected at most ", kMaxAuthLines, " callers, got more"));
    }
  }
  return table;
}

absl::Status AuthTable::AddLine(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a name, token or certificate, what identifies "
                     "it, and roles, got ",
                     words.size(), " words"));
  }
  if (!IsName(words[0])) {
    return absl::InvalidArgumentError(
        "expected a name of 1 to 128 letters, digits, '.', '_' or '-'");
  }
  Caller caller{.name = words[0], .grants = {}};
  ASSIGN_OR_RETURN(caller.grants, ParseGrants(words[3]));
  if (words[1] == "certificate") {
    certificates_.push_back({words[2], std::move(caller)});
    return absl::OkStatus();
  }
  if (words[1] != "token") {
    return absl::InvalidArgumentError(
        "expected 'token' or 'certificate' behind the name");
  }
  if (!IsDigest(words[2])) {
    return absl::InvalidArgumentError(
        "expected the token's SHA-256, 64 lower-case hexadecimal digits");
  }
  Token token{.digest = {}, .caller = std::move(caller)};
  const std::string bytes = absl::HexStringToBytes(words[2]);
  std::copy(bytes.begin(), bytes.end(), token.digest.begin());
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

absl::StatusOr<Caller> AuthTable::Identify(
    const Credentials& credentials) const {
  if (credentials.authorization.has_value()) {
    const absl::string_view token = BearerToken(*credentials.authorization);
    Digest digest;
    SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(),
           digest.data());
    // Compare with all tokens even after a match, so that the time is constant.
    const Caller* found = nullptr;
    for (const Token& known : tokens_) {
      const bool same =
          CRYPTO_memcmp(known.digest.data(), digest.data(), digest.size()) == 0;
      if (same) found = &known.caller;
    }
    if (found != nullptr && !token.empty()) return *found;
    return absl::UnauthenticatedError("the token is not valid");
  }
  for (const std::string& name : credentials.certificate_names) {
    for (const Certificate& known : certificates_) {
      if (known.name == name) return known.caller;
    }
  }
  return absl::UnauthenticatedError(
      credentials.certificate_names.empty()
          ? "expected a bearer token or a client certificate"
          : "the client certificate is not of a known caller");
}

}  // namespace gshard
