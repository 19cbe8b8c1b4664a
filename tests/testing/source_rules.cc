#include "tests/testing/source_rules.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gshard {
namespace {

constexpr int kMaxLines = 600;

std::string Extension(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

bool IsCpp(const SourceFile& file) {
  static const std::set<std::string> extensions = {".h", ".cc", ".cu", ".cuh"};
  return extensions.count(Extension(file.path)) > 0;
}

// "services/moe/gating.h" -> "services/moe", likewise for its test.
std::string Folder(absl::string_view path) {
  absl::ConsumePrefix(&path, "tests/");
  const size_t end = path.rfind('/');
  return std::string(path.substr(0, end == path.npos ? 0 : end));
}

// Whether `folder` is `place` or lies inside it.
bool IsWithin(absl::string_view folder, absl::string_view place) {
  return absl::ConsumePrefix(&folder, place) &&
         (folder.empty() || folder[0] == '/');
}

// The element of `places` that a folder is or lies in; empty if none.
std::string PlaceAround(absl::string_view folder,
                        const std::set<std::string>& places) {
  for (const std::string& place : places) {
    if (IsWithin(folder, place)) return place;
  }
  return "";
}

// The nearest room around a folder, or empty.
std::string Room(std::string folder,
                 const std::map<std::string, size_t>& height) {
  while (!folder.empty() && !height.count(folder)) folder = Folder(folder);
  return folder;
}

bool IsTest(const std::string& path) {
  return absl::StartsWith(path, "tests/");
}

std::string At(const SourceFile& file, int line) {
  return absl::StrCat(file.path, ":", line, ": ");
}

// Whether `text` has `word` with no letter, digit or underscore around it.
bool HasWord(const std::string& text, const std::string& word) {
  const auto in_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = text.find(word); at != std::string::npos;
       at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !in_word(text[at - 1])) &&
        (end == text.size() || !in_word(text[end]))) {
      return true;
    }
  }
  return false;
}

// The words of a CMake file, without comments.
std::set<std::string> CMakeWords(const std::string& text) {
  std::set<std::string> words;
  for (const std::string& line : Lines(text)) {
    const std::string code = line.substr(0, line.find('#'));
    for (absl::string_view word :
         absl::StrSplit(code, absl::ByAnyChar(" \t();\""), absl::SkipEmpty())) {
      words.insert(std::string(word));
    }
  }
  return words;
}

void CheckGuard(const SourceFile& file, std::vector<std::string>* violations) {
  std::string guard = absl::AsciiStrToUpper(file.path);
  for (char& c : guard) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  guard += '_';
  const std::vector<std::string> lines = Lines(file.text);
  const auto opens = std::find(lines.begin(), lines.end(), "#ifndef " + guard);
  const bool guarded = opens != lines.end() && opens + 1 != lines.end() &&
                       *(opens + 1) == "#define " + guard &&
                       lines.back() == "#endif  // " + guard;
  if (!guarded) {
    violations->push_back(
        absl::StrCat(At(file, 1), "the include guard must be ", guard));
  }
}

// Production code takes its locks from here, with annotations for Clang.
constexpr char kLocks[] = "services/base/mutex.h";

void CheckLocks(const SourceFile& file, std::vector<std::string>* violations) {
  static const std::vector<std::string> unchecked = {
      "std::mutex",       "std::recursive_mutex",
      "std::timed_mutex", "std::shared_mutex",
      "std::lock_guard",  "std::unique_lock",
      "std::shared_lock", "std::scoped_lock",
      "absl::Mutex",      "std::condition_variable",
      "absl::MutexLock",  "std::condition_variable_any"};
  if (IsTest(file.path) || file.path == kLocks) return;
  const std::vector<std::string> lines = Lines(file.text);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const std::string& type : unchecked) {
      if (HasWord(lines[i], type)) {
        violations->push_back(absl::StrCat(At(file, i + 1), "take a lock of ",
                                           kLocks, ", not ", type));
      }
    }
  }
}

// The words of every CMakeLists.txt, by its folder.
std::map<std::string, std::set<std::string>> CMakeFolders(
    const std::vector<SourceFile>& files) {
  std::map<std::string, std::set<std::string>> folders;
  for (const SourceFile& file : files) {
    if (FileName(file.path) != "CMakeLists.txt") continue;
    const std::filesystem::path path(file.path);
    folders[path.parent_path().string()] = CMakeWords(file.text);
  }
  return folders;
}

