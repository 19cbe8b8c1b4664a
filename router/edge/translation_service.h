// TranslationService: gshard.v1.TranslationService of a router.

#ifndef ROUTER_EDGE_TRANSLATION_SERVICE_H_
#define ROUTER_EDGE_TRANSLATION_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "router/batching/batcher.h"
#include "router/batching/preparer.h"
#include "router/edge/intake.h"
#include "router/edge/routing_explainer.h"
#include "router/edge/translation_stream.h"
#include "router/metrics/router_metrics.h"
#include "router/models/model_table.h"
#include "services/base/mutex.h"
#include "services/rpc/server/raw_service.h"

namespace gshard {

struct TranslationLimits {
  // Maximum duration of a call, or of a request of a stream, whatever its
  // deadline.
  std::chrono::milliseconds max_request_time{60'000};

  // See TranslationStreamOptions.
  int64_t max_stream_sentences = 256;

  // Maximum open streams per caller; more are RESOURCE_EXHAUSTED. An idle
  // stream costs only one of the server's calls.
  int64_t max_caller_streams = 256;

  PreparerLimits preparer = {};

  bool debug_calls = false;  // ExplainRouting
};

// Thread-safe. Outlives the server that it is registered with.
class TranslationService final
    : public RawService<v1::TranslationService::WithRawCallbackMethod_Translate<
          v1::TranslationService::WithRawCallbackMethod_TranslateStream<
              v1::TranslationService::WithRawCallbackMethod_ListModels<
                  v1::TranslationService::WithRawCallbackMethod_ExplainRouting<
                      v1::TranslationService::Service>>>>> {
 public:
  // Neither is owned.
  TranslationService(const ModelTable* models, Batcher* batcher,
                     RouterMetrics metrics = {},
                     const TranslationLimits& limits = {});

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* TranslateStream(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

  grpc::ServerUnaryReactor* ExplainRouting(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;

  // Stops reading from streams, which end when everything read is answered; so
  // do later ones.
  void DrainStreams();

  // Drains the streams and finishes the batcher: refuses new requests, and
  // returns when accepted ones have ended; those still open after `grace` end
  // with UNAVAILABLE.
  void Finish(std::chrono::milliseconds grace);

  // Number of calls that gRPC has not released yet.
  int live_calls() const { return *live_calls_; }

 private:
  class TranslateCall;
  class ExplainCall;

  // Shared with the streams.
  struct Streams {
    // Why the caller cannot open another stream; OK: it is counted.
    absl::Status Admit(const std::string& caller, int64_t most);
    void Leave(const std::string& caller);

    Mutex mutex;
    std::set<TranslationStream*> live ABSL_GUARDED_BY(mutex);
    // Number of admitted streams.
    std::map<std::string, int64_t> by_caller ABSL_GUARDED_BY(mutex);
    bool draining ABSL_GUARDED_BY(mutex) = false;
  };

  const ModelTable* const models_;
  Batcher* const batcher_;
  const RouterMetrics metrics_;
  const TranslationLimits limits_;
  RoutingExplainer explainer_;
  Preparer preparer_;
  Intake intake_;
  const std::shared_ptr<Streams> streams_ = std::make_shared<Streams>();
  // Shared with the calls.
  const std::shared_ptr<std::atomic<int>> live_calls_ =
      std::make_shared<std::atomic<int>>(0);
};

}  // namespace gshard

#endif  // ROUTER_EDGE_TRANSLATION_SERVICE_H_
