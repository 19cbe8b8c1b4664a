// Moments of a training job, as the commands of its steps to members.

#ifndef TESTS_SERVICES_COORDINATOR_MOMENT_H_
#define TESTS_SERVICES_COORDINATOR_MOMENT_H_

#include <cstdint>
#include <functional>

#include "proto/gshard/v1/coordinator.pb.h"

namespace gshard {

// Whether a command is the one at which something happens in a test.
using Moment = std::function<bool(const v1::Command&)>;

inline Moment IsPrepare(int64_t step) {
  return [step](const v1::Command& c) {
    return c.has_prepare_step() && c.prepare_step().step() == step;
  };
}
inline Moment IsCommit(int64_t step) {
  return [step](const v1::Command& c) {
    return c.has_commit_step() && c.commit_step().step() == step;
  };
}
inline Moment IsWrite(int64_t step) {
  return [step](const v1::Command& c) {
    return c.has_write_checkpoint() && c.write_checkpoint().step() == step;
  };
}
inline Moment IsAssign(int64_t step) {
  return [step](const v1::Command& c) {
    return c.has_assign_microbatch() && c.assign_microbatch().step() == step;
  };
}

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_MOMENT_H_
