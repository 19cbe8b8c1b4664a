#include "router/translation_stream.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/caller.h"
#include "router/translate_answer.h"
#include "router/translate_request.h"
#include "services/base/status_macros.h"
#include "services/rpc/call_info.h"
#include "services/rpc/channel.h"
#include "services/rpc/server_stream.h"
#include "services/rpc/status.h"

namespace gshard {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

absl::StatusOr<v1::TranslateResponse> AnswerOf(
    const AnswerContext& context,
    const absl::StatusOr<std::vector<Hypotheses>>& results) {
  if (!results.ok()) return results.status();
  return MakeAnswer(context, *results);
}

}  // namespace

TranslationStream::TranslationStream(TranslationStreamOptions options,
                                     grpc::CallbackServerContext* context)
    : options_(std::move(options)),
      context_(context),
      caller_(CallerOf(*context)),
      trace_(CallInfoOf(*context).trace),
      flow_(options_.batcher->NewFlow()) {}

void TranslationStream::Start() { GoOn(std::unique_lock<std::mutex>(mutex_)); }

void TranslationStream::End(const absl::Status& status) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!stopping_) {
    stopping_ = true;
    status_ = status;
  }
  GoOn(std::move(lock));
}

void TranslationStream::Stop(const absl::Status& status) {
  std::set<uint64_t> requests;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    status_ = status;
    requests = requests_;
  }
  for (const uint64_t request : requests) options_.batcher->Cancel(request);
}

void TranslationStream::OnCancel() {
  Stop(absl::CancelledError("the client cancelled or was lost"));
  GoOn(std::unique_lock<std::mutex>(mutex_));
}

void TranslationStream::OnReadDone(bool ok) {
  if (ok) {
    const auto message =
        ParseTranslateStreamRequest(std::exchange(incoming_, {}));
    if (message.ok()) {
      Take(*message);
    } else {
      Stop(message.status());
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  reading_ = false;
  complete_ = complete_ || !ok;
  GoOn(std::move(lock));
}

void TranslationStream::Take(const v1::TranslateStreamRequest& request) {
  const auto message = std::make_shared<Message>();
  message->id = request.id();
  message->sentences = std::max(1, request.request().sentences_size());
  message->start = Clock::now();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The stream may be over, but for this read: nobody would hold it while
    // the message is translated.
    if (stopping_) return;
    ++live_;
    owed_ += message->sentences;
  }
  options_.metrics.requests_in_flight.Add(1);
  const absl::Status status = Queue(message, request);
  if (!status.ok()) Reply(*message, status);
}

absl::Status TranslationStream::Queue(
    const std::shared_ptr<Message>& message,
    const v1::TranslateStreamRequest& request) {
  if (request.timeout_ms() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout_ms: expected at least 0, got ", request.timeout_ms()));
  }
  ASSIGN_OR_RETURN(PreparedTranslation prepared,
                   PrepareTranslation(request.request(), *options_.models));
  options_.metrics.tokenize_seconds.Observe(SecondsSince(message->start));
  std::chrono::milliseconds timeout =
      RemainingTime(context_->deadline(), options_.max_request_time);
  if (request.timeout_ms() > 0) {
    timeout = std::min(timeout, std::chrono::milliseconds(std::min<int64_t>(
                                    request.timeout_ms(), 86'400'000)));
  }
  AnswerContext context(prepared);
  ASSIGN_OR_RETURN(const uint64_t id,
                   options_.batcher->Add(
                       {.model = std::move(prepared.model),
                        .sentences = std::move(prepared.sentences),
                        .deadline = message->start + timeout,
                        .trace = trace_,
                        .caller = caller_,
                        .flow = flow_,
                        .done = [this, message, context = std::move(context)](
                                    const auto& results) mutable {
                          auto response = AnswerOf(context, results);
                          // Whoever removes the model waits for this.
                          context.model = nullptr;
                          Reply(*message, std::move(response));
                        }}));
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    message->request = id;
    if (!message->done) requests_.insert(id);
    stopping = stopping_ && !status_.ok() && !absl::IsUnavailable(status_);
  }
  if (stopping) options_.batcher->Cancel(id);  // Stop() did not know of it
  return absl::OkStatus();
}

void TranslationStream::Reply(Message& message,
                              absl::StatusOr<v1::TranslateResponse> response) {
  v1::TranslateStreamResponse reply;
  reply.set_id(message.id);
  *reply.mutable_status() = ToProtoStatus(response.status());
  if (response.ok()) *reply.mutable_response() = *std::move(response);
  options_.metrics.requests_in_flight.Add(-1);
  options_.metrics.CountRequest(response.status().code(),
                                SecondsSince(message.start));
  Answer answer{SerializeRaw(reply), message.sentences};
  std::unique_lock<std::mutex> lock(mutex_);
  message.done = true;
  requests_.erase(message.request);
  --live_;
  answers_.push_back(std::move(answer));
  GoOn(std::move(lock));
}

void TranslationStream::OnWriteDone(bool ok) {
  if (!ok) Stop(absl::CancelledError("the client cancelled or was lost"));
  std::unique_lock<std::mutex> lock(mutex_);
  writing_ = false;
  owed_ -= answers_.front().sentences;
  answers_.pop_front();
  GoOn(std::move(lock));
}

void TranslationStream::GoOn(std::unique_lock<std::mutex> lock) {
  if (over_) return;
  const bool lost = stopping_ && absl::IsCancelled(status_);
  if (!writing_ && lost) answers_.clear();
  if (!writing_ && !answers_.empty()) {
    writing_ = true;
    StartWrite(&answers_.front().bytes);
  }
  if (!reading_ && !complete_ && !stopping_ &&
      (owed_ == 0 || owed_ < options_.max_sentences)) {
    reading_ = true;
    StartRead(&incoming_);
  }
  // A read that is under way when a stream is stopped ends by Finish().
  if (live_ > 0 || writing_ || (!complete_ && !stopping_)) return;
  over_ = true;
  const grpc::Status status = ToGrpcStatus(status_);
  lock.unlock();
  Finish(status);  // `this` may be gone
}

void TranslationStream::OnDone() {
  if (options_.on_over != nullptr) options_.on_over();
  delete this;
}

}  // namespace gshard
