// As where the number of threads is limited: none can be started.

#ifndef TESTS_SERVICES_BASE_NO_NEW_THREADS_H_
#define TESTS_SERVICES_BASE_NO_NEW_THREADS_H_

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace gshard {

// From construction to destruction; new threads would need a stack larger than
// the address space.
class NoNewThreads {
 public:
  NoNewThreads() {
    pthread_getattr_default_np(&usual_);
    pthread_attr_t vast;
    pthread_attr_init(&vast);
    EXPECT_EQ(pthread_attr_setstacksize(&vast, size_t{1} << 47), 0);
    EXPECT_EQ(pthread_setattr_default_np(&vast), 0);
    pthread_attr_destroy(&vast);
  }
  ~NoNewThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&usual_), 0);
    pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_BASE_NO_NEW_THREADS_H_