bool IsBuilt(const std::string& path,
             const std::map<std::string, std::set<std::string>>& folders) {
  std::filesystem::path folder = path;
  do {
    folder = folder.parent_path();
    const auto found = folders.find(folder.string());
    if (found == folders.end()) continue;
    const std::string name =
        std::filesystem::path(path).lexically_relative(folder).string();
    if (found->second.count(folder.empty() ? path : name)) return true;
    // A loop over tests names them without their common ending.
    const size_t ending = name.rfind("_test.cc");
    if (ending != std::string::npos &&
        found->second.count(name.substr(0, ending))) {
      return true;
    }
  } while (!folder.empty());
  return false;
}

// A library whose headers only a few rooms may include.
struct Fence {
  std::string what;
  bool (*encloses)(absl::string_view header);
  std::set<std::string> places;
};

const std::vector<Fence>& Fences() {
  using absl::EndsWith;
  using absl::StartsWith;
  static const std::vector<Fence>& fences = *new std::vector<Fence>{
      {"gRPC",
       [](absl::string_view header) {
         return StartsWith(header, "grpc/") || StartsWith(header, "grpcpp/") ||
                StartsWith(header, "grpc++/") || EndsWith(header, ".grpc.pb.h");
       },
       {"services/rpc", "services/coordinator", "router", "expert_worker",
        "client"}},
      {"protobuf",
       [](absl::string_view header) {
         return StartsWith(header, "google/protobuf/") ||
                StartsWith(header, "google/rpc/") ||
                (EndsWith(header, ".pb.h") && !EndsWith(header, ".grpc.pb.h"));
       },
       {"services/config", "services/checkpoint", "services/rpc",
        "services/coordinator", "router", "expert_worker", "client"}},
      {"oneDNN",
       [](absl::string_view header) {
         return StartsWith(header, "oneapi/dnnl/") ||
                StartsWith(header, "dnnl");
       },
       {"services/ops"}},
      {"gloo",
       [](absl::string_view header) { return StartsWith(header, "gloo/"); },
       {"services/collectives"}},
      {"NCCL",
       [](absl::string_view header) { return StartsWith(header, "nccl"); },
       {"services/collectives"}},
      {"CUDA",
       [](absl::string_view header) {
         return StartsWith(header, "cuda_runtime") ||
                StartsWith(header, "cublas");
       },
       // The last one is tests/cuda, the check on a GPU.
       {"services/collectives", "services/cuda", "cuda"}},
      {"SQLite",
       [](absl::string_view header) { return StartsWith(header, "sqlite3"); },
       {"services/coordinator"}},
      {"libcurl",
       [](absl::string_view header) { return StartsWith(header, "curl/"); },
       {"services/http"}},
      {"expat",
       [](absl::string_view header) { return header == "expat.h"; },
       {"services/storage"}},
      {"SentencePiece",
       [](absl::string_view header) {
         return StartsWith(header, "sentencepiece");
       },
       {"services/tokenizer"}},
  };
  return fences;
}

// Tests that may include anything: those in folders that mirror no room, and
// one that shows that libraries can share a process.
bool CrossesRooms(const SourceFile& file) {
  static const std::set<std::string> folders = {"integration", "fault", "fuzz",
                                                "benchmark"};
  return IsTest(file.path) &&
         (folders.count(Folder(file.path)) ||
          file.path == "tests/services/tokenizer/tokenizer_test.cc");
}

}  // namespace

