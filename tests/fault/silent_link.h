// SilentLink: a connection that can go silent, like a cut network: both ends
// stay open but receive nothing more.

#ifndef TESTS_FAULT_SILENT_LINK_H_
#define TESTS_FAULT_SILENT_LINK_H_

#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace gshard {

// Listens on one unix socket and relays to another unless silenced.
// Thread-safe.
class SilentLink {
 public:
  // Both are paths. The server at `target` may come and go.
  SilentLink(const std::string& path, std::string target);
  ~SilentLink();
  SilentLink(const SilentLink&) = delete;
  SilentLink& operator=(const SilentLink&) = delete;

  // Stops relaying, accepting and closing.
  void Silence();
  // Delivers what has waited.
  void Heal();

 private:
  void Run();
  void Accept();
  // Relays what `from` has; returns whether the connection stays open.
  bool Pass(int from, int to);
  void Wake();

  const std::string target_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::map<int, int> peers_;  // both directions; thread_ only
  std::mutex mutex_;
  bool silent_ = false;    // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gshard

#endif  // TESTS_FAULT_SILENT_LINK_H_
