#include "client/line_translator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <future>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "router/admission/admission.h"
#include "router/edge/translate_request.h"
#include "router/edge/translation_service.h"
#include "router/models/terminology.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

// A call with this much text gets no further line. So it stays below the
// router's limit of tokens times hypotheses, with which it would be refused for
// good, for any lines of 3 bytes a token or more.
size_t CallBytes(const v1::TranslateOptions& search) {
  const auto most = static_cast<size_t>(AdmissionLimits().max_queued_tokens);
  // Each translation that is drawn is one, too.
  const int hypotheses = std::max({1, search.beam_size(), search.n_best()});
  return std::min<size_t>(64 << 10, most / static_cast<size_t>(hypotheses));
}

// A router reads at most this many sentences of a stream ahead, see
// --max_stream_sentences: for more, time would run before it has seen them.
constexpr int64_t kSentencesPerRouter =
    TranslationLimits().max_stream_sentences;

constexpr std::chrono::milliseconds kMaxPause{5'000};

// Above all, a request that is no UTF-8 would end its stream.
absl::Status CheckLine(const SourceLine& line) {
  absl::Status utf8 = CheckUtf8(line.text);
  utf8.Update(Annotate(CheckUtf8(line.language), "language"));
  if (!utf8.ok()) return Annotate(utf8, absl::StrCat("line ", line.number));
  if (line.text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line.number, ": expected at most ", kMaxTextBytes,
                     " bytes, got ", line.text.size()));
  }
  return absl::OkStatus();
}

// Adds spans of the words of `keep` that occur in the sentence.
void AddKeptSpans(const std::vector<std::string>& keep,
                  v1::Sentence& sentence) {
  for (const std::string& words : keep) {
    const size_t at = FindWords(sentence.text(), words);
    if (at == std::string::npos) continue;
    v1::TextSpan* const span = sentence.add_keep();
    span->set_begin(static_cast<int32_t>(at));
    span->set_end(static_cast<int32_t>(at + words.size()));
  }
}

// The index in "sentences[3].text: ...", if the message has one.
std::optional<size_t> SentenceIndex(absl::string_view message) {
  constexpr absl::string_view kStart = "sentences[";
  const size_t start = message.find(kStart);
  if (start == absl::string_view::npos) return std::nullopt;
  message.remove_prefix(start + kStart.size());
  size_t index;
  if (!absl::SimpleAtoi(message.substr(0, message.find(']')), &index)) {
    return std::nullopt;
  }
  return index;
}

// A descriptor that is readable if it was rung since it was cleared.
class Bell {
 public:
  Bell() : file_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Bell() {
    if (file_ >= 0) close(file_);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int file() const { return file_; }  // -1: none was available
  void Ring() const { (void)eventfd_write(file_, 1); }
  void Clear() const {
    eventfd_t rings;
    (void)eventfd_read(file_, &rings);
  }

 private:
  const int file_;
};

}  // namespace

absl::Status CheckUtf8(absl::string_view text) {
  const size_t malformed = FirstMalformedByte(text);
  if (malformed == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected UTF-8, got byte ",
      static_cast<int>(static_cast<unsigned char>(text[malformed])),
      " at offset ", malformed));
}

// Lines sent together.
struct LineTranslator::Call {
  std::vector<SourceLine> lines;
  std::vector<size_t> sent;  // lines[sent[i]] is request.sentences[i]
  v1::TranslateRequest request;
  v1::TranslateResponse response;
  absl::Status status;         // status of the RPC
  absl::Status source_status;  // error in the line after `lines`
  std::future<void> done;
  std::atomic<bool> over{true};  // false while in flight

  Mutex mutex;
  CondVar changed;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  // Where it was last sent.
  std::shared_ptr<RouterList::Router> router ABSL_GUARDED_BY(mutex);
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;

  void Cancel() {
    MutexLock lock(mutex);
    cancelled = true;
    if (router != nullptr) router->stream.Cancel();
    if (context != nullptr) context->TryCancel();
    changed.NotifyAll();
  }

