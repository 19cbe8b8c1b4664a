// TranslationStream: one call of TranslateStream. Deletes itself.
//
// Its backlog is bounded: a message is read only while fewer than max_sentences
// sentences are being translated or have unread answers.

#ifndef ROUTER_EDGE_TRANSLATION_STREAM_H_
#define ROUTER_EDGE_TRANSLATION_STREAM_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "proto/gshard/v1/translation.pb.h"
#include "router/edge/intake.h"
#include "router/metrics/router_metrics.h"
#include "router/models/cancellation.h"
#include "services/base/mutex.h"
#include "services/rpc/server/call_info.h"

namespace gshard {

struct TranslationStreamOptions {
  Intake* intake = nullptr;  // not owned; outlives the stream
  uint64_t flow = 0;         // flow of all its requests

  RouterMetrics metrics = {};
  int64_t max_sentences = 256;  // outstanding; one message is always read
  std::chrono::milliseconds max_request_time{60'000};

  // Called once, last, when the stream has ended.
  std::function<void()> on_over = nullptr;
};

class TranslationStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  TranslationStream(TranslationStreamOptions options,
                    grpc::CallbackServerContext* context);

  // Starts reading. The stream may be deleted when this returns.
  void Start();

  // Stops reading, or does not start; ends with `status` when everything read
  // is answered. Not to be called after on_over.
  void End(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  using Clock = std::chrono::steady_clock;

  // A request being translated. Non-constant fields are accessed only by its
  // parser and its answer.
  struct Message {
    const Clock::time_point start = Clock::now();
    const std::shared_ptr<Cancellation> stop = std::make_shared<Cancellation>();
    Clock::time_point deadline;  // of the stream, or of any request
    uint64_t id = 0;
    int64_t sentences = 0;   // outstanding for it; 0 while it is being read
    bool malformed = false;  // ends the stream, and has no answer
  };
  struct Answer {
    grpc::ByteBuffer bytes;
    int64_t sentences = 0;
  };

  void Take(grpc::ByteBuffer bytes);
  absl::StatusOr<ParsedRequest> Parse(Message& message, grpc::ByteBuffer bytes);
  // The message is parsed: another one may be read.
  void OnParsed(Message& message, int64_t sentences);
  // Delivers the message's outcome, once.
  void Reply(const std::shared_ptr<Message>& message, const std::string& model,
             absl::StatusOr<v1::TranslateResponse> response);
  // Ends the stream and its work with an error.
  void Stop(const absl::Status& status);
  // Continues after a change: reads, writes or ends. Returns the argument for
  // Finish(), to be called without mutex_. Nothing: the stream continues, and
  // another thread may delete `this` once mutex_ is released.
  std::optional<grpc::Status> GoOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TranslationStreamOptions options_;
  grpc::CallbackServerContext* const context_;
  const CallInfo info_;
  const std::string caller_;
  grpc::ByteBuffer incoming_;

  Mutex mutex_;
  // Until the message read is parsed.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;  // the client has half-closed
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // reads no more
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // the front of answers_
  bool over_ ABSL_GUARDED_BY(mutex_) = false;      // Finish() has been called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);    // why it ends
  int64_t owed_ ABSL_GUARDED_BY(mutex_) = 0;       // sentences
  // Messages without an answer.
  std::set<std::shared_ptr<Message>> live_ ABSL_GUARDED_BY(mutex_);
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // ROUTER_EDGE_TRANSLATION_STREAM_H_
