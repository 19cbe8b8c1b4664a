// A TranslationService at a unix socket that needs no model: it answers
// "<language>:<TEXT>", and errors on demand.

#ifndef TESTS_CLIENT_FAKE_ROUTER_H_
#define TESTS_CLIENT_FAKE_ROUTER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "tests/client/scratch_folder.h"

namespace gshard {

class FakeRouter final : public v1::TranslationService::Service {
 public:
  FakeRouter()
      : server_({.address = absl::StrCat("unix:", folder_.path(), "/r")}) {
    server_.AddService(this, v1::TranslationService::service_full_name());
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  ~FakeRouter() override { server_.Drain(std::chrono::milliseconds(0)); }

  const std::string& address() const { return server_.address(); }

  // Asked before each call, with the number of calls so far; its error is the
  // answer.
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
  const ScratchFolder folder_;
  std::mutex mutex_;
  Refusal refuse_;
  std::vector<v1::TranslateRequest> requests_;
  int at_a_time_ = 0;
  int most_at_a_time_ = 0;
  ServerShell server_;
};

}  // namespace gshard

#endif  // TESTS_CLIENT_FAKE_ROUTER_H_
