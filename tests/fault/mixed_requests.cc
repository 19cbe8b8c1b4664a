// Sends a router the whole mix of client behavior: single sentences and
// documents, unary calls and streams, greedy and beam search; calls that are
// cancelled at random moments, have tiny deadlines, or are invalid.
//
//   mixed_requests --router=127.0.0.1:7001 --requests=1000 --seed=1
//
// Each thread makes one call after another. Prints the number of calls by
// status code. May be killed at any time, like a client that disconnects.

#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/random.h"
#include "services/config/flags.h"
#include "services/rpc/client/channel.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

struct MixedFlags {
  std::string router;
  std::string model;
  int64_t requests = 1000;
  int64_t threads = 16;
  int64_t seed = 1;
};

Flags DeclareFlags(MixedFlags* values) {
  Flags flags("mixed_requests", "Sends a router all kinds of requests.");
  flags.Text("router", &values->router, "HOST:PORT", "its address");
  flags.Text("model", &values->model, "NAME", "the only one if empty");
  flags.Integer("requests", &values->requests, 1, 1 << 30,
                "calls, and messages of streams");
  flags.Integer("threads", &values->threads, 1, 1024, "calls under way");
  flags.Integer("seed", &values->seed, 0, 1 << 30, "of all that is random");
  flags.Require("router");
  flags.Example("mixed_requests --router=127.0.0.1:7001 --requests=1000");
  return flags;
}

// The random numbers of one request.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t request) : key_(FoldIn(seed, request)) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(
        RandomBelow(key_, ++count_, static_cast<uint64_t>(bound)));
  }

 private:
  const uint64_t key_;
  uint64_t count_ = 0;
};

class Mixture {
 public:
  explicit Mixture(const MixedFlags& flags) : flags_(flags) {}

  void RunThread() {
    // Each thread replaces its connection after every hundred calls.
    std::unique_ptr<v1::TranslationService::Stub> stub;
    for (int64_t calls = 0;; ++calls) {
      const int64_t i = next_++;
      if (i >= flags_.requests) return;
      if (calls % 100 == 0) {
        auto channel = CreateChannel(flags_.router);
        if (!channel.ok()) {
          std::cerr << channel.status().message() << std::endl;
          return;
        }
        stub = v1::TranslationService::NewStub(*channel);
      }
      Draw draw(static_cast<uint64_t>(flags_.seed), static_cast<uint64_t>(i));
      if (draw.Below(4) == 0) {
        Stream(*stub, draw);
      } else {
        Call(*stub, draw);
      }
    }
  }

  void Print() const {
    std::printf("calls");
    for (size_t code = 0; code < codes_.size(); ++code) {
      const int64_t count = codes_[code];
      if (count > 0) {
        std::printf(" code_%zu %lld", code, static_cast<long long>(count));
      }
    }
    std::printf("\n");
  }

 private:
  v1::TranslateRequest Request(Draw& draw) const {
    static constexpr std::array kTexts = {
        "Deutschland",
        "Vereinigte Staaten",
        "Euro",
        "Amerikanisch-Samoa",
        "St. Pierre und Miquelon",
        "Niederländisch, wie es dort wohl heißt"};
    v1::TranslateRequest request;
    request.set_model(flags_.model);
    const int64_t sentences = draw.Below(10) == 0 ? 20 : 1 + draw.Below(2);
    for (int64_t i = 0; i < sentences; ++i) {
      v1::Sentence* const sentence = request.add_sentences();
      sentence->set_text(kTexts[static_cast<size_t>(
          draw.Below(static_cast<int64_t>(kTexts.size())))]);
      sentence->set_source_language("de");
    }
    const int64_t beam = 1 + draw.Below(4);
    request.mutable_options()->set_beam_size(static_cast<int32_t>(beam));
    request.mutable_options()->set_n_best(
        static_cast<int32_t>(1 + draw.Below(beam)));
    if (draw.Below(8) == 0) Spoil(request, draw);
    return request;
  }

  // Makes the request invalid.
  static void Spoil(v1::TranslateRequest& request, Draw& draw) {
    switch (draw.Below(6)) {
      case 0:
        return request.clear_sentences();
      case 1:
        return request.set_model("nobody knows it");
      case 2:
        return request.mutable_options()->set_beam_size(1 << 20);
      case 3:
        return request.mutable_sentences(0)->set_source_language("xx");
      case 4:
        return request.mutable_sentences(0)->set_text("  ");
      default:
        return request.mutable_sentences(0)->set_text(
            std::string(1 << 16, 'a'));
    }
  }

  void Count(int code) { ++codes_[static_cast<size_t>(code) % codes_.size()]; }

  void Call(v1::TranslationService::Stub& stub, Draw& draw) {
    const v1::TranslateRequest request = Request(draw);
    v1::TranslateResponse response;
    grpc::ClientContext context;
    SetDeadline(context, draw.Below(6) == 0 ? milliseconds(1 + draw.Below(30))
                                            : milliseconds(20'000));
    // The callback shares the promise: this function may return before
    // set_value() does.
    const auto done = std::make_shared<std::promise<grpc::Status>>();
    std::future<grpc::Status> status = done->get_future();
    stub.async()->Translate(
        &context, &request, &response,
        [done](const grpc::Status& status) { done->set_value(status); });
    if (draw.Below(5) == 0) {
      status.wait_for(milliseconds(draw.Below(60)));
      context.TryCancel();
    }
    Count(status.get().error_code());
  }

  void Stream(v1::TranslationService::Stub& stub, Draw& draw) {
    grpc::ClientContext context;
    SetDeadline(context, milliseconds(20'000));
    const auto stream = stub.TranslateStream(&context);
    const int64_t messages = 1 + draw.Below(8);
    const int64_t taken = draw.Below(3) == 0 ? draw.Below(messages) : messages;
    v1::TranslateStreamResponse answer;
    for (int64_t i = 0; i < messages; ++i) {
      v1::TranslateStreamRequest message;
      message.set_id(static_cast<uint64_t>(i));
      *message.mutable_request() = Request(draw);
      if (draw.Below(6) == 0) message.set_timeout_ms(1 + draw.Below(30));
      if (!stream->Write(message)) break;
    }
    if (taken == messages) stream->WritesDone();
    int64_t answers = 0;
    while (answers < taken && stream->Read(&answer)) ++answers;
    if (taken < messages) context.TryCancel();
    while (stream->Read(&answer)) continue;
    Count(stream->Finish().error_code());
    next_ += messages - 1;
  }

  const MixedFlags flags_;
  std::atomic<int64_t> next_ = 0;
  std::array<std::atomic<int64_t>, 17> codes_ = {};
};

int Main(int argc, char** argv) {
  MixedFlags values;
  Flags flags = DeclareFlags(&values);
  if (const auto exit_code =
          flags.ParseOrExit(std::vector<std::string>(argv + 1, argv + argc))) {
    return *exit_code;
  }
  Mixture mixture(values);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < values.threads; ++i) {
    threads.emplace_back([&mixture] { mixture.RunThread(); });
  }
  for (std::thread& thread : threads) thread.join();
  mixture.Print();
  return 0;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) { return gshard::Main(argc, argv); }
