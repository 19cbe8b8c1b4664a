// StreamCaller: requests to one router over one TranslateStream, which is
// opened when first used, and again when used after it was lost.

#ifndef CLIENT_STREAM_CALLER_H_
#define CLIENT_STREAM_CALLER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/translation.pb.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

// Thread-safe.
class StreamCaller {
 public:
  // `address` is the router's, for errors.
  StreamCaller(std::string address, std::shared_ptr<grpc::Channel> channel);
  // Ends the stream. Nobody may be in Translate().
  ~StreamCaller();

  StreamCaller(const StreamCaller&) = delete;
  StreamCaller& operator=(const StreamCaller&) = delete;

  // Sends a request and waits for its answer, `timeout` at most; that of
  // TranslateStreamRequest is the same. Many may wait at the same time.
  //
  // Errors: the request's; the stream's with the router's address, UNAVAILABLE
  // if it was lost; DeadlineExceeded; Cancelled after Cancel().
  absl::StatusOr<v1::TranslateResponse> Translate(
      const v1::TranslateRequest& request, std::chrono::milliseconds timeout);

  // Makes all calls of Translate(), and those to come, return soon.
  void Cancel();

 private:
  struct Stream;
  class Answers;

  std::shared_ptr<Stream> LiveStream();  // needs mutex_

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::mutex mutex_;
  uint64_t last_id_ = 0;            // guarded by mutex_
  bool cancelled_ = false;          // guarded by mutex_
  std::shared_ptr<Stream> stream_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // CLIENT_STREAM_CALLER_H_