std::vector<std::string> RoomOrder(const std::string& cmake_lists) {
  std::vector<std::string> rooms;
  bool in_list = false;
  for (const std::string& line : Lines(cmake_lists)) {
    const std::string code = absl::StrReplaceAll(line.substr(0, line.find('#')),
                                                 {{"(", " ( "}, {")", " ) "}});
    const std::vector<std::string> words =
        absl::StrSplit(code, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    for (const std::string& word : words) {
      if (word == "GSHARD_ROOMS") {
        in_list = rooms.empty();
      } else if (word == ")") {
        in_list = false;
      } else if (in_list) {
        rooms.push_back(word);
      }
    }
  }
  return rooms;
}

std::vector<std::string> LayeringViolations(
    const std::vector<SourceFile>& files) {
  std::vector<std::string> violations;
  std::map<std::string, size_t> height;  // position of a room in the list
  for (const SourceFile& file : files) {
    if (file.path != "CMakeLists.txt") continue;
    for (const std::string& room : RoomOrder(file.text)) {
      height.insert({room, height.size()});
    }
  }
  if (height.empty()) return {"CMakeLists.txt:1: GSHARD_ROOMS lists no rooms"};
  for (const SourceFile& file : files) {
    if (file.path != "ARCHITECTURE.md") continue;
    for (const auto& [room, unused] : height) {
      if (!absl::StrContains(file.text, absl::StrCat("| `", room, "` |"))) {
        violations.push_back(
            absl::StrCat(At(file, 1), room, " has no line in the map"));
      }
    }
  }

  const std::set<std::string> processes = {"services/coordinator", "router",
                                           "expert_worker", "client"};
  for (const SourceFile& file : files) {
    if (!IsCpp(file)) continue;
    const std::string from = Room(Folder(file.path), height);
    if (!IsTest(file.path) && from.empty()) {
      violations.push_back(absl::StrCat(At(file, 1), Folder(file.path),
                                        " is not in CMakeLists.txt"));
      continue;
    }
    for (const Include& include : Includes(file)) {
      const std::string at = At(file, include.line);
      if (include.quoted && (!absl::StrContains(include.path, '/') ||
                             absl::StartsWith(include.path, ".") ||
                             absl::StrContains(include.path, "/../"))) {
        violations.push_back(absl::StrCat(at, "spell \"", include.path,
                                          "\" from the project root"));
        continue;
      }
      if (IsTest(file.path)) continue;
      if (absl::StartsWith(include.path, "tests/")) {
        violations.push_back(
            absl::StrCat(at, include.path, " is for tests only"));
        continue;
      }
      const std::string to = Room(Folder(include.path), height);
      if (to.empty() || to == from) continue;
      const std::string process = PlaceAround(to, processes);
      if (!process.empty() && !IsWithin(from, process) && from != "client") {
        violations.push_back(absl::StrCat(at, from, " must not use ", to,
                                          ": only the client uses processes"));
      } else if (height[to] > height[from]) {
        violations.push_back(absl::StrCat(at, from, " must not use ", to,
                                          ", which comes later in "
                                          "CMakeLists.txt"));
      }
    }
  }
  return violations;
}

std::vector<std::string> FenceViolations(const std::vector<SourceFile>& files) {
  std::vector<std::string> violations;
  for (const SourceFile& file : files) {
    if (!IsCpp(file) || CrossesRooms(file)) continue;
    const std::string folder = Folder(file.path);
    for (const Include& include : Includes(file)) {
      for (const Fence& fence : Fences()) {
        if (!fence.encloses(include.path) ||
            !PlaceAround(folder, fence.places).empty()) {
          continue;
        }
        violations.push_back(absl::StrCat(
            At(file, include.line), fence.what, " header ", include.path,
            " is allowed only in ", absl::StrJoin(fence.places, ", ")));
      }
    }
  }
  return violations;
}

std::vector<std::string> TidyViolations(const std::vector<SourceFile>& files) {
  // Split, so that this file does not match itself.
  static const std::vector<std::string> unfinished = {
      "TO"
      "DO",
      "FIX"
      "ME"};
  static const std::vector<std::string> switched_off = {
      "GTEST_"
      "SKIP",
      "DISABLED"
      "_"};
  static const std::set<std::string> drawers = {"util",    "utils",  "helper",
                                                "helpers", "common", "misc"};

  std::vector<std::string> violations;
  const auto folders = CMakeFolders(files);
  for (const SourceFile& file : files) {
    const std::vector<std::string> lines = Lines(file.text);
    if (lines.size() > kMaxLines && Extension(file.path) != ".md") {
      violations.push_back(absl::StrCat(At(file, kMaxLines), "has ",
                                        lines.size(), " lines, at most ",
                                        kMaxLines, " are read with pleasure"));
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      for (const std::string& mark : unfinished) {
        if (HasWord(lines[i], mark)) {
          violations.push_back(absl::StrCat(At(file, i + 1), mark, " is left"));
        }
      }
      for (const std::string& mark : switched_off) {
        if (IsTest(file.path) && absl::StrContains(lines[i], mark)) {
          violations.push_back(
              absl::StrCat(At(file, i + 1), mark, " switches a test off"));
        }
      }
    }
    if (!IsCpp(file)) continue;

    CheckLocks(file, &violations);
    const std::filesystem::path path(file.path);
    const std::vector<std::string> words =
        absl::StrSplit(path.stem().string(), '_');
    for (const std::string& word : words) {
      if (drawers.count(word)) {
        violations.push_back(absl::StrCat(
            At(file, 1), "name the file for what it holds, not ", word));
      }
    }
    const std::string extension = path.extension().string();
    if (extension == ".h" || extension == ".cuh") {
      CheckGuard(file, &violations);
    } else if (!IsBuilt(file.path, folders)) {
      violations.push_back(
          absl::StrCat(At(file, 1), "no CMakeLists.txt names this file"));
    }
  }
  return violations;
}

}  // namespace gshard
