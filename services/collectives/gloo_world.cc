#include "services/collectives/gloo_world.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gloo/common/error.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/rendezvous/prefix_store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "services/base/status_macros.h"
#include "services/collectives/batch_scheduling.h"
#include "services/collectives/exchange_check.h"
#include "services/collectives/listen_check.h"
#include "services/collectives/sigpipe_guard.h"

namespace gshard {
namespace {

// Runs `call` and makes a status of what gloo throws.
template <typename Call>
absl::Status Catch(const Call& call) {
  const SigpipeGuard guard;
  try {
    call();
    return absl::OkStatus();
  } catch (const gloo::IoException& e) {
    const std::string message = absl::AsciiStrToLower(e.what());
    if (absl::StrContains(message, "timeout") ||
        absl::StrContains(message, "timed out")) {
      return absl::DeadlineExceededError(e.what());
    }
    return absl::UnavailableError(e.what());
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

// A file store that waits no longer than it is told: gloo's own get() has a
// fixed 30 seconds.
class PatientStore : public gloo::rendezvous::Store {
 public:
  PatientStore(const std::string& folder, std::chrono::milliseconds timeout)
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

// What the two ends of a message have to agree about. As the size is part of
// it, messages of another size never match: gloo would end the process if more
// bytes came than a buffer holds.
uint64_t MessageSlot(uint64_t exchange, size_t bytes) {
  return exchange << 40 | (bytes & ((uint64_t{1} << 40) - 1));
}

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<gloo::rendezvous::Context> context)
      : context_(std::move(context)) {}

  ~GlooCommunicator() override {
    const SigpipeGuard guard;
    context_.reset();
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    RETURN_IF_ERROR(CheckExchange(rank(), size(), send, receive));
    RETURN_IF_ERROR(broken_);
    broken_ = Catch([&] { ExchangeOrThrow(send, receive); });
    if (!broken_.ok()) {
      broken_ =
          Annotate(broken_, absl::StrCat("exchange ", exchange_, " of rank ",
                                         rank(), " of ", size()));
      // The other members are waiting for this one.
      Catch([&] { context_->closeConnections(); }).IgnoreError();
    }
    ++exchange_;
    return broken_;
  }

 private:
  void ExchangeOrThrow(absl::Span<const SendBytes> send,
                       absl::Span<const ReceiveBytes> receive) {
    using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
    std::vector<Buffer> sending, receiving;
    // Receives first: bytes for which nothing is ready wait for a message back.
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + size() - i) % size();
      if (receive[from].size == 0) continue;
      receiving.push_back(context_->createUnboundBuffer(receive[from].data,
                                                        receive[from].size));
      receiving.back()->recv(from, MessageSlot(exchange_, receive[from].size));
    }
    for (int i = 1; i < size(); ++i) {
      const int to = (rank() + i) % size();
      if (send[to].size == 0) continue;
      sending.push_back(context_->createUnboundBuffer(
          const_cast<void*>(send[to].data), send[to].size));
      sending.back()->send(to, MessageSlot(exchange_, send[to].size));
    }
    const ReceiveBytes& own = receive[rank()];
    if (own.size > 0 && own.data != send[rank()].data) {
      std::memcpy(own.data, send[rank()].data, own.size);
    }
    for (const Buffer& buffer : receiving) buffer->waitRecv();
    for (const Buffer& buffer : sending) buffer->waitSend();
  }

  std::unique_ptr<gloo::rendezvous::Context> context_;
  uint64_t exchange_ = 0;
  absl::Status broken_;
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
  gloo::transport::tcp::attr where;
  if (options.network_interface.empty()) {
    RETURN_IF_ERROR(CheckListenHost(options.host));
    where.hostname = options.host;
  } else {
    RETURN_IF_ERROR(CheckListenInterface(options.network_interface));
    where.iface = options.network_interface;
  }
  auto network = std::make_unique<Network>();
  RETURN_IF_ERROR(Catch([&] {
    // Gloo's loop thread spins while another thread of its process holds the
    // lock of a connection. If it preempts that thread, in the middle of a
    // write, where there are fewer cores than threads, it spins until its time
    // is up: milliseconds for an exchange that takes a fraction of one.
    const BatchScheduling inherited_by_the_loop;
    network->device = gloo::transport::tcp::CreateDevice(where);
  }));
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
  RETURN_IF_ERROR(Annotate(Catch([&] {
                             PatientStore files(options_.rendezvous_folder,
                                                options_.timeout);
                             gloo::rendezvous::PrefixStore store(name, files);
                             context->connectFullMesh(store, network_->device);
                           }),
                           absl::StrCat("device ", rank(), " joining ", name)));
  std::unique_ptr<Communicator>& communicator = groups_[std::move(key)];
  communicator = std::make_unique<GlooCommunicator>(std::move(context));
  return communicator.get();
}

}  // namespace gshard
