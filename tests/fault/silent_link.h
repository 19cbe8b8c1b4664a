// SilentLink: a connection that can fall silent, as over a network that was
// cut: both ends stay open, and nothing comes out of them any more.

#ifndef TESTS_FAULT_SILENT_LINK_H_
#define TESTS_FAULT_SILENT_LINK_H_

#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace gshard {

// Listens at one unix socket and passes on to another what comes, as long as it
// is not silent. Thread-safe.
class SilentLink {
 public:
  // Paths. Who listens at `target` may come and go.
  SilentLink(const std::string& path, std::string target);
  ~SilentLink();
  SilentLink(const SilentLink&) = delete;
  SilentLink& operator=(const SilentLink&) = delete;

  // From now on nothing is passed on, accepted or closed.
  void Silence();
  // What waited goes on its way.
  void Heal();

 private:
  void Run();
  void Accept();
  // Passes on what `from` has; whether the connection lives on.
  bool Pass(int from, int to);
  void Wake();

  const std::string target_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::map<int, int> peers_;  // both ways; of the thread
  std::mutex mutex_;
  bool silent_ = false;    // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gshard

#endif  // TESTS_FAULT_SILENT_LINK_H_
