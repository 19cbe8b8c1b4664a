// TranslationService: gshard.v1.TranslationService of a router.

#ifndef ROUTER_TRANSLATION_SERVICE_H_
#define ROUTER_TRANSLATION_SERVICE_H_

#include <atomic>
#include <chrono>
#include <memory>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "router/batcher.h"
#include "router/model_table.h"
#include "router/router_metrics.h"

namespace gshard {

// A call may not take longer, whatever its deadline.
inline constexpr std::chrono::milliseconds kMaxTranslateTime{60'000};

// Thread-safe. Outlives the server that it is registered with.
class TranslationService final
    : public v1::TranslationService::WithRawCallbackMethod_Translate<
          v1::TranslationService::Service> {
 public:
  // Neither is owned.
  TranslationService(const ModelTable* models, Batcher* batcher,
                     RouterMetrics metrics = {});

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;

  // Calls that gRPC has not let go of yet.
  int live_calls() const { return *live_calls_; }

 private:
  class TranslateCall;

  const ModelTable* const models_;
  Batcher* const batcher_;
  const RouterMetrics metrics_;
  // Shared with the calls.
  const std::shared_ptr<std::atomic<int>> live_calls_ =
      std::make_shared<std::atomic<int>>(0);
};

}  // namespace gshard

#endif  // ROUTER_TRANSLATION_SERVICE_H_
