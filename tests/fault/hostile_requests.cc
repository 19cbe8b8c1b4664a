// Sends a router expensive requests, over and over.
//
//   hostile_requests --router=127.0.0.1:7001 --kind=terms --seconds=10
//
// * terms: sentences of 16 KiB of spaces, with terms that a naive search
//   compares almost in full at every byte. The router refuses such text or
//   translates its only letter.
// * one_expert: one repeated word, whose rows all go to the same experts.
// * endless: short sentences with options that make the search produce the
//   longest translations that it allows.
//
// Keeps --calls calls in flight, each on its own connection. Prints "calls N
// CODE N ... p50_ms T p99_ms T", with the latency of all calls, whatever their
// status. Exits with 2 for wrong flags, otherwise 0.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/config/flags.h"
#include "services/config/security_options.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/security.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

struct HostileFlags {
  std::string router;
  SecurityOptions security;
  std::string model;
  std::string kind = "terms";
  std::string word = "Euro";
  std::string language = "de";
  int64_t sentences = 64;
  int64_t words = 16;
  int64_t max_length = 0;
  int64_t calls = 8;
  double seconds = 10.0;
  int64_t deadline_ms = 10'000;
};

Flags DeclareFlags(HostileFlags* values) {
  Flags flags("hostile_requests", "Sends a router requests that cost much.");
  flags.Text("router", &values->router, "HOST:PORT", "its address");
  AddClientSecurityFlags(flags, &values->security);
  flags.Text("model", &values->model, "NAME", "the only one if empty");
  flags.Choice("kind", &values->kind, {"terms", "one_expert", "endless"},
               "what makes them cost much");
  flags.Text("word", &values->word, "TEXT",
             "of one_expert, repeated, and of endless");
  flags.Text("language", &values->language, "CODE", "of the sentences");
  flags.Integer("sentences", &values->sentences, 1, 64, "of a call");
  flags.Integer(
      "words", &values->words, 1, 4096,
      "of a sentence of one_expert; the model's positions bound them");
  flags.Integer("max_length", &values->max_length, 0, 4096,
                "most tokens of a translation of endless, which the model's "
                "positions bound; 0: the router's default");
  flags.Integer("calls", &values->calls, 1, 1024, "calls under way");
  flags.Real("seconds", &values->seconds, Interval::Closed(0.0, 1e6),
             "how long calls are begun");
  flags.Integer("deadline_ms", &values->deadline_ms, 1, 3'600'000,
                "time that a call has");
  flags.Require("router");
  flags.Example("hostile_requests --router=127.0.0.1:7001 --kind=terms");
  return flags;
}

v1::TranslateRequest HostileRequest(const HostileFlags& flags) {
  v1::TranslateRequest request;
  request.set_model(flags.model);
  std::string text = flags.word;
  v1::TranslateOptions& options = *request.mutable_options();
  if (flags.kind == "terms") {
    text = std::string(16383, ' ') + "a";
    for (int i = 0; i < 64; ++i) {
      v1::Term& term = *options.add_terms();
      term.set_source(std::string(254, ' ') + "x");
      term.set_target("x");
    }
  } else if (flags.kind == "one_expert") {
    for (int64_t i = 1; i < flags.words; ++i) text += " " + flags.word;
  } else {
    // The longest hypothesis wins, so the search does not end early.
    options.set_length_penalty(4.0);
    options.set_max_length(static_cast<int32_t>(flags.max_length));
  }
  for (int64_t i = 0; i < flags.sentences; ++i) {
    v1::Sentence& sentence = *request.add_sentences();
    sentence.set_text(text);
    sentence.set_source_language(flags.language);
  }
  return request;
}

class Attack {
 public:
  Attack(const HostileFlags& flags, std::shared_ptr<const Security> security)
      : flags_(flags),
        security_(std::move(security)),
        request_(HostileRequest(flags)) {}

  absl::Status RunThread() {
    ChannelOptions options;
    options.security = security_;
    const auto channel = CreateChannel(flags_.router, options);
    if (!channel.ok()) return channel.status();
    const auto stub = v1::TranslationService::NewStub(*channel);
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(flags_.seconds));
    while (Clock::now() < end) {
      grpc::ClientContext context;
      SetDeadline(context, std::chrono::milliseconds(flags_.deadline_ms));
      v1::TranslateResponse response;
      const Clock::time_point start = Clock::now();
      const grpc::Status status =
          stub->Translate(&context, request_, &response);
      const double ms =
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count();
      std::lock_guard<std::mutex> lock(mutex_);
      if (++codes_[status.error_code()] == 1 && !status.ok()) {
        std::cerr << "first of its code: " << status.error_message()
                  << std::endl;
      }
      took_.push_back(ms);
    }
    return absl::OkStatus();
  }

  void Print() {
    std::sort(took_.begin(), took_.end());
    const auto quantile = [&](double q) {
      return took_.empty() ? 0.0
                           : took_[static_cast<size_t>(
                                 q * static_cast<double>(took_.size() - 1))];
    };
    std::printf("calls %zu", took_.size());
    for (const auto& [code, count] : codes_) {
      std::printf(
          " %s %lld",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(code)).c_str(),
          static_cast<long long>(count));
    }
    std::printf(" p50_ms %.2f p99_ms %.2f\n", quantile(0.5), quantile(0.99));
  }

 private:
  const HostileFlags flags_;
  const std::shared_ptr<const Security> security_;
  const v1::TranslateRequest request_;
  std::mutex mutex_;
  // mutex_ guards all members below.
  std::map<grpc::StatusCode, int64_t> codes_;
  std::vector<double> took_;  // milliseconds
};

int Main(int argc, char** argv) {
  HostileFlags values;
  Flags flags = DeclareFlags(&values);
  if (const auto exit_code =
          flags.ParseOrExit(std::vector<std::string>(argv + 1, argv + argc))) {
    return *exit_code;
  }
  auto security = Security::CreateForClient(values.security);
  if (!security.ok()) {
    std::cerr << security.status().message() << "\n";
    return 2;
  }
  Attack attack(values, *std::move(security));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < values.calls; ++i) {
    threads.emplace_back([&attack] {
      const absl::Status status = attack.RunThread();
      if (!status.ok()) std::cerr << status.message() << std::endl;
    });
  }
  for (std::thread& thread : threads) thread.join();
  attack.Print();
  return 0;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) { return gshard::Main(argc, argv); }
