// The flags of commands that translate.

#ifndef CLIENT_TRANSLATE_FLAGS_H_
#define CLIENT_TRANSLATE_FLAGS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command.h"
#include "client/coordinator_client.h"
#include "client/line_translator.h"
#include "client/system_layout.h"
#include "services/config/flags.h"
#include "services/decoding/beam_search.h"

namespace gshard {

struct CalledRouters {
  std::vector<std::string> addresses;
  std::shared_ptr<CoordinatorClient> coordinator;  // null if they were named
};

// Routers to call: those named, else all that the coordinator knows. While that
// does not answer, or knows none, it is asked again for as long as `patience`,
// and `console` is told what that waits for. Errors: usage errors for invalid
// addresses; those of the coordinator; FailedPrecondition if it knows none.
absl::StatusOr<CalledRouters> RoutersToCall(
    const std::vector<std::string>& named, const SystemFlags& system,
    std::chrono::milliseconds patience, Console& console);

struct TranslateFlags {
  explicit TranslateFlags(const Console& console) : system(console) {}

  void Declare(Flags& flags);

  // Call once. Sets the other `options`, and connects to the RoutersToCall().
  // `console` must outlive the translator, which tells it what it waits for.
  // Errors: usage errors for flags that contradict each other or are no UTF-8;
  // those of a glossary; those of RoutersToCall().
  absl::StatusOr<std::unique_ptr<LineTranslator>> Connect(Console& console);

  SystemFlags system;
  LineTranslatorOptions options;
  int64_t beam = 4;
  double length_penalty = 0.6;
  int64_t max_length = 0;
  int64_t n_best = 1;
  bool greedy = false;
  bool alternatives = false;
  bool sample = false;
  int64_t top_k = Sampling().top_k;
  double temperature = Sampling().temperature;
  int64_t seed = -1;  // none
  bool allow_unknown = false;
  std::string glossary;
  absl::Duration timeout = absl::Seconds(60);
  absl::Duration patience = absl::Minutes(1);
};

// Adds to the error of a request without a language how to set one.
absl::Status AskForLanguage(const absl::Status& status);

// The error of `lines` lines that stayed blank, of which `first` is the first
// one's error; OK if there are none.
absl::Status BlankLines(int64_t lines, const absl::Status& first);

// Tells the user that `lines` lines were translated without some experts, if
// any.
void WarnOfDegraded(int64_t lines, Console& console);

}  // namespace gshard

#endif  // CLIENT_TRANSLATE_FLAGS_H_
