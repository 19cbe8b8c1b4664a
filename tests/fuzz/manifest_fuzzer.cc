// Checkpoint manifests and the owner files of their folders, as they are and
// with a valid seal added: parsers look no further into unsealed text.

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "services/checkpoint/folder_owner.h"
#include "services/checkpoint/manifest.h"
#include "services/checkpoint/sealed_lines.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

void ParseOwners(absl::string_view text) {
  const auto owner = ParseOwner(text);
  if (!Accepted(owner.status())) return;
  const auto again = ParseOwner(FormatOwner(*owner));
  CHECK(again.ok() && *again == *owner);
}

void Parse(absl::string_view text) {
  ParseOwners(text);
  const auto manifest = ParseManifest(text);
  if (!Accepted(manifest.status())) return;
  CHECK(CheckManifest(*manifest).ok());
  const auto printed = FormatManifest(*manifest);
  CHECK(printed.ok());
  const auto again = ParseManifest(*printed);
  CHECK(again.ok());
  CHECK(*FormatManifest(*again) == *printed);
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = gshard::Bytes(data, size);
  gshard::Parse(text);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  gshard::Parse(gshard::SealLines(lines));
  return 0;
}
