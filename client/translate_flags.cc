#include "client/translate_flags.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/line_source.h"
#include "router/edge/translate_request.h"
#include "router/models/decode_request.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Pause before the coordinator is asked for routers again; doubles each time.
constexpr milliseconds kFirstPause{200};
constexpr milliseconds kLongestPause{5'000};

absl::Status ReadGlossary(const std::string& path,
                          v1::TranslateOptions& search) {
  ASSIGN_OR_RETURN(const LineTranslator::Source lines, LinesOfPath(path, {}));
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<SourceLine> line, lines.next());
    if (!line.has_value()) break;
    RETURN_IF_ERROR(Annotate(line->error, path));
    if (line->text.empty()) continue;
    RETURN_IF_ERROR(Annotate(CheckUtf8(line->text),
                             absl::StrCat(path, ", line ", line->number)));
    const std::vector<std::string> columns = absl::StrSplit(line->text, '\t');
    if (columns.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ", line ", line->number,
          ": expected source and target, separated by a tab, got ",
          columns.size() == 1 ? "no tab"
                              : absl::StrCat(columns.size() - 1, " tabs")));
    }
    v1::Term* const term = search.add_terms();
    term->set_source(columns[0]);
    term->set_target(columns[1]);
  }
  return absl::OkStatus();
}

