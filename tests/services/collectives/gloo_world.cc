#include "tests/services/collectives/gloo_world.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/rendezvous/prefix_store.h"
#include "services/base/status_macros.h"
#include "services/collectives/gloo_call.h"
#include "services/collectives/gloo_communicator.h"

namespace gshard {
namespace {

// A file store that respects the given timeout: gloo's own get() has a fixed 30
// seconds.
class BoundedWaitStore : public gloo::rendezvous::Store {
 public:
  BoundedWaitStore(const std::string& folder, std::chrono::milliseconds timeout)
      : files_(folder), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    files_.set(key, data);
  }
  std::vector<char> get(const std::string& key) override {
    wait({key}, timeout_);
    return files_.get(key);
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    files_.wait(keys, std::min(timeout, timeout_));
  }

 private:
  gloo::rendezvous::FileStore files_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace

struct GlooWorld::Network {
  std::shared_ptr<gloo::transport::Device> device;
};

absl::StatusOr<std::unique_ptr<GlooWorld>> GlooWorld::Create(
    const GlooOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rank below the number of devices, got rank ",
                     options.rank, " of ", options.size));
  }
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a positive timeout, got ", options.timeout.count(), " ms"));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.rendezvous_folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("no rendezvous folder '", options.rendezvous_folder, "'"));
  }
  auto network = std::make_unique<Network>();
  ASSIGN_OR_RETURN(network->device, OpenGlooDevice(options.host));
  return std::unique_ptr<GlooWorld>(new GlooWorld(options, std::move(network)));
}

GlooWorld::GlooWorld(const GlooOptions& options,
                     std::unique_ptr<Network> network)
    : options_(options), network_(std::move(network)) {}

GlooWorld::~GlooWorld() = default;

absl::StatusOr<Communicator*> GlooWorld::Group(absl::Span<const int> ranks) {
  std::vector<int> key(ranks.begin(), ranks.end());
  if (const auto found = groups_.find(key); found != groups_.end()) {
    return found->second.get();
  }
  ASSIGN_OR_RETURN(const int position, RankInGroup(rank(), size(), ranks));
  const std::string name = absl::StrCat("group_", absl::StrJoin(ranks, "_"));
  auto context = std::make_unique<gloo::rendezvous::Context>(
      position, static_cast<int>(ranks.size()));
  context->setTimeout(options_.timeout);
  RETURN_IF_ERROR(Annotate(CatchGloo([&] {
                             BoundedWaitStore files(options_.rendezvous_folder,
                                                    options_.timeout);
                             gloo::rendezvous::PrefixStore store(name, files);
                             context->connectFullMesh(store, network_->device);
                           }),
                           absl::StrCat("device ", rank(), " joining ", name)));
  auto communicator = std::make_unique<GlooCommunicator>(std::move(context));
  RETURN_IF_ERROR(Annotate(communicator->Greet(),
                           absl::StrCat("device ", rank(), " joining ", name)));
  return (groups_[std::move(key)] = std::move(communicator)).get();
}

}  // namespace gshard
