// Tells ThreadSanitizer about the ordering that gRPC guarantees. Only built
// with GSHARD_SANITIZE=thread.
//
// Debian's gRPC is not instrumented: ThreadSanitizer sees neither its locks nor
// its queues, and reports everything that passes through gRPC from one thread
// to another as a race. The functions below interpose on the functions of the
// same names in gRPC's libraries, and declare what those guarantee and no more:
//
//   - what happened before operations were started happens before they are
//     reported as done;
//   - what happened before a server was started happens before its calls, and
//     these happen before its shutdown returns;
//   - what happened before a guard of calls was set happens before the guard is
//     called, and the calls happen before it is destroyed;
//   - what happened before a slice was made of memory, or a request for a
//     server, happens before these are released;
//   - what a reactor did under its lock happens before the lock is taken again;
//   - what happened before OnDone() or OnCancel() was put on an executor
//     happens before it runs, and OnDone() comes after everything else of its
//     call.
//
// No call is ordered after another, so races between handlers are still
// reported; tests/services/rpc/wire/seeded_race_test.cc proves it.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/synchronization/mutex.h"
#include "services/base/check.h"

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

// Linker symbols that delimit this program's own code.
extern char __executable_start;
extern char etext;

// Private functions of gRPC's headers: what the tag of a callback runs. Absent
// in a program without such callbacks.
void GrpcRunSuccessTag(grpc_completion_queue_functor*, int) __asm__(
    "_ZN4grpc8internal22CallbackWithSuccessTag9StaticRunEP29"
    "grpc_completion_queue_functori") __attribute__((weak));
void GrpcRunStatusTag(grpc_completion_queue_functor*, int) __asm__(
    "_ZN4grpc8internal21CallbackWithStatusTag9StaticRunEP29"
    "grpc_completion_queue_functori") __attribute__((weak));

}  // extern "C"

// The code below must not itself be reported as a race.
#define GSHARD_UNSEEN __attribute__((no_sanitize("thread")))

namespace {

// gRPC's own function of this name, which this file interposes on.
template <typename Function>
GSHARD_UNSEEN Function* Hidden(const char* name) {
  auto* const hidden = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  CHECK(hidden != nullptr);
  return hidden;
}

GSHARD_UNSEEN bool IsOurs(const void* code) {
  return code >= &__executable_start && code < &etext;
}

GSHARD_UNSEEN void RunSuccessTag(grpc_completion_queue_functor* tag, int ok) {
  __tsan_acquire(tag);
  GrpcRunSuccessTag(tag, ok);
}

GSHARD_UNSEEN void RunStatusTag(grpc_completion_queue_functor* tag, int ok) {
  __tsan_acquire(tag);
  GrpcRunStatusTag(tag, ok);
}

// The owner of a slice's memory.
struct SliceOwner {
  void (*destroy)(void*);
  void* data;
};

GSHARD_UNSEEN void DestroySlice(void* address) {
  auto* const owner = static_cast<SliceOwner*>(address);
  __tsan_acquire(owner);
  owner->destroy(owner->data);
  delete owner;
}

// The guard of a server's calls. One call of the guard is not ordered after
// another.
struct GuardOwner {
  grpc_auth_metadata_processor guard;
  char set;
  char asked;
};

GSHARD_UNSEEN void AskGuard(void* state, grpc_auth_context* context,
                            const grpc_metadata* metadata, size_t count,
                            grpc_process_auth_metadata_done_cb done,
                            void* user_data) {
  auto* const owner = static_cast<GuardOwner*>(state);
  __tsan_acquire(&owner->set);
  // Before the answer, since the owner may be destroyed after it.
  __tsan_release(&owner->asked);
  owner->guard.process(owner->guard.state, context, metadata, count, done,
                       user_data);
}

GSHARD_UNSEEN void DestroyGuard(void* state) {
  auto* const owner = static_cast<GuardOwner*>(state);
  __tsan_acquire(&owner->set);
  __tsan_acquire(&owner->asked);
  owner->guard.destroy(owner->guard.state);
  delete owner;
}

// A server creates a request on the thread that reads it, and runs its tag on
// the thread that polls for it next. In gRPC 1.51's CallbackRequest the tag
// follows the metadata, whose creation is intercepted below, and two pointers.
constexpr size_t kTagBehindMetadata =
    sizeof(grpc_metadata_array) + 2 * sizeof(void*);

// Sync objects shared by all started servers, and by all completed requests.
char started;
char finished;

}  // namespace

