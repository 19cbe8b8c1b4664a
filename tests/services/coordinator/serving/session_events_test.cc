// What members' replies change in the observed state of their sessions.

#include "services/coordinator/serving/session_events.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>

namespace gshard {
namespace {

using Phase = ServedModel::Phase;
using State = HeldSession::State;

TEST(OnRepliedTest, SaysWhatFollows) {
  const auto unavailable = absl::UnavailableError("a disk");
  const auto full = absl::ResourceExhaustedError("no memory");
  const auto exists = absl::AlreadyExistsError("it is loaded");
  const auto elsewhere = absl::AbortedError("of another checkpoint");
  const auto other = absl::UnimplementedError("other segments");
  const auto router = MemberRole::kRouter, worker = MemberRole::kExpertWorker;
  const auto never = absl::InfiniteDuration(), pause = absl::Seconds(30),
             soon = absl::Milliseconds(200), later = absl::Seconds(10);
  const struct {
    State before;
    absl::Status status;
    MemberRole role;
    bool serves;
    int refusals;  // before
    State after;
    absl::Duration pause;
    bool fails;
  } rows[] = {
      {State::kLoading, {}, router, false, 3, State::kReady, never, false},
      {State::kLoading, exists, worker, true, 0, State::kReady, never, false},
      {State::kLoading, elsewhere, router, false, 3, State::kReady, never,
       false},
      {State::kLoading, unavailable, worker, false, 0, State::kWaiting, soon,
       false},
      {State::kLoading, unavailable, router, false, 0, State::kPaused, soon,
       false},
      {State::kLoading, unavailable, router, false, kMaxRefusals,
       State::kPaused, later, true},
      {State::kLoading, unavailable, worker, true, kMaxRefusals,
       State::kWaiting, later, false},
      {State::kLoading, full, worker, true, 0, State::kPaused, pause, false},
      {State::kLoading, full, worker, false, 0, State::kPaused, pause, true},
      {State::kLoading, other, router, false, 0, State::kLeftOut, never, false},
      {State::kLoading, other, worker, false, 0, State::kPaused, pause, true},
      {State::kTelling, {}, router, true, 0, State::kReady, never, false},
      {State::kTelling, full, router, true, 0, State::kUnknown, never, false},
      {State::kReleasing, {}, router, true, 0, State::kUnknown, never, false},
      {State::kReleasing, full, worker, true, 0, State::kUnknown, never, false},
  };
  for (size_t i = 0; i < std::size(rows); ++i) {
    SCOPED_TRACE(i);
    ServedModel model;
    if (rows[i].serves) model.phase = Phase::kAnswering;
    HeldSession held;
    held.state = rows[i].before;
    held.version = 5;
    held.refusals = rows[i].refusals;
    EXPECT_EQ(OnReplied(rows[i].status, rows[i].role, pause, &model, &held),
              rows[i].pause);
    EXPECT_EQ(held.state, rows[i].after);
    EXPECT_EQ(!model.failure.ok(), rows[i].fails);
    if (held.state != State::kReady) continue;
    EXPECT_EQ(held.refusals, 0);
    EXPECT_EQ(held.version, rows[i].status.ok() ? 5 : 0);
  }
}

}  // namespace
}  // namespace gshard
