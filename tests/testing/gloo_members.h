// Devices that communicate over gloo: threads of this process, or processes.

#ifndef TESTS_TESTING_GLOO_MEMBERS_H_
#define TESTS_TESTING_GLOO_MEMBERS_H_

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "tests/services/collectives/gloo_world.h"

namespace gshard {

// A new empty folder, removed with its contents.
class RendezvousFolder {
 public:
  RendezvousFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "gshard_gloo.XXXXXX")
            .string();
    path_ = mkdtemp(pattern.data());
  }
  ~RendezvousFolder() { std::filesystem::remove_all(path_); }
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline GlooOptions MemberOptions(
    const std::string& folder, int rank, int size,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  GlooOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous_folder = folder;
  options.timeout = timeout;
  return options;
}

// Runs `device` on `size` threads, each with its own connections, which are
// closed when `device` returns. Returns statuses by rank.
inline std::vector<absl::Status> RunOnGlooThreads(
    int size, const std::function<absl::Status(World&)>& device,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const RendezvousFolder folder;
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto world,
                         GlooWorld::Create(MemberOptions(folder.path(), rank,
                                                         size, timeout)));
        return device(*world);
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace gshard

#endif  // TESTS_TESTING_GLOO_MEMBERS_H_