extern "C" {

GSHARD_UNSEEN grpc_call_error grpc_call_start_batch(grpc_call* call,
                                                    const grpc_op* operations,
                                                    size_t count, void* tag,
                                                    void* reserved) {
  static auto* const hidden =
      Hidden<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  if (tag != nullptr) {
    // Tags of other completion queues begin with a pointer to a vtable.
    auto* const functor = static_cast<grpc_completion_queue_functor*>(tag);
    if (functor->functor_run == &GrpcRunSuccessTag) {
      functor->functor_run = &RunSuccessTag;
    } else if (functor->functor_run == &GrpcRunStatusTag) {
      functor->functor_run = &RunStatusTag;
    }
    __tsan_release(tag);
  }
  return hidden(call, operations, count, tag, reserved);
}

GSHARD_UNSEEN grpc_event grpc_completion_queue_next(
    grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const hidden = Hidden<decltype(grpc_completion_queue_next)>(
      "grpc_completion_queue_next");
  const grpc_event event = hidden(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) {
    __tsan_acquire(event.tag);
    __tsan_acquire(static_cast<char*>(event.tag) - kTagBehindMetadata);
  }
  // The last step of a server's Shutdown(), when no request is left.
  if (event.type == GRPC_QUEUE_SHUTDOWN) __tsan_acquire(&finished);
  return event;
}

GSHARD_UNSEEN grpc_event
grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                            gpr_timespec deadline, void* reserved) {
  static auto* const hidden = Hidden<decltype(grpc_completion_queue_pluck)>(
      "grpc_completion_queue_pluck");
  const grpc_event event = hidden(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

GSHARD_UNSEEN grpc_slice grpc_slice_new_with_user_data(void* bytes,
                                                       size_t length,
                                                       void (*destroy)(void*),
                                                       void* data) {
  static auto* const hidden = Hidden<decltype(grpc_slice_new_with_user_data)>(
      "grpc_slice_new_with_user_data");
  auto* const owner = new SliceOwner{destroy, data};
  __tsan_release(owner);
  return hidden(bytes, length, &DestroySlice, owner);
}

// A server creates a request and its metadata on one thread, and destroys them
// on another.
GSHARD_UNSEEN void grpc_metadata_array_init(grpc_metadata_array* array) {
  static auto* const hidden =
      Hidden<decltype(grpc_metadata_array_init)>("grpc_metadata_array_init");
  __tsan_release(array);
  hidden(array);
}

GSHARD_UNSEEN void grpc_metadata_array_destroy(grpc_metadata_array* array) {
  static auto* const hidden = Hidden<decltype(grpc_metadata_array_destroy)>(
      "grpc_metadata_array_destroy");
  __tsan_acquire(array);
  __tsan_release(&finished);
  hidden(array);
}

GSHARD_UNSEEN void grpc_server_credentials_set_auth_metadata_processor(
    grpc_server_credentials* credentials, grpc_auth_metadata_processor guard) {
  static auto* const hidden =
      Hidden<decltype(grpc_server_credentials_set_auth_metadata_processor)>(
          "grpc_server_credentials_set_auth_metadata_processor");
  auto* const owner = new GuardOwner{guard, 0, 0};
  __tsan_release(&owner->set);
  hidden(credentials, {&AskGuard, &DestroyGuard, owner});
}

// Called while a call is prepared for its interceptors and its handler.
GSHARD_UNSEEN void* grpc_call_arena_alloc(grpc_call* call, size_t size) {
  static auto* const hidden =
      Hidden<decltype(grpc_call_arena_alloc)>("grpc_call_arena_alloc");
  __tsan_acquire(&started);
  return hidden(call, size);
}

GSHARD_UNSEEN void grpc_server_start(grpc_server* server) {
  static auto* const hidden =
      Hidden<decltype(grpc_server_start)>("grpc_server_start");
  __tsan_release(&started);
  hidden(server);
}

// The first step of serving a call.
GSHARD_UNSEEN void grpc_call_ref(grpc_call* call) {
  static auto* const hidden = Hidden<decltype(grpc_call_ref)>("grpc_call_ref");
  __tsan_acquire(&started);
  hidden(call);
}

}  // extern "C"

// Code in gRPC's headers, and so of this program, takes the lock of a reactor.
// Locks in gRPC's libraries are not declared: they would order unrelated calls.
namespace absl {

GSHARD_UNSEEN void Mutex::Lock() {
  static auto* const hidden =
      Hidden<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  hidden(this);
  if (IsOurs(__builtin_return_address(0))) __tsan_acquire(this);
}

GSHARD_UNSEEN void Mutex::Unlock() {
  static auto* const hidden =
      Hidden<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  if (IsOurs(__builtin_return_address(0))) __tsan_release(this);
  hidden(this);
}

}  // namespace absl

namespace grpc::internal {
namespace {

// Forwards OnDone() of a client's call.
class ClientDoneHop final : public ClientReactor {
 public:
  explicit ClientDoneHop(ClientReactor* reactor) : reactor_(reactor) {}

  GSHARD_UNSEEN void OnDone(const Status& status) override {
    __tsan_acquire(reactor_);
    reactor_->OnDone(status);
    delete this;
  }

 private:
  ClientReactor* const reactor_;
};

// Forwards OnCancel() of a server's call.
class CancelHop final : public ServerReactor {
 public:
  CancelHop(ServerReactor* reactor, void* count)
      : reactor_(reactor), count_(count) {}

  void OnDone() override {}
  GSHARD_UNSEEN void OnCancel() override {
    __tsan_acquire(reactor_);
    reactor_->OnCancel();
    __tsan_release(count_);
    delete this;
  }

 private:
  ServerReactor* const reactor_;
  void* const count_;  // the caller decrements it next
};

using ScheduleOnDoneFunction = void(ServerCallbackCall*, bool);

// Forwards CallOnDone() of a server's call.
class ServerDoneHop final : public ServerCallbackCall {
 public:
  ServerDoneHop(ServerCallbackCall* call, ScheduleOnDoneFunction* schedule)
      : call_(call), schedule_(schedule) {}

 private:
  ServerReactor* reactor() override { return nullptr; }
  GSHARD_UNSEEN void CallOnDone() override {
    __tsan_acquire(call_);
    schedule_(call_, /*inline_ondone=*/true);
    delete this;
  }

  ServerCallbackCall* const call_;
  ScheduleOnDoneFunction* const schedule_;
};

}  // namespace

GSHARD_UNSEEN void ClientReactor::InternalScheduleOnDone(Status status) {
  static auto* const hidden = Hidden<void(ClientReactor*, Status)>(
      "_ZN4grpc8internal13ClientReactor22InternalScheduleOnDoneENS_6StatusE");
  __tsan_release(this);
  hidden(new ClientDoneHop(this), std::move(status));
}

// The counters of a call are also decremented where ThreadSanitizer does not
// see it, so their releases by other threads are acquired here.

GSHARD_UNSEEN void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const hidden = Hidden<ScheduleOnDoneFunction>(
      "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(&callbacks_outstanding_);
  if (inline_ondone) return hidden(this, true);
  __tsan_release(this);
  hidden(new ServerDoneHop(this, hidden), false);
}

GSHARD_UNSEEN void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const hidden = Hidden<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13"
      "ServerReactorE");
  __tsan_acquire(&on_cancel_conditions_remaining_);
  if (reactor->InternalInlineable()) return hidden(this, reactor);
  __tsan_release(reactor);
  hidden(this, new CancelHop(reactor, &callbacks_outstanding_));
}

}  // namespace grpc::internal
