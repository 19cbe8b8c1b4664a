// LineTranslator: any number of lines through TranslateStream, in order.
//
// Lines are gathered into requests, and several requests are under way at a
// time, which keeps a router's batches full; what comes out is in the order of
// what went in, and no more is read than that. No line waits for one that is
// not there yet: a source that pauses, as a pipe does, gets the answers to what
// it gave. Requests that a router had no
// time for (Unavailable, ResourceExhausted) are sent again, to the next router,
// after the delay that it asked for. Routers that do not know TranslateStream
// are called by Translate.

#ifndef CLIENT_LINE_TRANSLATOR_H_
#define CLIENT_LINE_TRANSLATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/stream_caller.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "proto/gshard/v1/translation.pb.h"
#include "services/config/security_options.h"

namespace gshard {

// The most that one request may have; see translation.proto.
inline constexpr size_t kMaxSentencesPerCall = 64;
inline constexpr size_t kMaxSentenceBytes = 16384;

// One line to translate.
struct SourceLine {
  int64_t number = 0;    // from 1, for errors
  std::string language;  // empty: the model's default
  std::string text;      // blank: not sent, stays blank
};

struct LineTranslatorOptions {
  std::vector<std::string> routers = {};  // addresses; called in turn
  SecurityOptions security = {};          // of the calls
  std::string model = {};                 // as TranslateRequest.model
  v1::TranslateOptions search = {};
  std::string prefix = {};  // as Sentence.target_prefix, of every line
  // Words that come out as they are, of every line that has them.
  std::vector<std::string> keep = {};
  bool require_full = false;  // as TranslateRequest.require_full
  size_t sentences_per_call = 8;
  // At least 1; fewer if they would have over 256 sentences for each router.
  size_t calls_in_flight = 32;
  std::chrono::milliseconds timeout{60'000};  // of one attempt
  // Of one request; while `timeout` has not passed, refusals that say when to
  // come back do not count.
  int attempts = 5;
  std::chrono::milliseconds first_pause{200};  // doubles with every attempt
};

class LineTranslator {
 public:
  struct Source {
    // The next line; nothing at the end. May wait for it.
    std::function<absl::StatusOr<std::optional<SourceLine>>()> next;
    // Whether next() returns at once. Waits for that until the descriptor
    // `until` can be read; not at all if that is -1. Null: it always does.
    std::function<bool(int until)> ready = nullptr;
  };

  // A line and its translation, null for a blank line.
  using Sink =
      std::function<void(const SourceLine&, const v1::TranslationResult*)>;

  // Errors: InvalidArgument if an address is not one or there is none; those of
  // Security::CreateForClient.
  static absl::StatusOr<std::unique_ptr<LineTranslator>> Create(
      LineTranslatorOptions options);

  // Translates all lines of `source`. `sink` is called by this thread.
  //
  // Errors: those of `source`; ResourceExhausted if the process has no
  // descriptors left; InvalidArgument for a line that is not UTF-8 or
  // too long; those of the RPC. They name the line or lines: "line 12: ...".
  // Every line before those has gone to `sink` then.
  absl::Status Translate(const Source& source, const Sink& sink);

 private:
  struct Call;

  explicit LineTranslator(LineTranslatorOptions options)
      : options_(std::move(options)) {}

  // Fills a call; false if nothing is left. An error of a line becomes the
  // call's, behind the lines before it.
  bool Gather(const Source& source, Call* call);
  // Streams to the routers.
  using Streams = std::vector<std::unique_ptr<StreamCaller>>;

  void Run(Streams& streams, Call* call, size_t first_router);
  // One attempt.
  absl::Status Ask(Streams& streams, Call* call, size_t router);

  const LineTranslatorOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace gshard

#endif  // CLIENT_LINE_TRANSLATOR_H_
