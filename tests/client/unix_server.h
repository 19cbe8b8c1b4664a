// Serves a fake gRPC service on its own unix socket.

#ifndef TESTS_CLIENT_UNIX_SERVER_H_
#define TESTS_CLIENT_UNIX_SERVER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/rpc/server/server.h"
#include "tests/client/scratch_folder.h"

namespace gshard {

// Serves from construction to destruction, which ends open calls. Declare it as
// the last member of the service that it serves.
class UnixServer {
 public:
  UnixServer(grpc::Service* service, const char* full_name)
      : server_({.address = absl::StrCat("unix:", folder_.path(), "/s")}) {
    server_.AddService(service, full_name);
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  ~UnixServer() { server_.Drain(std::chrono::milliseconds(0)); }

  const std::string& address() const { return server_.address(); }

 private:
  const ScratchFolder folder_;
  ServerShell server_;
};

}  // namespace gshard

#endif  // TESTS_CLIENT_UNIX_SERVER_H_
