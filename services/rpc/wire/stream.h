// Long-lived streams as a sender and a handler, the same on both sides of a
// call. server_stream.h and client_stream.h create them.
//
// Messages are protobuf messages or Frames. Nothing here blocks: a sender
// queues messages, and gRPC's own threads call the handler.

#ifndef SERVICES_RPC_WIRE_STREAM_H_
#define SERVICES_RPC_WIRE_STREAM_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/rpc/wire/raw_message.h"
#include "services/rpc/wire/tensor_frame.h"

namespace gshard {

// Receives the events of a stream. gRPC's threads make the calls, one at a
// time; the calls must not block, so hand longer work to another thread. The
// stream owns its handler and destroys it after OnEnd(). A server's handler may
// still be called shortly after ServerShell::Drain() has returned, so it must
// share the ownership of everything that it accesses.
template <typename In>
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // The peer's next message, in the order of sending.
  virtual void OnMessage(In message) = 0;

  // Called once, as the last call. `status` is OK if the stream was finished in
  // order, and CANCELLED if either side cancelled it or a server lost its
  // client. A client gets UNAVAILABLE if the server died or cannot be reached,
  // and DEADLINE_EXCEEDED at the stream's deadline. Otherwise it is the status
  // with which the server ended the stream, or the reason why a message of the
  // peer could not be decoded.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// The sending end of a stream. Thread-safe; may outlive the stream.
template <typename Out>
class StreamSender {
 public:
  virtual ~StreamSender() = default;

  // Queues a message. Errors: Unavailable if the stream has ended or Finish()
  // was called; ResourceExhausted if the peer reads so slowly that
  // StreamOptions.max_queued_bytes are already queued.
  virtual absl::Status Send(Out message) = 0;

  // Ends the stream once all queued messages are sent. Client: half-closes the
  // call; a ServeStream() server then sends what it has queued and nothing
  // more; `status` is ignored. Server: the client gets `status`.
  virtual void Finish(const absl::Status& status = absl::OkStatus()) = 0;

  // Ends the stream at once and drops queued messages.
  virtual void Cancel() = 0;
};

// Creates the handler of a new stream. The handler may keep the sender.
template <typename In, typename Out>
using StreamHandlerFactory = std::function<std::unique_ptr<StreamHandler<In>>(
    std::shared_ptr<StreamSender<Out>>)>;

struct StreamOptions {
  // Limit of the bytes queued for the peer. An empty queue accepts a message of
  // any size.
  size_t max_queued_bytes = size_t{256} << 20;

  // Used by streams of frames only.
  FrameLimits frame_limits;
};

// Implementation: conversion of messages to and from the bytes that gRPC sends.
template <typename T>
struct Wire {
  static grpc::ByteBuffer Encode(const T& message) {
    return SerializeRaw(message);
  }
  static absl::StatusOr<T> Decode(grpc::ByteBuffer& bytes, const FrameLimits&) {
    return ParseRaw<T>(std::exchange(bytes, grpc::ByteBuffer()));
  }
};

template <typename Header>
struct Wire<Frame<Header>> {
  static grpc::ByteBuffer Encode(const Frame<Header>& frame) {
    return EncodeFrame(frame);
  }
  static absl::StatusOr<Frame<Header>> Decode(grpc::ByteBuffer& bytes,
                                              const FrameLimits& limits) {
    return DecodeFrame<Header>(std::exchange(bytes, grpc::ByteBuffer()),
                               limits);
  }
};

// Implementation: the queue of outgoing messages between the senders and a
// reactor. gRPC never runs a reaction inside Start...(), so the queue calls its
// reactor with the lock held.
template <typename Out>
class OutgoingQueue final : public StreamSender<Out> {
 public:
  // Implemented by the reactor; called by the queue.
  class Writer {
   public:
    virtual ~Writer() = default;
    // `message` stays valid and in place until OnWriteDone().
    virtual void Write(const grpc::ByteBuffer* message) = 0;
    // No Write() follows. Called at most once.
    virtual void Close(const absl::Status& status) = 0;
    virtual void CancelCall() = 0;
  };

  OutgoingQueue(Writer* writer, size_t max_bytes)
      : writer_(writer), max_bytes_(max_bytes) {}

  absl::Status Send(Out message) override {
    grpc::ByteBuffer bytes = Wire<Out>::Encode(message);
    const size_t size = bytes.Length();
    MutexLock lock(mutex_);
    if (writer_ == nullptr || closing_) {
      return absl::UnavailableError("the stream has ended");
    }
    if (!queue_.empty() && bytes_ + size > max_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the peer is too slow: ", bytes_,
                       " bytes wait for it, at most ", max_bytes_, " may"));
    }
    bytes_ += size;
    queue_.push_back({std::move(bytes), size});
    if (queue_.size() == 1) writer_->Write(&queue_.front().bytes);
    return absl::OkStatus();
  }

  void Finish(const absl::Status& status) override {
    MutexLock lock(mutex_);
    BeginClose(status);
  }

  void Cancel() override {
    MutexLock lock(mutex_);
    if (writer_ != nullptr) writer_->CancelCall();
  }

  // The remaining public methods are called by the reactor.

  void OnWriteDone(bool ok) {
    MutexLock lock(mutex_);
    bytes_ -= queue_.front().size;
    queue_.pop_front();
    if (!ok) DropWaiting(/*keep=*/0);
    if (!queue_.empty()) {
      writer_->Write(&queue_.front().bytes);
    } else if (closing_ && !closed_) {
      closed_ = true;
      writer_->Close(close_status_);
    }
  }

  // Like Finish(), but drops all messages except the one that gRPC is writing.
  void Abort(const absl::Status& status) {
    MutexLock lock(mutex_);
    DropWaiting(/*keep=*/1);
    BeginClose(status);
  }

  // The reactor is about to be destroyed. Returns the status with which the
  // stream was closed.
  absl::Status Detach() {
    MutexLock lock(mutex_);
    writer_ = nullptr;
    DropWaiting(/*keep=*/0);
    return close_status_;
  }

 private:
  struct Message {
    grpc::ByteBuffer bytes;
    size_t size;
  };

  void BeginClose(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writer_ == nullptr || closing_) return;
    closing_ = true;
    close_status_ = status;
    if (!queue_.empty()) return;
    closed_ = true;
    writer_->Close(close_status_);
  }

  void DropWaiting(size_t keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (queue_.size() > keep) {
      bytes_ -= queue_.back().size;
      queue_.pop_back();
    }
  }

  Mutex mutex_;
  Writer* writer_ ABSL_GUARDED_BY(mutex_);  // null once the stream has ended
  const size_t max_bytes_;
  // gRPC is writing the front message; a deque does not move it when others are
  // added.
  std::deque<Message> queue_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_STREAM_H_
