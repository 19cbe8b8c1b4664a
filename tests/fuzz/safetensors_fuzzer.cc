// Checkpoint shards: the header, and every tensor that it declares.

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/safetensors.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

void ReadAll(const std::string& path, size_t size) {
  const auto reader = SafetensorsReader::Open(path);
  if (!Accepted(reader.status())) return;
  for (const auto& [name, stored] : (*reader)->tensors()) {
    CHECK(stored.offset <= size && stored.bytes <= size - stored.offset);
    const auto tensor = (*reader)->Read(name);
    CHECK(tensor.ok());
    CHECK(tensor->dims() == stored.dims);
    CHECK(tensor->bytes() == stored.bytes);
  }
  CHECK(!(*reader)->Read("no such tensor").ok() ||
        (*reader)->tensors().contains("no such tensor"));
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int file = memfd_create("shard", 0);
  CHECK(file >= 0);
  CHECK(write(file, data, size) == static_cast<ssize_t>(size));
  gshard::ReadAll(absl::StrCat("/proc/self/fd/", file), size);
  close(file);
  return 0;
}
