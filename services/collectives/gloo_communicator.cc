#include "services/collectives/gloo_communicator.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/tcp/device.h"
#include "services/base/status_macros.h"
#include "services/collectives/batch_scheduling.h"
#include "services/collectives/exchange_check.h"
#include "services/collectives/gloo_call.h"
#include "services/collectives/listen_check.h"
#include "services/collectives/sigpipe_guard.h"

namespace gshard {
namespace {

// Identifies a message at both ends. It includes the size, so messages of
// different sizes never match: gloo would terminate the process if more bytes
// came than a buffer holds.
uint64_t MessageSlot(uint64_t exchange, size_t bytes) {
  return exchange << 40 | (bytes & ((uint64_t{1} << 40) - 1));
}

}  // namespace

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> OpenGlooDevice(
    const std::string& host) {
  RETURN_IF_ERROR(CheckListenHost(host));
  gloo::transport::tcp::attr where;
  where.hostname = host;
  std::shared_ptr<gloo::transport::Device> device;
  RETURN_IF_ERROR(CatchGloo([&] {
    // Gloo's loop thread spins while another thread of its process holds the
    // lock of a connection. With fewer cores than threads it may preempt that
    // thread in the middle of a write and then spins until its time slice ends:
    // milliseconds, for an exchange that takes a fraction of one.
    const BatchScheduling inherited_by_the_loop;
    device = gloo::transport::tcp::CreateDevice(where);
  }));
  return device;
}

GlooCommunicator::GlooCommunicator(std::unique_ptr<gloo::Context> context)
    : context_(std::move(context)) {}

GlooCommunicator::~GlooCommunicator() {
  const SigpipeGuard guard;
  context_.reset();
}

absl::Status GlooCommunicator::Greet() {
  std::vector<char> greeting(1), greetings(size());
  std::vector<SendBytes> send(size());
  std::vector<ReceiveBytes> receive(size());
  for (int r = 0; r < size(); ++r) {
    send[r] = {greeting.data(), 1};
    receive[r] = {&greetings[r], 1};
  }
  RETURN_IF_ERROR(TryExchange(send, receive));
  exchange_ = 0;
  MutexLock lock(mutex_);
  greeted_ = true;
  return absl::OkStatus();
}

absl::Status GlooCommunicator::Exchange(
    absl::Span<const SendBytes> send, absl::Span<const ReceiveBytes> receive) {
  RETURN_IF_ERROR(CheckExchange(rank(), size(), send, receive));
  RETURN_IF_ERROR(broken_);
  return TryExchange(send, receive);
}

absl::Status GlooCommunicator::TryExchange(
    absl::Span<const SendBytes> send, absl::Span<const ReceiveBytes> receive) {
  broken_ = CatchGloo([&] { ExchangeOrThrow(send, receive); });
  MutexLock lock(mutex_);
  // Takes precedence over errors of the connections.
  if (aborted_) broken_ = absl::CancelledError("the group was aborted");
  if (!broken_.ok()) {
    broken_ =
        Annotate(broken_, absl::StrCat("exchange ", exchange_, " of rank ",
                                       rank(), " of ", size()));
    // The other members are waiting for this one.
    if (greeted_) Close();
  }
  ++exchange_;
  return broken_;
}

void GlooCommunicator::Close() {
  CatchGloo([&] { context_->closeConnections(); }).IgnoreError();
}

bool GlooCommunicator::Announce(const std::vector<Buffer>* sending,
                                const std::vector<Buffer>* receiving) {
  MutexLock lock(mutex_);
  sending_ = sending;
  receiving_ = receiving;
  return !aborted_;
}

void GlooCommunicator::Abort() {
  MutexLock lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  if (sending_ != nullptr) {
    for (const Buffer& buffer : *sending_) buffer->abortWaitSend();
    for (const Buffer& buffer : *receiving_) buffer->abortWaitRecv();
  }
  if (greeted_) Close();
}

void GlooCommunicator::ExchangeOrThrow(absl::Span<const SendBytes> send,
                                       absl::Span<const ReceiveBytes> receive) {
  std::vector<Buffer> sending, receiving;
  // Receives first: bytes without a posted receive wait for a message back.
  for (int i = 1; i < size(); ++i) {
    const int from = (rank() + size() - i) % size();
    if (receive[from].size == 0) continue;
    receiving.push_back(
        context_->createUnboundBuffer(receive[from].data, receive[from].size));
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
  struct Retraction {
    GlooCommunicator* group;
    ~Retraction() { group->Announce(nullptr, nullptr); }
  } const retraction{this};
  if (!Announce(&sending, &receiving)) return;
  for (const Buffer& buffer : receiving) {
    if (!buffer->waitRecv()) return;
  }
  for (const Buffer& buffer : sending) {
    if (!buffer->waitSend()) return;
  }
}

}  // namespace gshard
