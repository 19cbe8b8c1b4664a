#include "services/collectives/gloo_rendezvous.h"

#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/context.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/address.h"
#include "services/base/status_macros.h"
#include "services/collectives/gloo_call.h"
#include "services/collectives/gloo_communicator.h"

namespace gshard {
namespace {

using GlooAddress = gloo::transport::tcp::Address;

absl::Status CheckAddress(const std::string& address) {
  const size_t expected = GlooAddress().bytes().size();
  if (address.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", expected, " bytes, got ", address.size()));
  }
  const GlooAddress parsed(std::vector<char>(address.begin(), address.end()));
  const int family = parsed.getSockaddr().ss_family;
  if (family != AF_INET && family != AF_INET6) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an internet address, got family ", family));
  }
  return absl::OkStatus();
}

}  // namespace

class GlooRendezvous::Endpoints : public gloo::Context {
 public:
  Endpoints(const GlooRendezvousOptions& options,
            std::shared_ptr<gloo::transport::Device> device)
      : gloo::Context(options.rank, options.size) {
    setTimeout(options.timeout);
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(options.timeout);
  }

  ~Endpoints() override {
    const SigpipeGuard guard;
    // In this order, like gloo's own contexts: connections before their loop.
    transportContext_.reset();
  }

  // The local addresses, by member. Throws.
  std::vector<std::string> Open() {
    std::vector<std::string> addresses(size);
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      const std::vector<char> bytes =
          transportContext_->createPair(r)->address().bytes();
      addresses[r].assign(bytes.begin(), bytes.end());
    }
    return addresses;
  }

  // Ends early after Interrupt(). Throws.
  void Connect(absl::Span<const std::string> addresses) {
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      gloo::transport::Pair* const pair = getPair(r).get();
      {
        MutexLock lock(mutex_);
        if (interrupted_) return;
        connecting_ = pair;
      }
      pair->connect(
          std::vector<char>(addresses[r].begin(), addresses[r].end()));
      MutexLock lock(mutex_);
      connecting_ = nullptr;
    }
  }

  // Thread-safe.
  void Interrupt() {
    MutexLock lock(mutex_);
    interrupted_ = true;
    if (connecting_ != nullptr) connecting_->close();
  }

 private:
  Mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  gloo::transport::Pair* connecting_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

GlooRendezvous::GlooRendezvous() = default;
GlooRendezvous::~GlooRendezvous() = default;

absl::StatusOr<std::unique_ptr<GlooRendezvous>> GlooRendezvous::Create(
    const GlooRendezvousOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rank below the number of members, got rank ",
                     options.rank, " of ", options.size));
  }
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a positive timeout, got ", options.timeout.count(), " ms"));
  }
  ASSIGN_OR_RETURN(auto device, OpenGlooDevice(options.host));
  std::unique_ptr<GlooRendezvous> rendezvous(new GlooRendezvous());
  RETURN_IF_ERROR(CatchGloo([&] {
    rendezvous->owned_endpoints_ =
        std::make_unique<Endpoints>(options, std::move(device));
    rendezvous->addresses_ = rendezvous->owned_endpoints_->Open();
    MutexLock lock(rendezvous->mutex_);
    rendezvous->endpoints_ = rendezvous->owned_endpoints_.get();
  }));
  return rendezvous;
}

absl::StatusOr<Communicator*> GlooRendezvous::Join(
    absl::Span<const std::string> addresses) {
  const size_t size = addresses_.size();
  if (addresses.size() != size) {
    return absl::InvalidArgumentError(absl::StrCat("expected the addresses of ",
                                                   size, " members, got ",
                                                   addresses.size()));
  }
  if (owned_endpoints_ == nullptr) {
    return absl::FailedPreconditionError("the members have met before");
  }
  const int rank = owned_endpoints_->rank;
  for (int r = 0; r < static_cast<int>(size); ++r) {
    if (r == rank) continue;
    RETURN_IF_ERROR(Annotate(CheckAddress(addresses[r]),
                             absl::StrCat("address of member ", r)));
  }
  absl::Status status =
      CatchGloo([&] { owned_endpoints_->Connect(addresses); });
  GlooCommunicator* group = nullptr;
  {
    MutexLock lock(mutex_);
    endpoints_ = nullptr;
    if (aborted_) status = absl::CancelledError("the rendezvous was aborted");
    if (status.ok()) {
      group_ = std::make_unique<GlooCommunicator>(std::move(owned_endpoints_));
      group = group_.get();
    }
  }
  if (status.ok()) status = group->Greet();
  if (status.ok()) return group;
  // The others must not wait for this one.
  MutexLock lock(mutex_);
  group_ = nullptr;
  owned_endpoints_ = nullptr;
  return Annotate(status,
                  absl::StrCat("member ", rank, " of ", size, " joining"));
}

void GlooRendezvous::Abort() {
  MutexLock lock(mutex_);
  aborted_ = true;
  if (group_ != nullptr) return group_->Abort();
  if (endpoints_ != nullptr) endpoints_->Interrupt();
}

}  // namespace gshard
