#include "router/router_process.h"

#include <functional>
#include <utility>

#include "services/moe/graph_ops.h"
#include "services/rpc/client/channel.h"
#include "services/segments/role_split.h"

namespace gshard {
namespace {

// Workers may come and go without a command from the coordinator.
constexpr std::chrono::milliseconds kReadinessInterval{200};

BatcherOptions BatcherOptionsOf(const RouterOptions& options,
                                const Tracer& tracer) {
  BatcherOptions batcher = options.batcher;
  batcher.admission.max_wait = absl::ToChronoMilliseconds(options.max_wait);
  batcher.tracer = tracer;
  return batcher;
}

TranslationLimits LimitsOf(const RouterOptions& options) {
  TranslationLimits limits = options.limits;
  limits.max_request_time =
      absl::ToChronoMilliseconds(options.max_request_time);
  limits.preparer.max_bytes = options.max_preparing_mib << 20;
  return limits;
}

}  // namespace

void AddRouterFlags(Flags& flags, RouterOptions* options) {
  flags.Version(GSHARD_VERSION);
  AddMemberFlags(flags, &options->process);
  AddProcessFlags(flags, &options->process);
  flags.Integer("batches", &options->batcher.threads, 1, 1024,
                "batches that are translated at the same time, each by a "
                "thread that the --threads help");
  flags.Integer("preparation_threads", &options->limits.preparer.threads, 1,
                1024,
                "requests that are turned into tokens at the same time, a "
                "thread each");
  flags.Integer("max_preparing_mib", &options->max_preparing_mib, 4, 1 << 20,
                "MiB of requests that may wait for that");
  flags.Integer("max_queued_tokens",
                &options->batcher.admission.max_queued_tokens, 1,
                int64_t{1} << 40,
                "tokens that may wait, times the hypotheses of the beam");
  flags.Integer("max_queued_sentences",
                &options->batcher.admission.max_queued_sentences, 1,
                int64_t{1} << 30, "sentences that may wait");
  flags.Integer("max_caller_tokens",
                &options->batcher.admission.max_caller_tokens, 1,
                int64_t{1} << 40,
                "tokens that one caller may have waiting and running, times "
                "the hypotheses of the beam; a caller is who it proves to be, "
                "else its host: its address, of IPv6 the /64 network");
  flags.Duration("max_wait", &options->max_wait,
                 "a request that would be answered later is refused, whatever "
                 "its deadline");
  flags.Duration("max_request_time", &options->max_request_time,
                 "time that a sentence may take at most, whatever its "
                 "deadline");
  flags.Integer("max_stream_sentences", &options->limits.max_stream_sentences,
                1, int64_t{1} << 30,
                "sentences of one stream that may be under way or not yet "
                "taken by its client");
  flags.Integer("max_caller_streams", &options->limits.max_caller_streams, 1,
                int64_t{1} << 30, "streams that a caller may have open");
  flags.Bool("enable_debug_calls", &options->limits.debug_calls,
             "answer ExplainRouting");
  flags.Bool(
      "per_expert_metrics", &options->per_expert_metrics,
      "adds a series for each expert of each layer, of at most 131072 in "
      "total; more are counted together, as \"other\"");
  flags.Integer(
      "max_batch_rows", &options->batcher.batch.max_rows, 1, 65536,
      "hypotheses that a batch decodes together; one caller's at most "
      "two thirds of many; one sentence's beam may be larger");
  flags.Integer("max_cached_positions", &options->batcher.batch.max_positions,
                1, int64_t{1} << 30,
                "source and target positions, times the hypotheses, that a "
                "batch has keys and values of: 8 bytes each a decoder layer "
                "and element of the heads");
  flags.Integer("max_encode_tokens", &options->batcher.batch.max_encode_tokens,
                1, int64_t{1} << 30,
                "source tokens of joining sentences that running ones wait for "
                "between two steps, on average if a sentence has more");
  flags.Text("device", &options->device_name, "cpu|cuda:N",
             "what computes all but the experts: the CPU, or a GPU by its "
             "number among those that the process sees; with the coordinator's "
             "--reduce=nccl each router needs a GPU of its own");
  flags.Text("reduce_host", &options->reduce_host, "HOST",
             "name or address of this machine on which other routers reach it "
             "when the coordinator has --reduce=gloo, at ports that the system "
             "chooses. Whoever reaches them gets in: other than loopback it "
             "needs --insecure. Empty: that of its address");
}

// The coordinator's commands, and the router's membership.
class RouterProcess::Commands final : public MemberHandler {
 public:
  explicit Commands(RouterProcess* process) : process_(process) {}

