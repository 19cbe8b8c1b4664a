// DeafServer: an HTTP/2 server on a unix socket that grants the largest windows
// and then reads nothing, like a paused process.

#ifndef TESTS_TESTING_DEAF_SERVER_H_
#define TESTS_TESTING_DEAF_SERVER_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gshard {

class DeafServer {
 public:
  DeafServer() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, Path().c_str());
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address),
                   sizeof address),
              0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Greet(); });
  }

  // Closes its connections, which ends calls that wait for them.
  ~DeafServer() {
    stopping_ = true;
    thread_.join();
    for (const int connection : connections_) close(connection);
    close(listener_);
    std::filesystem::remove_all(directory_);
  }

  DeafServer(const DeafServer&) = delete;
  DeafServer& operator=(const DeafServer&) = delete;

  std::string address() const { return "unix:" + Path(); }

  // Returns once there have been `connections` connections and the last one has
  // at least `bytes` unread bytes.
  void AwaitBytes(int bytes, size_t connections = 1) {
    int unread = 0;
    while (unread < bytes) {
      std::this_thread::yield();
      std::lock_guard<std::mutex> lock(mutex_);
      if (connections_.size() < connections) continue;
      EXPECT_EQ(ioctl(connections_.back(), FIONREAD, &unread), 0);
    }
  }

 private:
  std::string Path() const { return directory_ + "/socket"; }

  void Greet() {
    // SETTINGS with the largest window for streams, and a WINDOW_UPDATE with
    // the largest for the connection.
    static constexpr unsigned char kGreeting[] = {
        0, 0, 6, 4, 0, 0, 0, 0, 0, 0,    4,    0x7f, 0xff, 0xff, 0xff,  //
        0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0,    0};
    while (!stopping_) {
      pollfd waiting = {listener_, POLLIN, 0};
      if (poll(&waiting, 1, /*timeout=*/10) < 1) continue;
      const int connection = accept(listener_, nullptr, nullptr);
      EXPECT_EQ(send(connection, kGreeting, sizeof kGreeting, MSG_NOSIGNAL),
                static_cast<ssize_t>(sizeof kGreeting));
      std::lock_guard<std::mutex> lock(mutex_);
      connections_.push_back(connection);
    }
  }

  std::string directory_ =
      std::filesystem::temp_directory_path().string() + "/gshard-deaf-XXXXXX";
  const int listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::vector<int> connections_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gshard

#endif  // TESTS_TESTING_DEAF_SERVER_H_
