// RouterList: the routers that a command calls in turn, with a stream to each.
// Where the coordinator named them, it is asked again after a loss, because
// routers that are restarted may have other addresses.

#ifndef CLIENT_ROUTER_LIST_H_
#define CLIENT_ROUTER_LIST_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/stream_caller.h"
#include "services/base/mutex.h"
#include "services/config/security_options.h"
#include "services/rpc/security/security.h"

namespace gshard {

// Thread-safe.
class RouterList {
 public:
  struct Router {
    Router(std::string address, std::shared_ptr<grpc::Channel> channel)
        : address(address), channel(channel), stream(address, channel) {}

    const std::string address;
    const std::shared_ptr<grpc::Channel> channel;
    StreamCaller stream;
  };

  using Find = std::function<absl::StatusOr<std::vector<std::string>>()>;

  // `find` returns the addresses as they are now; null: they do not change.
  //
  // Errors: InvalidArgument if an address is invalid or there is none; those of
  // Security::CreateForClient.
  static absl::StatusOr<std::unique_ptr<RouterList>> Create(
      const std::vector<std::string>& addresses, Find find,
      const SecurityOptions& security);

  size_t size();
  std::shared_ptr<Router> Get(size_t turn);

  // Asks for the addresses again, at most once a second: after a loss, or while
  // there are fewer than there have been, as those may be back. Routers that
  // are still named keep their streams, unless they cannot be reached; if none
  // is found, all stay.
  void Refresh(bool lost);

 private:
  using Routers = std::vector<std::shared_ptr<Router>>;

  RouterList(Find find, std::shared_ptr<const Security> security)
      : find_(std::move(find)), security_(std::move(security)) {}

  // The router at `address`: the one that is there and can be reached, or a new
  // one.
  absl::StatusOr<std::shared_ptr<Router>> RouterAt(const std::string& address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Find find_;
  const std::shared_ptr<const Security> security_;
  Mutex mutex_;
  Routers routers_ ABSL_GUARDED_BY(mutex_);
  size_t most_ ABSL_GUARDED_BY(mutex_) = 0;  // that there have been
  std::chrono::steady_clock::time_point next_refresh_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // CLIENT_ROUTER_LIST_H_
