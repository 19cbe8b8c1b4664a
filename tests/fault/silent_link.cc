#include "tests/fault/silent_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "services/base/check.h"

namespace gshard {
namespace {

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  return address;
}

int NewSocket() {
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(socket_fd >= 0);
  return socket_fd;
}

}  // namespace

SilentLink::SilentLink(const std::string& path, std::string target)
    : target_(std::move(target)), listener_(NewSocket()) {
  const sockaddr_un address = AddressOf(path);
  CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) == 0);
  CHECK(listen(listener_, 16) == 0);
  CHECK(pipe(wake_) == 0);
  thread_ = std::thread([this] { Run(); });
}

SilentLink::~SilentLink() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  for (const auto& [from, to] : peers_) close(from);
  for (const int fd : {listener_, wake_[0], wake_[1]}) close(fd);
}

void SilentLink::Silence() {
  std::lock_guard<std::mutex> lock(mutex_);
  silent_ = true;
}

void SilentLink::Heal() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    silent_ = false;
  }
  Wake();
}

void SilentLink::Wake() { CHECK(write(wake_[1], "", 1) == 1); }

void SilentLink::Run() {
  while (true) {
    std::vector<pollfd> waiting = {{wake_[0], POLLIN, 0}};
    bool silent = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      silent = silent_;
    }
    if (!silent) {
      waiting.push_back({listener_, POLLIN, 0});
      for (const auto& [from, to] : peers_)
        waiting.push_back({from, POLLIN, 0});
    }
    CHECK(poll(waiting.data(), waiting.size(), -1) >= 0);
    {
      // Silence() may have been called during the poll.
      std::lock_guard<std::mutex> lock(mutex_);
      silent = silent_;
    }
    for (const pollfd& ready : waiting) {
      if (ready.revents == 0) continue;
      if (ready.fd == wake_[0]) {
        char byte = 0;
        CHECK(read(wake_[0], &byte, 1) == 1);
      } else if (silent) {
        continue;
      } else if (ready.fd == listener_) {
        Accept();
      } else if (const auto peer = peers_.find(ready.fd);
                 peer != peers_.end() && !Pass(ready.fd, peer->second)) {
        const int to = peer->second;
        for (const int fd : {ready.fd, to}) {
          peers_.erase(fd);
          close(fd);
        }
      }
    }
  }
}

void SilentLink::Accept() {
  const int from = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (from < 0) return;
  const int to = NewSocket();
  const sockaddr_un address = AddressOf(target_);
  if (connect(to, reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    close(from);
    close(to);
    return;
  }
  peers_[from] = to;
  peers_[to] = from;
}

bool SilentLink::Pass(int from, int to) {
  char buffer[1 << 16];
  const ssize_t got = read(from, buffer, sizeof(buffer));
  if (got <= 0) return false;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t now = send(to, buffer + sent, got - sent, MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return true;
}

}  // namespace gshard