  v1::CommandReply Handle(const v1::Command& command) override {
    v1::CommandReply reply = process_->sessions_->Handle(command);
    process_->UpdateReadiness();
    return reply;
  }
  std::function<v1::CommandReply()> Begin(const v1::Command& command) override {
    return process_->sessions_->Begin(command);
  }
  void Interrupt(const std::string& session) override {
    process_->sessions_->Interrupt(session);
  }
  void OnLost() override {
    process_->sessions_->DropTraining();
    // Clients need no coordinator.
    process_->server().SetReady(process_->sessions_->ready());
    process_->UpdateReadiness();
  }
  v1::Heartbeat Load() override {
    const Device* const device = process_->options_.device.get();
    if (device != nullptr && !device->status().ok()) {
      process_->End(device->status());
    }
    v1::Heartbeat load;
    load.set_in_flight(
        static_cast<int32_t>(process_->batcher_.running_sentences()));
    load.set_queued(
        static_cast<int32_t>(process_->batcher_.queued_sentences()));
    load.set_memory_bytes_used(process_->sessions_->memory_bytes());
    for (v1::SessionLoad& session : process_->sessions_->Loads()) {
      *load.add_session_loads() = std::move(session);
    }
    return load;
  }
  void OnAccepted(const v1::MemberAccepted& accepted) override {
    process_->models_.Expect(
        {accepted.models().begin(), accepted.models().end()});
    process_->server().SetReady(true);
    process_->UpdateReadiness();
  }
  void OnRefused(const absl::Status& status) override { process_->End(status); }

 private:
  RouterProcess* const process_;
};

RouterProcess::RouterProcess(RouterOptions options)
    : ProcessShell(options.process, "router", GSHARD_VERSION),
      options_(std::move(options)),
      router_metrics_(metrics(), options_.per_expert_metrics),
      batcher_(BatcherOptionsOf(options_, tracer()), router_metrics_),
      service_(&models_, &batcher_, router_metrics_, LimitsOf(options_)) {
  // Before any program is built.
  RegisterMoeOps();
  RegisterShardingOps();
  server().AddService(&service_, Service());
}

RouterProcess::~RouterProcess() {
  Drain(std::chrono::milliseconds(0));
  if (readiness_thread_.joinable()) readiness_thread_.join();
  Close();
}

void RouterProcess::UpdateReadiness() {
  MutexLock lock(readiness_mutex_);
  const bool ready = sessions_->ready();
  if (ready_ == ready) return;
  ready_ = ready;
  server().SetServiceReady(Service(), ready);
}

void RouterProcess::WatchReadiness() {
  while (!EndsWithin(kReadinessInterval)) UpdateReadiness();
}

absl::Status RouterProcess::Serve() {
  server().SetServiceReady(Service(), false);
  // Separate channels, so that parameters and gradients do not delay commands
  // and heartbeats.
  ChannelOptions bulk = PeerChannelOptions();
  bulk.bulk = true;
  const auto reach_coordinator =
      [this, bulk]() -> absl::StatusOr<std::shared_ptr<grpc::Channel>> {
    if (options_.coordinator_channel != nullptr) {
      return options_.coordinator_channel;
    }
    return CreateChannel(options_.process.coordinator, bulk);
  };
  RendezvousFactory make_rendezvous = options_.make_rendezvous;
  if (make_rendezvous == nullptr) {
    make_rendezvous = NetworkRendezvous(
        options_.reduce_host.empty() ? HostOf(AdvertisedAddress())
                                     : options_.reduce_host,
        options_.process.security, options_.device.get());
  }
  sessions_ = std::make_unique<RouterSessions>(
      reach_coordinator, PeerChannelOptions(), &models_, router_metrics_,
      std::move(make_rendezvous), tracer(), sharing(), options_.device.get());
  commands_ = std::make_unique<Commands>(this);
  readiness_thread_ = std::thread([this] { WatchReadiness(); });
  return Join(v1::MEMBER_ROLE_ROUTER, options_.coordinator_channel,
              /*memory_bytes=*/0, commands_.get(),
              BackendName(BackendOf(options_.device.get())));
}

void RouterProcess::HandOver(MemberClient& member) { member.SayLeaving(); }

void RouterProcess::Finish(std::chrono::milliseconds grace) {
  service_.Finish(grace);
}

absl::string_view RouterProcess::Service() {
  return v1::TranslationService::service_full_name();
}

}  // namespace gshard
