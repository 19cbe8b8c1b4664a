// A folder with certificates and their authority, by
// deploy/tls/certificates.sh.

#ifndef TESTS_TESTING_CERTIFICATES_H_
#define TESTS_TESTING_CERTIFICATES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "services/base/subprocess.h"

namespace gshard {

class Certificates {
 public:
  // `wanted` has the script's arguments: {"server:router", "client:ops"}.
  explicit Certificates(const std::vector<std::string>& wanted =
                            {"server:member,127.0.0.1", "client:ops"})
      : path_(::testing::TempDir() + "gshard_tls.XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    Make(wanted);
  }
  ~Certificates() { std::filesystem::remove_all(path_); }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;

  // Makes more certificates, or makes existing ones again.
  void Make(const std::vector<std::string>& wanted) const {
    std::vector<std::string> argv = {"deploy/tls/certificates.sh", path_};
    argv.insert(argv.end(), wanted.begin(), wanted.end());
    const auto result = RunSubprocess(argv);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->exit_code, 0) << result->error_output;
  }

  std::string Path(const std::string& file) const { return path_ + "/" + file; }
  std::string Authority() const { return Path("ca.pem"); }
  std::string Certificate(const std::string& name) const {
    return Path(name + ".pem");
  }
  std::string Key(const std::string& name) const { return Path(name + ".key"); }

  // Writes a file beside the certificates atomically and returns its path.
  std::string Write(const std::string& file, const std::string& text) const {
    std::ofstream(Path(file) + ".new") << text;
    std::filesystem::rename(Path(file) + ".new", Path(file));
    return Path(file);
  }

 private:
  std::string path_;
};

}  // namespace gshard

#endif  // TESTS_TESTING_CERTIFICATES_H_
