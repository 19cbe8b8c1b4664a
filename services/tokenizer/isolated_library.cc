#include "services/tokenizer/isolated_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

constexpr char kFileName[] = "gshard_sentencepiece.so";

// Folder of the running program, "" if unknown.
std::string ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0) return "";
  const std::string program(path, size);
  return program.substr(0, program.rfind('/'));
}

std::vector<std::string> Places() {
  std::vector<std::string> places;
  if (const std::string folder = ProgramFolder(); !folder.empty()) {
    for (const char* relative : {"/", "/../lib/", "/../lib/gshard/"}) {
      places.push_back(absl::StrCat(folder, relative, kFileName));
    }
  }
  places.push_back(GSHARD_SENTENCEPIECE_BUILD_PATH);
  return places;
}

absl::StatusOr<const gshard_sp_functions*> Open() {
  std::string tried;
  for (const std::string& path : Places()) {
    // A missing file is the usual case; only other errors need dlerror's text.
    if (access(path.c_str(), R_OK) != 0) {
      absl::StrAppend(&tried, "; ", path, ": not there");
      continue;
    }
    void* library = dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      absl::StrAppend(&tried, "; ", path, ": ", dlerror());
      continue;
    }
    using Get = const gshard_sp_functions* (*)();
    const auto get =
        reinterpret_cast<Get>(dlsym(library, "gshard_sp_get_functions"));
    const gshard_sp_functions* functions = get != nullptr ? get() : nullptr;
    if (functions != nullptr && functions->version == kGshardSpVersion) {
      return functions;
    }
    dlclose(library);
    absl::StrAppend(&tried, "; ", path, ": of another version");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot load SentencePiece (Debian package "
                   "libsentencepiece0)",
                   tried));
}

}  // namespace

absl::StatusOr<const gshard_sp_functions*> LoadSentencePiece() {
  static const auto& functions =
      *new absl::StatusOr<const gshard_sp_functions*>(Open());
  return functions;
}

}  // namespace gshard
