// LineTranslator: translates any number of lines through TranslateStream, in
// order.
//
// Lines are batched into requests, and several requests are in flight at a
// time, which keeps a router's batches full; output is in input order, with
// bounded read-ahead. No line waits for one that has not arrived yet: a source
// that pauses, such as a pipe, gets answers to everything before. Requests that
// a router had no time for (Unavailable, ResourceExhausted) are resent, to the
// next router, after the requested delay; those that it did not answer in time,
// once. Routers without TranslateStream are called by Translate.

#ifndef CLIENT_LINE_TRANSLATOR_H_
#define CLIENT_LINE_TRANSLATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/router_list.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "proto/gshard/v1/translation.pb.h"
#include "services/base/mutex.h"
#include "services/config/security_options.h"

namespace gshard {

// Errors: InvalidArgument with the first byte that is no UTF-8.
absl::Status CheckUtf8(absl::string_view text);

// One line to translate.
struct SourceLine {
  int64_t number = 0;         // from 1, for errors
  std::string language = {};  // empty: the model's default
  std::string text = {};      // blank: not sent, stays blank
  // Why it cannot be translated: it is not UTF-8, too long, or refused by a
  // router.
  absl::Status error = absl::OkStatus();
};

struct LineTranslatorOptions {
  std::vector<std::string> routers = {};  // addresses; called in turn
  // Finds them again when one is unavailable; null: they do not change.
  RouterList::Find find_routers = nullptr;
  SecurityOptions security = {};
  std::string model = {};  // as TranslateRequest.model
  v1::TranslateOptions search = {};
  std::string prefix = {};  // as Sentence.target_prefix, of every line
  // Words to keep verbatim, in every line that has them.
  std::vector<std::string> keep = {};
  bool require_full = false;  // as TranslateRequest.require_full
  // Lines with an error stay blank, instead of ending the translation.
  bool blank_errors = false;
  int64_t sentences_per_call = 8;
  // At least 1; reduced so that there are at most 256 sentences per router.
  int64_t calls_in_flight = 32;
  std::chrono::milliseconds timeout{60'000};  // per attempt
  // How long a request is resent for, from its first failure.
  std::chrono::milliseconds patience{60'000};
  // Doubles with every attempt, up to 5 seconds.
  std::chrono::milliseconds first_pause{200};
  // Called before the first pause after an error of each code, with the time
  // for which the request is resent yet; by one thread at a time, of any. May
  // be null.
  std::function<void(std::chrono::milliseconds left, const absl::Status& why)>
      waits = nullptr;
};

class LineTranslator {
 public:
  struct Source {
    // The next line; nothing at the end. May block.
    std::function<absl::StatusOr<std::optional<SourceLine>>()> next;
    // Whether next() would return at once. Waits for that until the descriptor
    // `until` is readable; not at all if that is -1. Null: always true.
    std::function<bool(int until)> ready = nullptr;
  };

  // A line and its translation, null for a line that is blank or has an error.
  using Sink =
      std::function<void(const SourceLine&, const v1::TranslationResult*)>;

  // Errors: InvalidArgument if an address is invalid or there is none; those of
  // Security::CreateForClient.
  static absl::StatusOr<std::unique_ptr<LineTranslator>> Create(
      LineTranslatorOptions options);

  // Translates all lines of `source`. `sink` is called on this thread. Not to
  // be called again after an error.
  //
  // Errors: those of `source`; ResourceExhausted if the process has no
  // descriptors left; unless lines with errors stay blank, the first line's
  // error; those of the RPC. They name the line or lines: "line 12: ...". All
  // earlier lines have been passed to `sink`.
  absl::Status Translate(const Source& source, const Sink& sink);

 private:
  struct Call;

  LineTranslator(LineTranslatorOptions options,
                 std::unique_ptr<RouterList> routers)
      : options_(std::move(options)), routers_(std::move(routers)) {}

  // Fills a call; false if nothing is left. An error in a line becomes the
  // call's, after the lines before it.
  bool Gather(const Source& source, Call* call);
  void Run(Call* call, size_t turn);
  // One attempt, by the router whose turn it is.
  absl::Status Ask(Call* call, size_t turn);
  void SayThatItWaits(std::chrono::milliseconds left, const absl::Status& why);

  const LineTranslatorOptions options_;
  const std::unique_ptr<RouterList> routers_;
  Mutex mutex_;
  std::set<absl::StatusCode> said_ ABSL_GUARDED_BY(mutex_);  // to `waits`
};

}  // namespace gshard

#endif  // CLIENT_LINE_TRANSLATOR_H_
