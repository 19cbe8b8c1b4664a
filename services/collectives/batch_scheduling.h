// BatchScheduling: threads that are started while it lives are scheduled as
// SCHED_BATCH. They do not preempt others when they wake up. For libraries that
// start their own threads.

#ifndef SERVICES_COLLECTIVES_BATCH_SCHEDULING_H_
#define SERVICES_COLLECTIVES_BATCH_SCHEDULING_H_

#include <pthread.h>
#include <sched.h>

namespace gshard {

// The calling thread is too, until this goes. Does nothing if the thread has
// another policy than the normal one, or may not change it.
class BatchScheduling {
 public:
  BatchScheduling() {
    const sched_param batch = {};
    if (pthread_getschedparam(pthread_self(), &policy_, &former_) != 0 ||
        policy_ != SCHED_OTHER ||
        pthread_setschedparam(pthread_self(), SCHED_BATCH, &batch) != 0) {
      policy_ = SCHED_BATCH;  // nothing to restore
    }
  }
  ~BatchScheduling() {
    if (policy_ == SCHED_OTHER) {
      pthread_setschedparam(pthread_self(), policy_, &former_);
    }
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  int policy_ = SCHED_BATCH;
  sched_param former_ = {};
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_BATCH_SCHEDULING_H_
