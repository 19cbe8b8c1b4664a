#include "client/router_list.h"

#include <algorithm>
#include <utility>

#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"

namespace gshard {
namespace {

constexpr std::chrono::seconds kRefreshPause{1};

// Nobody was found there, or it cannot be reached.
bool HasFailed(grpc::Channel& channel) {
  return channel.GetState(/*try_to_connect=*/false) ==
         GRPC_CHANNEL_TRANSIENT_FAILURE;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterList>> RouterList::Create(
    const std::vector<std::string>& addresses, Find find,
    const SecurityOptions& security) {
  if (addresses.empty()) {
    return absl::InvalidArgumentError("expected a router's address, got none");
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Security> client_security,
                   Security::CreateForClient(security));
  if (find == nullptr) {
    find = [addresses]() -> absl::StatusOr<std::vector<std::string>> {
      return addresses;
    };
  }
  std::unique_ptr<RouterList> list(
      new RouterList(std::move(find), std::move(client_security)));
  MutexLock lock(list->mutex_);
  for (const std::string& address : addresses) {
    ASSIGN_OR_RETURN(std::shared_ptr<Router> router, list->RouterAt(address));
    list->routers_.push_back(std::move(router));
  }
  list->most_ = list->routers_.size();
  lock.Unlock();
  return list;
}

absl::StatusOr<std::shared_ptr<RouterList::Router>> RouterList::RouterAt(
    const std::string& address) {
  for (const std::shared_ptr<Router>& router : routers_) {
    // A name that has had no address for a while gRPC resolves again at growing
    // intervals of up to 2 minutes, a new channel at once.
    if (router->address == address && !HasFailed(*router->channel)) {
      return router;
    }
  }
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                   CreateChannel(address, {.security = security_}));
  return std::make_shared<Router>(address, std::move(channel));
}

size_t RouterList::size() {
  MutexLock lock(mutex_);
  return routers_.size();
}

std::shared_ptr<RouterList::Router> RouterList::Get(size_t turn) {
  MutexLock lock(mutex_);
  return routers_[turn % routers_.size()];
}

void RouterList::Refresh(bool lost) {
  {
    MutexLock lock(mutex_);
    if (!lost && routers_.size() >= most_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_refresh_) return;
    next_refresh_ = now + kRefreshPause;
  }
  const absl::StatusOr<std::vector<std::string>> addresses = find_();
  if (!addresses.ok()) return;
  Routers routers;  // outlives the lock: the end of a stream may take time
  MutexLock lock(mutex_);
  for (const std::string& address : *addresses) {
    absl::StatusOr<std::shared_ptr<Router>> router = RouterAt(address);
    if (router.ok()) routers.push_back(*std::move(router));
  }
  if (!routers.empty()) routers_.swap(routers);
  most_ = std::max(most_, routers_.size());
}

}  // namespace gshard
