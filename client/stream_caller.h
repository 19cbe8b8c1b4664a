// StreamCaller: sends requests to one router over one TranslateStream, which is
// opened on first use, and reopened on use after a loss.

#ifndef CLIENT_STREAM_CALLER_H_
#define CLIENT_STREAM_CALLER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "services/base/mutex.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

// Thread-safe.
class StreamCaller {
 public:
  // `address` is the router's, for errors.
  StreamCaller(std::string address, std::shared_ptr<grpc::Channel> channel);
  // Ends the stream. REQUIRES: no call of Translate() is running.
  ~StreamCaller();

  StreamCaller(const StreamCaller&) = delete;
  StreamCaller& operator=(const StreamCaller&) = delete;

  // Sends a request and waits for its answer, at most `timeout`, which is also
  // the request's timeout. Many calls may wait at the same time.
  //
  // Errors: the request's; the stream's with the router's address, UNAVAILABLE
  // if it was lost; DeadlineExceeded; Cancelled after Cancel().
  absl::StatusOr<v1::TranslateResponse> Translate(
      const v1::TranslateRequest& request, std::chrono::milliseconds timeout);

  // Makes all running and later calls of Translate() return soon.
  void Cancel();

 private:
  struct Stream;
  class Answers;

  std::shared_ptr<Stream> LiveStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // CLIENT_STREAM_CALLER_H_