  // Annotates `error` with its lines.
  absl::Status Locate(const absl::Status& error) const {
    const std::optional<size_t> index =
        SentenceIndex(std::string(error.message()));
    if (index.has_value() && *index < sent.size()) {
      return Annotate(error, absl::StrCat("line ", lines[sent[*index]].number));
    }
    const int64_t first = lines[sent.front()].number;
    const int64_t last = lines[sent.back()].number;
    return Annotate(error, first == last
                               ? absl::StrCat("line ", first)
                               : absl::StrCat("lines ", first, " to ", last));
  }

  // Takes the sentence that `error` names out of the request; its line gets the
  // error. False if it names none, or may pass.
  bool TakeOut(const absl::Status& error) {
    // A sentence that is too large is ResourceExhausted, without a delay.
    if (!absl::IsInvalidArgument(error) &&
        !(absl::IsResourceExhausted(error) && !RetryDelay(error))) {
      return false;
    }
    const std::optional<size_t> index =
        SentenceIndex(std::string(error.message()));
    if (!index.has_value() || *index >= sent.size()) return false;
    lines[sent[*index]].error = Locate(error);
    sent.erase(sent.begin() + static_cast<ptrdiff_t>(*index));
    request.mutable_sentences()->DeleteSubrange(static_cast<int>(*index), 1);
    return true;
  }
};

absl::StatusOr<std::unique_ptr<LineTranslator>> LineTranslator::Create(
    LineTranslatorOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<RouterList> routers,
                   RouterList::Create(options.routers, options.find_routers,
                                      options.security));
  return std::unique_ptr<LineTranslator>(
      new LineTranslator(std::move(options), std::move(routers)));
}

bool LineTranslator::Gather(const Source& source, Call* call) {
  call->request.set_model(options_.model);
  *call->request.mutable_options() = options_.search;
  call->request.set_require_full(options_.require_full);
  const size_t most_bytes = CallBytes(options_.search);
  size_t bytes = 0;
  while (std::ssize(call->lines) < options_.sentences_per_call &&
         bytes < most_bytes) {
    if (!call->lines.empty() && source.ready && !source.ready(-1)) break;
    absl::StatusOr<std::optional<SourceLine>> line = source.next();
    call->source_status = line.status();
    if (!line.ok() || !line->has_value()) break;
    SourceLine& next = **line;
    if (next.error.ok()) next.error = CheckLine(next);
    if (!next.error.ok() && !options_.blank_errors) {
      call->source_status = next.error;
      break;
    }
    if (next.error.ok() && !IsBlank(next.text)) {
      v1::Sentence* sentence = call->request.add_sentences();
      sentence->set_text(next.text);
      sentence->set_source_language(next.language);
      sentence->set_target_prefix(options_.prefix);
      AddKeptSpans(options_.keep, *sentence);
      call->sent.push_back(call->lines.size());
      bytes += next.text.size();
    }
    call->lines.push_back(std::move(next));
  }
  return !call->lines.empty() || !call->source_status.ok();
}

absl::Status LineTranslator::Ask(Call* call, size_t turn) {
  const std::shared_ptr<RouterList::Router> router = routers_->Get(turn);
  {
    MutexLock lock(call->mutex);
    if (call->cancelled) return absl::CancelledError("given up");
    call->router = router;
  }
  absl::StatusOr<v1::TranslateResponse> response =
      router->stream.Translate(call->request, options_.timeout);
  if (response.ok()) {
    call->response = *std::move(response);
    return absl::OkStatus();
  }
  if (!absl::IsUnimplemented(response.status())) return response.status();
  grpc::ClientContext context;
  SetDeadline(context, options_.timeout);
  {
    MutexLock lock(call->mutex);
    if (call->cancelled) return absl::CancelledError("given up");
    call->context = &context;
  }
  const grpc::Status status =
      v1::TranslationService::NewStub(router->channel)
          ->Translate(&context, call->request, &call->response);
  MutexLock lock(call->mutex);
  call->context = nullptr;
  return Annotate(FromGrpcStatus(status),
                  absl::StrCat("router ", router->address));
}

