// Answers of an object store and credentials files: as they are, and with each
// line wrapped in the element or key that the parser expects.

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/utf8.h"
#include "services/storage/credentials.h"
#include "services/storage/xml_text.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

std::string Element(absl::string_view name, absl::string_view text) {
  std::string xml = absl::StrCat("<", name, ">");
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || !absl::ascii_isascii(c)) {
      xml.push_back(c);
    } else {
      absl::StrAppend(&xml, "&#", static_cast<int>(c), ";");
    }
  }
  return absl::StrCat(xml, "</", name, ">");
}

void ParseAsAnswer(absl::string_view text) {
  const auto texts = ParseXml(text);
  if (!Accepted(texts.status())) return;
  for (const auto& [path, content] : *texts) {
    CHECK(!path.empty() && IsUtf8(path) && IsUtf8(content));
    CHECK(content.size() <= text.size());
    CHECK(IsUtf8(FindXml(*texts, path)));
  }
}

// Parses a listing in which each line is a key.
void ParseAsList(const std::vector<std::string>& lines) {
  std::string xml;
  for (const std::string& line : lines) {
    absl::StrAppend(&xml, "<Contents>", Element("Key", line), "</Contents>");
  }
  const auto texts =
      ParseXml(absl::StrCat("<ListBucketResult>", xml, "</ListBucketResult>"));
  if (!Accepted(texts.status())) return;
  CHECK(texts->size() == lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    CHECK((*texts)[i].first == "ListBucketResult/Contents/Key");
    CHECK((*texts)[i].second == lines[i]);
  }
}

void ParseAsRole(std::vector<std::string> lines) {
  lines.resize(4);
  const auto role = ParseAssumedRole(absl::StrCat(
      "<Credentials>", Element("AccessKeyId", lines[0]),
      Element("SecretAccessKey", lines[1]), Element("SessionToken", lines[2]),
      Element("Expiration", lines[3]), "</Credentials>"));
  if (!Accepted(role.status())) return;
  CHECK(!role->key_id.empty() && role->key_id == lines[0]);
  CHECK(!role->secret.empty() && role->secret == lines[1]);
  CHECK(!role->token.empty() && role->token == lines[2]);
}

void ParseAsFile(absl::string_view text, absl::string_view profile) {
  const auto found = ParseCredentialsFile(text, profile);
  if (!Accepted(found.status())) return;
  const auto again = ParseCredentialsFile(
      absl::StrCat("[a]\naws_access_key_id=", found->key_id,
                   "\naws_secret_access_key=", found->secret,
                   "\naws_session_token=", found->token),
      "a");
  CHECK(again.ok() && again->key_id == found->key_id &&
        again->secret == found->secret && again->token == found->token);
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(gshard::Bytes(data, size));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  gshard::ParseAsAnswer(text);
  (void)gshard::Accepted(gshard::ParseAssumedRole(text).status());
  gshard::ParseAsList(lines);
  gshard::ParseAsRole(lines);
  gshard::ParseAsFile(text, "default");
  gshard::ParseAsFile(absl::StrCat("[default]\n", text), "default");
  gshard::ParseAsFile(text, lines[0]);
  return 0;
}
