// Runs a fuzzer on files, without libFuzzer, which turns the corpora into
// tests. If the fuzzer defines a custom mutator, also runs mutants of each
// file, the same every time.
//
//   fuzz_program_test FILE_OR_FOLDER...

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzer.h"

extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                                                size_t size,
                                                                size_t max_size,
                                                                unsigned seed);

namespace {

constexpr unsigned kMutants = 100;  // per input
constexpr size_t kMaxBytes = 65536;

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()),
                         bytes.size());
}

// Mutates each mutant further; every tenth restarts from the input.
void RunMutants(const std::string& bytes) {
  std::string mutant;
  for (unsigned i = 0; i < kMutants; ++i) {
    if (i % 10 == 0) mutant = bytes;
    const size_t size = mutant.size();
    mutant.resize(kMaxBytes);
    mutant.resize(LLVMFuzzerCustomMutator(
        reinterpret_cast<uint8_t*>(mutant.data()), size, kMaxBytes, i));
    Run(mutant);
  }
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    // Printed before it runs: the last line names the input that crashed.
    std::fprintf(stderr, "%s\n", file.c_str());
    const std::string bytes = Read(file);
    Run(bytes);
    if (LLVMFuzzerCustomMutator != nullptr && bytes.size() <= kMaxBytes) {
      RunMutants(bytes);
    }
  }
  std::fprintf(stderr, "%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
