// A folder in /tmp, removed with the object; its path is short enough for unix
// sockets.

#ifndef TESTS_CLIENT_SCRATCH_FOLDER_H_
#define TESTS_CLIENT_SCRATCH_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace gshard {

class ScratchFolder {
 public:
  ScratchFolder() : path_("/tmp/gshard-client-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

  // Returns the path of the file.
  std::string Write(const std::string& name, const std::string& text,
                    bool executable = false) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file) << text;
    if (executable) {
      std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    }
    return file;
  }

  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path_ + "/" + name).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

}  // namespace gshard

#endif  // TESTS_CLIENT_SCRATCH_FOLDER_H_