void LineTranslator::SayThatItWaits(std::chrono::milliseconds left,
                                    const absl::Status& why) {
  if (!options_.waits) return;
  MutexLock lock(mutex_);
  if (said_.insert(why.code()).second) options_.waits(left, why);
}

void LineTranslator::Run(Call* call, size_t turn) {
  using std::chrono::steady_clock;
  std::optional<steady_clock::time_point> failing_since;
  std::chrono::milliseconds pause = options_.first_pause;
  bool repeated = false;
  while (true) {
    routers_->Refresh(/*lost=*/false);
    call->status = Ask(call, turn++);
    if (options_.blank_errors && call->TakeOut(call->status)) {
      call->status = absl::OkStatus();
      if (call->sent.empty()) return;
      continue;
    }
    const auto delay = RetryDelay(call->status);
    const bool lost = absl::IsUnavailable(call->status);
    const bool refused = absl::IsResourceExhausted(call->status);
    if (absl::IsDeadlineExceeded(call->status) || (refused && !delay)) {
      // Likely to happen again: one more attempt.
      if (std::exchange(repeated, true)) return;
    } else if (!lost && !refused) {
      return;
    }
    const auto now = steady_clock::now();
    if (!failing_since.has_value()) failing_since = now;
    const auto left =
        options_.patience -
        std::chrono::floor<std::chrono::milliseconds>(now - *failing_since);
    if (left.count() <= 0) return;
    SayThatItWaits(left, call->status);
    if (lost) routers_->Refresh(/*lost=*/true);
    MutexLock lock(call->mutex);
    call->changed.WaitFor(
        lock, std::min(left, std::max(pause, delay.value_or(pause))),
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call->mutex) {
          return call->cancelled;
        });
    if (call->cancelled) return;
    if (!delay.has_value()) pause = std::min(2 * pause, kMaxPause);
  }
}

absl::Status LineTranslator::Translate(const Source& source, const Sink& sink) {
  const Bell bell;  // rung by completed calls
  if (bell.file() < 0) return FileError(errno, "make", "an eventfd");
  std::deque<std::unique_ptr<Call>> calls;
  // At least one call.
  const int64_t most_calls = std::min(
      options_.calls_in_flight,
      std::max<int64_t>(
          1, kSentencesPerRouter * static_cast<int64_t>(routers_->size()) /
                 std::max<int64_t>(1, options_.sentences_per_call)));
  size_t started = 0;
  bool more = true;
  absl::Status status;
  while (status.ok()) {
    // Blocks for a line only if no call is in flight.
    while (more && std::ssize(calls) < most_calls &&
           (calls.empty() || !source.ready || source.ready(-1))) {
      auto call = std::make_unique<Call>();
      more = Gather(source, call.get());
      if (!more) break;
      more = call->source_status.ok();
      if (!call->sent.empty()) {
        call->over = false;
        call->done = std::async(std::launch::async,
                                [this, started, &bell, call = call.get()] {
                                  Run(call, started);
                                  call->over = true;
                                  bell.Ring();
                                });
        ++started;
      }
      calls.push_back(std::move(call));
    }
    if (calls.empty()) break;
    bell.Clear();
    if (!calls.front()->over && more && std::ssize(calls) < most_calls) {
      source.ready(bell.file());
      continue;
    }

    const std::unique_ptr<Call> call = std::move(calls.front());
    calls.pop_front();
    if (call->done.valid()) call->done.wait();
    if (!call->status.ok()) {
      status = call->Locate(call->status);
      break;
    }
    const int answers = call->response.results_size();
    if (answers != static_cast<int>(call->sent.size())) {
      status = call->Locate(absl::InternalError(
          absl::StrCat("expected ", call->sent.size(),
                       " translations from the router, got ", answers)));
      break;
    }
    int next = 0;
    for (size_t i = 0; i < call->lines.size(); ++i) {
      const bool sent = next < answers && call->sent[next] == i;
      sink(call->lines[i], sent ? &call->response.results(next++) : nullptr);
    }
    status = call->source_status;
  }
  for (const auto& call : calls) call->Cancel();
  for (const auto& call : calls) {
    if (call->done.valid()) call->done.wait();
  }
  return status;
}

}  // namespace gshard