// A request that is no UTF-8 would end its stream.
absl::Status CheckTexts(const LineTranslatorOptions& options) {
  RETURN_IF_ERROR(Annotate(CheckUtf8(options.model), "--model"));
  RETURN_IF_ERROR(Annotate(CheckUtf8(options.prefix), "--prefix"));
  for (const std::string& words : options.keep) {
    RETURN_IF_ERROR(Annotate(CheckUtf8(words), "--keep"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RoutersOf(
    CoordinatorClient& coordinator, milliseconds timeout = kDefaultDeadline) {
  ASSIGN_OR_RETURN(const v1::DescribeResponse members,
                   coordinator.Describe(/*include_experts=*/false, timeout));
  return RouterAddresses(members);
}

// How to translate. Errors: InvalidArgument for flags that contradict each
// other.
absl::StatusOr<v1::TranslateOptions> SearchOf(const TranslateFlags& flags) {
  v1::TranslateOptions search;
  const bool constrained =
      !flags.glossary.empty() || !flags.options.keep.empty();
  const int64_t most = flags.sample   ? kMaxBeamSize
                       : flags.greedy ? 1
                                      : flags.beam;
  if (flags.n_best > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--n_best: expected at most the beam, ", most, ", got ", flags.n_best));
  }
  if (flags.alternatives && (flags.greedy || constrained)) {
    return absl::InvalidArgumentError(
        "expected --alternatives or --greedy, --glossary and --keep, got both");
  }
  if (flags.sample && (flags.greedy || flags.alternatives || constrained)) {
    return absl::InvalidArgumentError(
        "expected --sample or --greedy, --alternatives, --glossary and --keep, "
        "got both");
  }
  const bool drawn = flags.top_k != Sampling().top_k ||
                     flags.temperature != Sampling().temperature ||
                     flags.seed >= 0;
  if (drawn && !flags.sample) {
    return absl::InvalidArgumentError(
        "--top_k, --temperature and --seed: expected --sample, too");
  }
  if (flags.sample) {
    v1::Sampling& sampling = *search.mutable_sampling();
    sampling.set_top_k(static_cast<int32_t>(flags.top_k));
    sampling.set_temperature(static_cast<float>(flags.temperature));
    if (flags.seed >= 0) sampling.set_seed(static_cast<uint64_t>(flags.seed));
  } else if (flags.greedy) {
    search.set_greedy(true);
  } else {
    search.set_beam_size(static_cast<int32_t>(flags.beam));
  }
  if (!flags.greedy) {
    search.set_length_penalty(static_cast<float>(flags.length_penalty));
  }
  search.set_max_length(static_cast<int32_t>(flags.max_length));
  search.set_n_best(static_cast<int32_t>(flags.n_best));
  if (flags.alternatives) {
    search.set_alternatives(true);
    if (flags.n_best == 1) search.clear_n_best();
  }
  if (flags.allow_unknown) search.set_unknown(v1::UNKNOWN_POLICY_ALLOW);
  return search;
}

// Whether the coordinator may be being restarted, or no router has joined yet.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsFailedPrecondition(status);
}

}  // namespace

absl::StatusOr<CalledRouters> RoutersToCall(
    const std::vector<std::string>& named, const SystemFlags& system,
    milliseconds patience, Console& console) {
  for (const std::string& address : named) {
    const absl::Status status = ValidateAddress(address);
    if (!status.ok()) return UsageError(Annotate(status, "--router"));
  }
  if (!named.empty()) return CalledRouters{named, nullptr};
  ASSIGN_OR_RETURN(std::shared_ptr<CoordinatorClient> coordinator,
                   system.Connect());
  const steady_clock::time_point began = steady_clock::now();
  milliseconds pause = kFirstPause;
  absl::StatusCode said = absl::StatusCode::kOk;
  while (true) {
    auto routers = RoutersOf(*coordinator);
    const milliseconds left = patience - std::chrono::floor<milliseconds>(
                                             steady_clock::now() - began);
    if (!MayPass(routers.status()) || left.count() <= 0) {
      RETURN_IF_ERROR(routers.status());
      return CalledRouters{*std::move(routers), std::move(coordinator)};
    }
    if (said != routers.status().code()) {
      said = routers.status().code();
      SayWhatIsAwaited(absl::FromChrono(left), routers.status(), console);
    }
    std::this_thread::sleep_for(std::min(left, pause));
    pause = std::min(2 * pause, kLongestPause);
  }
}

void TranslateFlags::Declare(Flags& flags) {
  flags.Text("model", &options.model, "NAME",
             "model, or name@version; left out if only one is served");
  flags.Integer("beam", &beam, 1, 32, "hypotheses kept a sentence");
  flags.Real("length_penalty", &length_penalty, Interval::Closed(0.0, 4.0),
             "exponent; higher prefers longer translations");
  flags.Integer("max_length", &max_length, 0, 65536,
                "tokens a translation may have; 0: by the source's length");
  flags.Bool("greedy", &greedy,
             "take the most probable token each time instead of --beam");
  flags.Bool("sample", &sample,
             "draw translations at random, --n_best for each line, instead of "
             "searching for the most probable ones");
  flags.Integer("top_k", &top_k, 1, kMaxTopK,
                "with --sample: the most probable tokens from which one is "
                "drawn each time");
  flags.Real("temperature", &temperature,
             Interval::Closed(kMinTemperature, kMaxTemperature),
             "with --sample: below 1 the probable tokens are drawn more often, "
             "above 1 less");
  flags.Integer("seed", &seed, -1, std::numeric_limits<int64_t>::max(),
                "with --sample: the same one draws the same translations; -1: "
                "others each time");
  flags.Text("prefix", &options.prefix, "TEXT",
             "what every translation begins with");
  flags.Text("glossary", &glossary, "FILE",
             "terms, tab-separated source and target, at most 64: where a line "
             "has the source, its translation has the target");
  flags.List("keep", &options.keep, "WORDS",
             "words that come out as they are where a line has them, as names "
             "and placeholders do; each may be several, up to a comma");
  flags.Bool("alternatives", &alternatives,
             "instead of the best translations, those of the --beam most "
             "probable tokens behind the prefix");
  flags.Bool("allow_unknown", &allow_unknown,
             "let a translation have the mark for what the vocabulary cannot "
             "write");
  flags.Bool("require_full", &options.require_full,
             "fail rather than translate without experts that are lost");
  flags.List("router", &options.routers, "ADDRESS",
             "routers to call in turn; left out: all that the coordinator "
             "knows");
  flags.Integer("sentences_per_call", &options.sentences_per_call, 1,
                kMaxSentences, "lines sent together");
  flags.Integer("calls", &options.calls_in_flight, 1, 64,
                "requests under way at a time");
  flags.Duration("timeout", &timeout, "time that one request may take");
  flags.Duration("patience", &patience,
                 "how long to go on asking while no coordinator answers, no "
                 "router has joined, or routers are unavailable or have no "
                 "time");
  system.Declare(flags);
}

absl::StatusOr<std::unique_ptr<LineTranslator>> TranslateFlags::Connect(
    Console& console) {
  absl::StatusOr<v1::TranslateOptions> search = SearchOf(*this);
  if (!search.ok()) return UsageError(search.status());
  options.search = *std::move(search);
  for (const std::string& words : options.keep) {
    if (words.empty()) return UsageError("--keep: expected words, got none");
  }
  const absl::Status texts = CheckTexts(options);
  if (!texts.ok()) return UsageError(texts);
  if (!glossary.empty()) {
    RETURN_IF_ERROR(ReadGlossary(glossary, options.search));
  }
  options.timeout = absl::ToChronoMilliseconds(timeout);
  options.patience = absl::ToChronoMilliseconds(patience);
  options.waits = [&console](milliseconds left, const absl::Status& why) {
    SayWhatIsAwaited(absl::FromChrono(left), why, console);
  };
  ASSIGN_OR_RETURN(
      CalledRouters called,
      RoutersToCall(options.routers, system, options.patience, console));
  options.routers = std::move(called.addresses);
  if (called.coordinator != nullptr) {
    // Briefly: calls wait for it that other routers could answer.
    options.find_routers = [coordinator = std::move(called.coordinator)] {
      return RoutersOf(*coordinator, std::chrono::seconds(2));
    };
  }
  options.security = system.security;
  auto translator = LineTranslator::Create(options);
  // The addresses are valid: the error is in the security flags.
  if (absl::IsInvalidArgument(translator.status())) {
    return UsageError(translator.status());
  }
  return translator;
}

absl::Status AskForLanguage(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) ||
      !absl::StrContains(status.message(), "language: expected")) {
    return status;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; say which with --from"));
}

absl::Status BlankLines(int64_t lines, const absl::Status& first) {
  return Annotate(first, absl::StrCat(lines, " lines stayed blank; the first"));
}

void WarnOfDegraded(int64_t lines, Console& console) {
  if (lines == 0) return;
  *console.error << "gshard: " << lines
                 << " lines were translated without experts that no worker "
                    "holds; see `gshard describe`"
                 << std::endl;
}

}  // namespace gshard
