#include "router/edge/translation_stream.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/edge/caller.h"
#include "router/edge/translate_request.h"
#include "services/base/monotonic_time.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/call_info.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

constexpr char kStreamMethod[] =
    "/gshard.v1.TranslationService/TranslateStream";

}  // namespace

TranslationStream::TranslationStream(TranslationStreamOptions options,
                                     grpc::CallbackServerContext* context)
    : options_(std::move(options)),
      context_(context),
      info_(CallInfoOf(*context)),
      caller_(CallerOf(info_, context->peer())) {}

void TranslationStream::Start() {
  MutexLock lock(mutex_);
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::End(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!stopping_) {
    stopping_ = true;
    status_ = status;
  }
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::Stop(const absl::Status& status) {
  std::set<std::shared_ptr<Message>> messages;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    status_ = status;
    messages = live_;
  }
  for (const auto& message : messages) message->stop->Cancel();
}

void TranslationStream::OnCancel() {
  Stop(absl::CancelledError("the client cancelled or was lost"));
  MutexLock lock(mutex_);
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::OnReadDone(bool ok) {
  if (ok) return Take(std::exchange(incoming_, {}));
  MutexLock lock(mutex_);
  reading_ = false;
  complete_ = true;
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::Take(grpc::ByteBuffer bytes) {
  const auto message = std::make_shared<Message>();
  message->id = PeekStreamRequestId(bytes);
  {
    MutexLock lock(mutex_);
    // The stream may have ended except for this read: nothing would keep it
    // alive while the message is translated.
    if (stopping_) {
      reading_ = false;
      const auto end = GoOn();
      lock.Unlock();
      if (end.has_value()) Finish(*end);
      return;
    }
    live_.insert(message);
  }
  options_.metrics.requests_in_flight.Add(1);
  message->deadline = message->start + RemainingTime(context_->deadline(),
                                                     options_.max_request_time);
  const absl::Status status = options_.intake->Take(
      {.bytes = std::move(bytes),
       .user = info_.caller,
       .caller = caller_,
       .flow = options_.flow,
       .trace = info_.trace,
       .deadline = message->deadline,
       .stop = message->stop,
       .parse =
           [this, message](grpc::ByteBuffer encoded) {
             return Parse(*message, std::move(encoded));
           },
       .done =
           [this, message](const std::string& model, auto response) {
             Reply(message, model, std::move(response));
           }});
  if (!status.ok()) Reply(message, "", status);
}

absl::StatusOr<ParsedRequest> TranslationStream::Parse(Message& message,
                                                       grpc::ByteBuffer bytes) {
  auto parsed = ParseTranslateStreamRequest(std::move(bytes));
  if (absl::IsResourceExhausted(parsed.status())) {
    return parsed.status();  // too large to be parsed, and no more is known
  }
  if (!parsed.ok()) {
    message.malformed = true;
    Stop(parsed.status());
    return parsed.status();
  }
  message.id = parsed->id();
  OnParsed(message, parsed->request().sentences_size());
  const int64_t timeout_ms = parsed->timeout_ms();
  if (timeout_ms < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_ms: expected at least 0, got ", timeout_ms));
  }
  Clock::time_point deadline = message.deadline;
  if (timeout_ms > 0) {
    const std::chrono::milliseconds timeout(
        std::min<int64_t>(timeout_ms, 86'400'000));
    deadline = std::min(deadline, message.start + timeout);
  }
  return ParsedRequest{std::move(*parsed->mutable_request()), deadline};
}

void TranslationStream::OnParsed(Message& message, int64_t sentences) {
  message.sentences = std::max<int64_t>(1, sentences);
  MutexLock lock(mutex_);
  owed_ += message.sentences;
  reading_ = false;
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::Reply(const std::shared_ptr<Message>& message,
                              const std::string& model,
                              absl::StatusOr<v1::TranslateResponse> response) {
  if (message->sentences == 0) OnParsed(*message, 1);  // given up before that
  v1::TranslateStreamResponse reply;
  reply.set_id(message->id);
  *reply.mutable_status() = ToProtoStatus(response.status());
  options_.metrics.requests_in_flight.Add(-1);
  options_.metrics.CountStreamRequest(model, response.status().code(),
                                      SecondsSince(message->start),
                                      info_.trace.sampled_id());
  bool draining = false;
  {
    MutexLock lock(mutex_);
    draining = stopping_ && absl::IsUnavailable(status_);
  }
  LogCall(kStreamMethod, info_, response.status(),
          Clock::now() - message->start, message->id, draining);
  if (response.ok()) *reply.mutable_response() = *std::move(response);
  Answer answer{SerializeRaw(reply), message->sentences};
  MutexLock lock(mutex_);
  live_.erase(message);
  if (!message->malformed) answers_.push_back(std::move(answer));
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

void TranslationStream::OnWriteDone(bool ok) {
  if (!ok) Stop(absl::CancelledError("the client cancelled or was lost"));
  MutexLock lock(mutex_);
  writing_ = false;
  owed_ -= answers_.front().sentences;
  answers_.pop_front();
  const auto end = GoOn();
  lock.Unlock();
  if (end.has_value()) Finish(*end);
}

std::optional<grpc::Status> TranslationStream::GoOn() {
  if (over_) return std::nullopt;
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
  // A pending read of a stopped stream is ended by Finish().
  if (!live_.empty() || writing_ || (!complete_ && !stopping_)) {
    return std::nullopt;
  }
  over_ = true;
  return ToGrpcStatus(status_);
}

void TranslationStream::OnDone() {
  if (options_.on_over != nullptr) options_.on_over();
  delete this;
}

}  // namespace gshard
