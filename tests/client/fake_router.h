// A TranslationService on a unix socket that needs no model: it answers
// "<language>:<TEXT>", and errors on demand.

#ifndef TESTS_CLIENT_FAKE_ROUTER_H_
#define TESTS_CLIENT_FAKE_ROUTER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/rpc/wire/status.h"
#include "tests/client/unix_server.h"

namespace gshard {

class FakeRouter final : public v1::TranslationService::Service {
 public:
  const std::string& address() const { return server_.address(); }

  // Runs before each call with the number of earlier calls; a status other than
  // OK becomes the answer.
  using Refusal =
      std::function<absl::Status(int call, const v1::TranslateRequest&)>;
  void Refuse(Refusal refuse) {
    std::lock_guard<std::mutex> lock(mutex_);
    refuse_ = std::move(refuse);
  }

  std::vector<v1::TranslateRequest> requests() {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  int most_at_a_time() {
    std::lock_guard<std::mutex> lock(mutex_);
    return most_at_a_time_;
  }

  // Later answers report that half of the expert choices were lost.
  void LoseExperts() { lost_share_ = 0.5f; }
  // Later TranslateStream calls fail with UNIMPLEMENTED.
  void ForgetStreams() { knows_streams_ = false; }
  // Later streams end after their first answer.
  void BreakStreams() { breaks_streams_ = true; }

  // Answers with the current version of a model and the one before.
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    for (const bool current : {false, true}) {
      v1::ServedModel& model = *response->add_models();
      model.set_model(current ? "titles@20" : "titles@10");
      model.set_current(current);
      model.set_full(current);
      model.add_source_languages("de");
      model.add_source_languages("fr");
      if (current) model.set_default_source_language("de");
      model.set_max_length(current ? 256 : 128);
    }
    return grpc::Status::OK;
  }

  // Answers two tokens with one layer each, or PERMISSION_DENIED for the text
  // "secret".
  grpc::Status ExplainRouting(grpc::ServerContext*,
                              const v1::ExplainRoutingRequest* request,
                              v1::ExplainRoutingResponse* response) override {
    if (request->sentence().text() == "secret") {
      return grpc::Status(grpc::PERMISSION_DENIED, "no debug calls");
    }
    response->set_model("fake@1");
    for (const std::string& piece :
         {request->sentence().source_language(), request->sentence().text()}) {
      v1::TokenRouting* const token = response->add_source();
      token->set_piece(piece);
      v1::TokenLayerRouting* const layer = token->add_layers();
      layer->set_layer("encoder.0.moe");
      layer->add_visits()->set_weight(1);
      layer->mutable_visits(0)->add_hosts("w0");
    }
    return grpc::Status::OK;
  }

  // Answers each request through Translate on its own thread.
  grpc::Status TranslateStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::TranslateStreamResponse,
                               v1::TranslateStreamRequest>* stream) override {
    if (!knows_streams_) return grpc::Status(grpc::UNIMPLEMENTED, "what?");
    std::mutex mutex;
    std::atomic<bool> broken = false;
    std::vector<std::future<void>> answers;
    v1::TranslateStreamRequest request;
    while (!broken && stream->Read(&request)) {
      answers.push_back(std::async(std::launch::async, [&, request] {
        v1::TranslateStreamResponse answer;
        answer.set_id(request.id());
        *answer.mutable_status() = ToProtoStatus(FromGrpcStatus(
            Translate(context, &request.request(), answer.mutable_response())));
        std::lock_guard<std::mutex> lock(mutex);
        if (broken) return;
        stream->Write(answer);
        if (breaks_streams_) {
          broken = true;
          context->TryCancel();
        }
      }));
    }
    return grpc::Status::OK;
  }

  grpc::Status Translate(grpc::ServerContext*,
                         const v1::TranslateRequest* request,
                         v1::TranslateResponse* response) override {
    int call;
    Refusal refuse;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      refuse = refuse_;
      call = static_cast<int>(requests_.size());
      requests_.push_back(*request);
      most_at_a_time_ = std::max(most_at_a_time_, ++at_a_time_);
    }
    const absl::Status status =
        refuse ? refuse(call, *request) : absl::OkStatus();
    for (const v1::Sentence& sentence : request->sentences()) {
      v1::TranslationResult* result = response->add_results();
      result->set_lost_choice_share(lost_share_);
      for (int i = 0; i < std::max(1, request->options().n_best()); ++i) {
        v1::Hypothesis* hypothesis = result->add_hypotheses();
        hypothesis->set_text(absl::StrCat(
            sentence.source_language(), ":",
            absl::AsciiStrToUpper(sentence.text()), i == 0 ? "" : " again"));
        hypothesis->set_score(-0.5f * (i + 1));
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    --at_a_time_;
    return ToGrpcStatus(status);
  }

 private:
  std::mutex mutex_;
  Refusal refuse_;
  std::vector<v1::TranslateRequest> requests_;
  int at_a_time_ = 0;
  int most_at_a_time_ = 0;
  std::atomic<float> lost_share_ = 0;
  std::atomic<bool> knows_streams_ = true;
  std::atomic<bool> breaks_streams_ = false;
  UnixServer server_{this, v1::TranslationService::service_full_name()};
};

}  // namespace gshard

#endif  // TESTS_CLIENT_FAKE_ROUTER_H_
