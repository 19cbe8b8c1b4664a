// A test's own directory, removed afterwards, and damage to files in it.

#ifndef TESTS_SERVICES_STORAGE_SCRATCH_DIRECTORY_H_
#define TESTS_SERVICES_STORAGE_SCRATCH_DIRECTORY_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "services/base/check.h"
#include "services/storage/file.h"

namespace gshard {

class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent = ::testing::TempDir())
      : path_(parent + "gshard_test_XXXXXX") {
    CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~ScratchDirectory() { RemoveTree(path_).IgnoreError(); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  CHECK(file.good());
}

// Overwrites the byte at `offset`.
inline void Poke(const std::string& path, size_t offset, char byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
  file.close();
  CHECK(file.good());
}

}  // namespace gshard

#endif  // TESTS_SERVICES_STORAGE_SCRATCH_DIRECTORY_H_
