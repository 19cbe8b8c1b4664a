// BatchScheduling: threads started during its lifetime are scheduled as
// SCHED_BATCH and do not preempt others when they wake up. For libraries that
// start their own threads.

#ifndef SERVICES_COLLECTIVES_BATCH_SCHEDULING_H_
#define SERVICES_COLLECTIVES_BATCH_SCHEDULING_H_

#include <pthread.h>
#include <sched.h>

namespace gshard {

// So is the calling thread, until destruction. Does nothing if the thread has
// another than the normal policy, or may not change it.
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
