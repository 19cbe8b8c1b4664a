#include "client/translate_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordinator_client.h"
#include "services/base/status_macros.h"

namespace gshard {

void TranslateFlags::Declare(Flags& flags) {
  flags.Text("model", &model, "NAME",
             "model, or name@version; left out if only one is served");
  flags.Integer("beam", &beam, 1, 32, "hypotheses kept a sentence");
  flags.Real("length_penalty", &length_penalty, Interval::Closed(0.0, 4.0),
             "exponent; higher prefers longer translations");
  flags.Integer("max_length", &max_length, 0, 65536,
                "tokens a translation may have; 0: by the source's length");
  flags.Bool("greedy", &greedy,
             "take the most probable token each time instead of --beam");
  flags.List("router", &routers, "ADDRESS",
             "routers to call in turn; left out: all that the coordinator "
             "knows");
  flags.Integer("sentences_per_call", &sentences_per_call, 1,
                kMaxSentencesPerCall, "lines sent together");
  flags.Integer("calls", &calls, 1, 64, "calls under way at a time");
  flags.Duration("timeout", &timeout, "time that one call may take");
  system.Declare(flags);
}

absl::StatusOr<std::unique_ptr<LineTranslator>> TranslateFlags::Connect()
    const {
  LineTranslatorOptions options;
  if (n_best > (greedy ? 1 : beam)) {
    return UsageError(absl::StrCat("--n_best: expected at most the beam, ",
                                   greedy ? 1 : beam, ", got ", n_best));
  }
  if (greedy) {
    options.search.set_greedy(true);
  } else {
    options.search.set_beam_size(static_cast<int32_t>(beam));
    options.search.set_length_penalty(static_cast<float>(length_penalty));
  }
  options.search.set_max_length(static_cast<int32_t>(max_length));
  options.search.set_n_best(static_cast<int32_t>(n_best));
  options.model = model;
  options.sentences_per_call = static_cast<size_t>(sentences_per_call);
  options.calls_in_flight = static_cast<size_t>(calls);
  options.timeout =
      std::chrono::milliseconds(absl::ToInt64Milliseconds(timeout));
  options.routers = routers;
  if (routers.empty()) {
    ASSIGN_OR_RETURN(const auto coordinator,
                     CoordinatorClient::Create(system.CoordinatorAddress(),
                                               system.security));
    ASSIGN_OR_RETURN(const v1::DescribeResponse members,
                     coordinator->Describe());
    ASSIGN_OR_RETURN(options.routers, RouterAddresses(members));
  }
  options.security = system.security;
  return LineTranslator::Create(std::move(options));
}

}  // namespace gshard
