// A temporary directory, removed with the object.

#ifndef TESTS_INTEGRATION_TEMPORARY_DIRECTORY_H_
#define TESTS_INTEGRATION_TEMPORARY_DIRECTORY_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "services/base/check.h"

namespace gshard {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = ::testing::TempDir() + "gshard.XXXXXX";
    CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gshard

#endif  // TESTS_INTEGRATION_TEMPORARY_DIRECTORY_H_
