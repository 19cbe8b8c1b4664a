// CoordinatorService over gRPC: a thin shell around Coordinator.

#ifndef SERVICES_COORDINATOR_COORDINATOR_SERVICE_H_
#define SERVICES_COORDINATOR_COORDINATOR_SERVICE_H_

#include <memory>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/coordinator/coordinator.h"
#include "services/rpc/server/raw_service.h"
#include "services/rpc/wire/tensor_frame.h"

namespace gshard {

// Methods that carry tensors are raw: see services/rpc/server/server_stream.h.
template <typename Base>
using RawTensorMethods =
    v1::CoordinatorService::WithRawCallbackMethod_PushGradients<
        v1::CoordinatorService::WithRawCallbackMethod_PullParameters<Base>>;
template <typename Base>
using ModelMethods = v1::CoordinatorService::WithRawCallbackMethod_LoadModel<
    v1::CoordinatorService::WithRawCallbackMethod_UnloadModel<
        v1::CoordinatorService::WithRawCallbackMethod_Describe<Base>>>;
template <typename Base>
using JobMethods = v1::CoordinatorService::WithRawCallbackMethod_SubmitJob<
    v1::CoordinatorService::WithRawCallbackMethod_WatchJob<
        v1::CoordinatorService::WithRawCallbackMethod_CancelJob<
            v1::CoordinatorService::WithRawCallbackMethod_ListJobs<Base>>>>;

class CoordinatorServiceImpl final
    : public RawService<RawTensorMethods<ModelMethods<
          JobMethods<v1::CoordinatorService::WithRawCallbackMethod_Join<
              v1::CoordinatorService::Service>>>>> {
 public:
  // `coordinator` outlives the server.
  CoordinatorServiceImpl(Coordinator* coordinator, FrameLimits limits);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchJob(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* PushGradients(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* PullParameters(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;

 private:
  // Serves a unary method by the coordinator's.
  template <typename Request, typename Response,
            void (Coordinator::*kMethod)(const Request&, const Requester&,
                                         Coordinator::Done<Response>)>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response);

  Coordinator* const coordinator_;
  const FrameLimits limits_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_COORDINATOR_SERVICE_H_
