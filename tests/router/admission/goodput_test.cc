// Admission, fair queueing and batching together, in virtual time and under
// overload: accepted requests are answered in time, goodput stays at its
// maximum, and callers get their shares.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/admission/admission.h"
#include "router/admission/join_rule.h"
#include "services/base/random.h"

namespace gshard {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::steady_clock;

constexpr BatchLimits kLimits = {.max_rows = 32};
constexpr double kSeconds = 60;

struct Arrival {
  std::string caller = "a";
  uint64_t flow = 0;
  size_t sentences = 1;
  int64_t source_tokens = 20;
  int64_t rows = 1;
  double time_left = 2;  // seconds
  int64_t max_rounds = 0;
  double load = 1;  // of the experts that its rows go to
};

// Counts sentences, except that `refused` counts requests.
struct Outcome {
  int64_t in_time = 0, late = 0, refused = 0;
  double tokens = 0;         // in time
  std::vector<double> took;  // seconds, of those in time
};

struct Scenario {
  // The `i`th arrival. Arrivals are random, `rate` per second.
  std::function<Arrival(uint64_t i)> arrival;
  double rate = 0;
  // Rounds that a sentence takes, per source token.
  std::function<double(uint64_t i)> ratio = [](uint64_t) { return 1.0; };
  double measured = 1;  // share of a round's time that is measured
  BatchLimits limits = kLimits;
  double encode_seconds = 0;  // per source token
  size_t lanes = 1;           // that take turns, and share the arrivals evenly
};

struct Running {
  WaitingSentence sentence;
  int64_t left, rounds;
};

// The sentences of one model.
struct Lane {
  FairQueue queue;
  BatchLoad load;
  std::vector<Running> running;
  double encoding = 0;  // seconds

  bool empty() const { return queue.empty() && running.empty(); }
};

SteadyTime At(double seconds) {
  return SteadyTime() +
         duration_cast<steady_clock::duration>(duration<double>(seconds));
}

// A round takes 4 ms, plus 1 ms times the expert load for each row, plus the
// encoding of sentences that join. Late sentences are dropped at their
// deadline, as in the batcher.
class Simulation {
 public:
  explicit Simulation(Scenario scenario)
      : scenario_(std::move(scenario)),
        admission_({}, scenario_.limits, /*batches=*/1),
        lanes_(scenario_.lanes) {}

  std::map<std::string, Outcome> Run() {
    while (now_ < kSeconds) {
      bool idle = true;
      for (Lane& lane : lanes_) {
        for (; next_ <= now_; ++count_) Arrive();
        Drop();
        Join(lane);
        if (lane.running.empty()) continue;
        Round(lane);
        idle = false;
      }
      if (idle) now_ = next_;
    }
    return outcomes_;
  }

 private:
  Lane& LaneOf(uint64_t request) { return lanes_[request % lanes_.size()]; }

  void SetLanes(const Lane* joining) {
    admission_.SetLanes(std::count_if(
        lanes_.begin(), lanes_.end(),
        [&](const Lane& lane) { return &lane == joining || !lane.empty(); }));
  }

  void Arrive() {
    Lane& lane = LaneOf(count_);
    SetLanes(&lane);
    const Arrival one = scenario_.arrival(count_);
    SentenceCost cost{
        .source_tokens = one.source_tokens,
        .rows = one.rows,
        .positions = one.source_tokens * (1 + 2 * one.rows),
        .max_rounds = one.max_rounds,
        .encode_work = EncodeWork(one.source_tokens, scenario_.limits)};
    admission_.callers().Estimate(one.caller, cost);
    loads_[count_] = one.load;
    WaitingSentence sentence{.caller = one.caller,
                             .flow = one.flow,
                             .request = count_,
                             .sentence = 0,
                             .cost = cost,
                             .arrival = At(next_),
                             .deadline = At(next_ + one.time_left)};
    const auto decision =
        admission_.Decide({.caller = one.caller,
                           .flow = one.flow,
                           .costs = std::vector(one.sentences, cost),
                           .now = At(next_),
                           .deadline = sentence.deadline});
    sentence.promised = decision.promised;
    next_ += -std::log(1 - RandomUniform(1, count_)) / scenario_.rate;
    if (!decision.status.ok()) {
      ++outcomes_[one.caller].refused;
      return;
    }
    waiting_.emplace(sentence.deadline, sentence);
    for (; sentence.sentence < one.sentences; ++sentence.sentence) {
      admission_.Queued(sentence);
      lane.queue.Add(sentence);
    }
  }

  void Late(const WaitingSentence& sentence) {
    ++outcomes_[sentence.caller].late;
    if (sentence.promised) admission_.Broken();
  }

  void Drop() {
    while (!waiting_.empty() && waiting_.begin()->first < At(now_)) {
      const WaitingSentence& sentence = waiting_.begin()->second;
      for (const WaitingSentence& one :
           LaneOf(sentence.request)
               .queue.Remove(sentence.caller, sentence.flow,
                             sentence.request)) {
        admission_.Dropped(one);
        Late(one);
      }
      waiting_.erase(waiting_.begin());
    }
    for (Lane& lane : lanes_) {
      std::erase_if(lane.running, [&](Running& one) {
        if (one.sentence.deadline >= At(now_)) return false;
        lane.load.Remove(one.sentence);
        admission_.Left(one.sentence);
        one.sentence.rounds = one.rounds - one.left;
        admission_.GivenUp(one.sentence);
        Late(one.sentence);
        return true;
      });
    }
  }

  void Join(Lane& lane) {
    SetLanes(&lane);
    for (WaitingSentence& sentence :
         TakeJoining(lane.queue, lane.load, scenario_.limits,
                     admission_.SlackAt(At(now_)))) {
      admission_.Joined(sentence);
      if (admission_.MissesDeadline(sentence, At(now_))) {
        admission_.Left(sentence);
        Late(sentence);
        continue;
      }
      const auto rounds = static_cast<int64_t>(
          std::ceil(static_cast<double>(sentence.cost.source_tokens) *
                    scenario_.ratio(sentence.request)));
      lane.load.Add(sentence);
      lane.load.Encode(sentence);
      lane.encoding += scenario_.encode_seconds *
                       static_cast<double>(sentence.cost.source_tokens);
      lane.running.push_back({std::move(sentence), rounds, rounds});
    }
    double left = 0;
    SteadyTime end = At(now_);
    for (const Running& one : lane.running) {
      left += one.sentence.cost.WorkLeft(one.rounds - one.left);
      end = std::max(end, one.sentence.deadline);
    }
    admission_.Progress(&lane, left, end);
  }

  void Round(Lane& lane) {
    const int64_t rows = lane.load.rows;
    double loads = 0;
    for (const Running& one : lane.running) {
      loads += loads_[one.sentence.request] *
               static_cast<double>(one.sentence.cost.rows);
    }
    const double seconds =
        std::exchange(lane.encoding, 0) + 0.004 + 0.001 * loads;
    admission_.times().ObserveRound(rows, scenario_.measured * seconds);
    now_ += seconds;
    lane.load.Step(scenario_.limits);
    std::erase_if(lane.running, [&](Running& one) {
      if (--one.left > 0 || one.sentence.deadline < At(now_)) return false;
      lane.load.Remove(one.sentence);
      admission_.Left(one.sentence);
      // The cost of its rows relative to the average row of the batch.
      admission_.callers().Observe(
          one.sentence.caller, one.sentence.cost.source_tokens, one.rounds,
          loads_[one.sentence.request] * static_cast<double>(rows) / loads);
      Outcome& outcome = outcomes_[one.sentence.caller];
      ++outcome.in_time;
      outcome.took.push_back(
          duration<double>(At(now_) - one.sentence.arrival).count());
      outcome.tokens += static_cast<double>(one.sentence.cost.tokens());
      if (one.sentence.promised) admission_.Kept();
      return true;
    });
  }

  const Scenario scenario_;
  Admission admission_;
  std::vector<Lane> lanes_;
  std::multimap<SteadyTime, WaitingSentence> waiting_;
  std::map<uint64_t, double> loads_;  // expert load by request
  std::map<std::string, Outcome> outcomes_;
  double now_ = 0, next_ = 0;  // seconds
  uint64_t count_ = 0;
};

Outcome Sum(const std::map<std::string, Outcome>& outcomes) {
  Outcome sum;
  for (const auto& [caller, one] : outcomes) {
    sum.in_time += one.in_time;
    sum.late += one.late;
    sum.refused += one.refused;
    sum.tokens += one.tokens;
  }
  return sum;
}

// Sentences of 20 tokens and one row that a full batch completes per second.
constexpr double kCapacity = 32 / 0.036 / 20;

int64_t Length(uint64_t i) {
  return 1 + static_cast<int64_t>(RandomBelow(2, i, 39));
}

struct Mix {
  const char* name;
  std::function<Arrival(uint64_t)> arrival;
};

void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.name; }

class GoodputTest : public ::testing::TestWithParam<Mix> {
 protected:
  static Outcome RunAt(
      double load,
      std::function<double(uint64_t)> ratio = [](uint64_t) { return 1.0; }) {
    return Sum(Simulation({.arrival = GetParam().arrival,
                           .rate = load * kCapacity,
                           .ratio = std::move(ratio)})
                   .Run());
  }
};

TEST_P(GoodputTest, StaysFlatUnderOverload) {
  double most = 0;
  for (const double load : {0.5, 0.8, 1.0, 1.5, 2.0, 5.0}) {
    const Outcome outcome = RunAt(load);
    SCOPED_TRACE(load);
    EXPECT_GE(outcome.tokens, 0.9 * most);
    EXPECT_LE(outcome.late, 0.01 * static_cast<double>(outcome.in_time));
    most = std::max(most, outcome.tokens);
    if (load == 0.5) {
      EXPECT_EQ(outcome.refused, 0);
      EXPECT_EQ(outcome.late, 0);
    }
  }
}

// If sentences take half to twice the estimated time, goodput holds and few are
// late.
TEST_P(GoodputTest, HoldsWhenSentencesTakeTwiceOrHalfAsLong) {
  const auto ratio = [](uint64_t i) {
    return std::exp2(2 * RandomUniform(5, i) - 1);
  };
  const Outcome full = RunAt(1.0, ratio), over = RunAt(5.0, ratio);
  EXPECT_GE(over.tokens, 0.9 * full.tokens);
  EXPECT_LE(over.late, 0.05 * static_cast<double>(over.in_time));
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, GoodputTest,
    ::testing::Values(
        Mix{"FewFlows",
            [](uint64_t i) {
              return Arrival{.caller = std::string(1, 'a' + i % 5),
                             .flow = i % 5,
                             .source_tokens = Length(i)};
            }},
        Mix{"ManyFlows",
            [](uint64_t i) {
              return Arrival{.caller = std::string(1, 'a' + i % 5),
                             .flow = i,
                             .source_tokens = Length(i)};
            }},
        Mix{"ManyCallers",
            [](uint64_t i) {
              return Arrival{.caller = std::to_string(i % 300),
                             .flow = i,
                             .source_tokens = Length(i)};
            }},
        Mix{"OneCaller",
            [](uint64_t i) {
              return Arrival{.flow = i, .source_tokens = Length(i)};
            }},
        Mix{"Beams",
            [](uint64_t i) {
              return Arrival{
                  .caller = std::string(1, 'a' + i % 5),
                  .flow = i,
                  .source_tokens = 2 + Length(i) / 3,
                  .rows = 1 + static_cast<int64_t>(RandomBelow(3, i, 4))};
            }},
        Mix{"Deadlines",
            [](uint64_t i) {
              return Arrival{.caller = std::string(1, 'a' + i % 5),
                             .flow = i,
                             .source_tokens = Length(i),
                             .time_left = i % 3 == 0 ? 10.0 : 2.0};
            }}),
    [](const auto& info) { return info.param.name; });

// Estimates are corrected if the measurements miss part of the time.
TEST(GoodputCorrectionTest, EstimatesThatAreTooLowAreCorrected) {
  const auto run = [](double load) {
    return Sum(Simulation({.arrival =
                               [](uint64_t i) {
                                 return Arrival{.flow = i,
                                                .source_tokens = Length(i)};
                               },
                           .rate = load * kCapacity,
                           .measured = 0.6})
                   .Run());
  };
  const Outcome full = run(1.0), over = run(5.0);
  EXPECT_GE(over.tokens, 0.9 * full.tokens);
  EXPECT_LE(over.late, 0.05 * static_cast<double>(over.in_time));
}

// Models on one thread take turns: at low load a sentence takes as many times
// the time of its rounds as there are of them.
TEST(GoodputLanesTest, SentencesWaitForTheTurnsOfOtherModels) {
  for (const size_t lanes : {4, 8}) {
    for (const double load : {0.05, 0.1, 0.2}) {
      SCOPED_TRACE(absl::StrCat(lanes, " lanes, load ", load));
      const Outcome outcome =
          Sum(Simulation({.arrival =
                              [](uint64_t i) {
                                return Arrival{
                                    .caller = std::string(1, 'a' + i % 5),
                                    .flow = i,
                                    .source_tokens = Length(i),
                                    .time_left = 0.5};
                              },
                          .rate = load * kCapacity,
                          .lanes = lanes})
                  .Run());
      EXPECT_LE(outcome.late, 0.02 * static_cast<double>(outcome.in_time));
      EXPECT_LE(outcome.refused, 0.15 * static_cast<double>(outcome.in_time));
    }
  }
}

// One caller sends ten times the capacity. Four others send a tenth of it each,
// which is less than their share, and are served.
TEST(GoodputSharesTest, AGreedyCallerTakesNothingFromModestOnes) {
  auto outcomes =
      Simulation({.arrival =
                      [](uint64_t i) {
                        const uint64_t who = RandomBelow(7, i, 104);
                        return Arrival{
                            .caller = who < 4 ? std::to_string(who) : "greedy",
                            .flow = i};
                      },
                  .rate = 10.4 * kCapacity})
          .Run();
  for (const auto& [caller, outcome] : outcomes) {
    EXPECT_LE(outcome.late, 0.01 * static_cast<double>(outcome.in_time));
    if (caller == "greedy") continue;
    EXPECT_LE(outcome.refused, 0.05 * static_cast<double>(outcome.in_time))
        << caller;
  }
  // The greedy caller gets the remaining capacity.
  EXPECT_GE(static_cast<double>(Sum(outcomes).in_time),
            0.9 * kCapacity * kSeconds);
}

// Expects four callers that send a tenth of the capacity each to be served
// beside a caller that sends as many requests as they together, each like
// `attack`.
void ExpectModestOnesAreServed(const Arrival& attack, double ratio) {
  const auto attacks = [](uint64_t i) { return RandomBelow(7, i, 2) == 0; };
  auto outcomes =
      Simulation(
          {.arrival =
               [&](uint64_t i) {
                 if (attacks(i)) return attack;
                 return Arrival{.caller = std::to_string(RandomBelow(8, i, 4)),
                                .flow = i,
                                .time_left = attack.time_left};
               },
           .rate = 0.8 * kCapacity,
           .ratio = [&](uint64_t i) { return attacks(i) ? ratio : 1.0; }})
          .Run();
  for (const auto& [caller, outcome] : outcomes) {
    SCOPED_TRACE(caller);
    if (caller == attack.caller) continue;
    EXPECT_LE(outcome.late, 0.01 * static_cast<double>(outcome.in_time));
    EXPECT_LE(outcome.refused, 0.05 * static_cast<double>(outcome.in_time));
  }
}

// The attacker's sentences have 2 tokens and 40 rounds each.
TEST(GoodputSharesTest, TranslationsThatDoNotEndAreTheirCallersMatter) {
  ExpectModestOnesAreServed(
      {.caller = "endless", .source_tokens = 2, .max_rounds = 40},
      /*ratio=*/20);
}

// Each row of the attacker takes the time of four.
TEST(GoodputSharesTest, RowsForOneExpertAreTheirCallersMatter) {
  ExpectModestOnesAreServed({.caller = "hot", .time_left = 8, .load = 4},
                            /*ratio=*/1);
}

// Expects a caller that sends a tenth of all requests, with long deadlines, to
// be done within `seconds` at the 99th percentile beside a caller that sends
// the rest.
void ExpectAModestOneJoinsAtOnce(const Arrival& modest, const Arrival& greedy,
                                 Scenario scenario, double seconds) {
  scenario.arrival = [&](uint64_t i) {
    Arrival arrival = i % 10 == 0 ? modest : greedy;
    arrival.caller = i % 10 == 0 ? "modest" : "greedy";
    arrival.flow = i;
    return arrival;
  };
  auto outcomes = Simulation(std::move(scenario)).Run();
  Outcome& outcome = outcomes["modest"];
  EXPECT_EQ(outcome.refused, 0);
  EXPECT_EQ(outcome.late, 0);
  std::sort(outcome.took.begin(), outcome.took.end());
  EXPECT_LT(outcome.took[outcome.took.size() * 99 / 100], seconds);
  EXPECT_GT(outcomes["greedy"].in_time, 100);
}

// A modest caller does not wait for other sentences to end, even if those are
// due sooner and take longer than estimated.
TEST(GoodputSharesTest, AModestCallerWaitsForNobodysEnd) {
  for (const double time_left : {1.0, 2.0, 8.0}) {
    SCOPED_TRACE(time_left);
    ExpectAModestOneJoinsAtOnce(
        {.time_left = 10},
        {.source_tokens = 2, .time_left = time_left, .max_rounds = 60},
        {.arrival = {},
         .rate = kCapacity,
         .ratio = [](uint64_t i) { return i % 10 == 0 ? 1 : 30; },
         .measured = 0.7},
        1.2 * 20 * 0.036);  // rounds of a full batch
  }
}

// A modest caller does not wait for a request that just fits its deadline, with
// sentences that each exceed the encoding limit of a step.
TEST(GoodputSharesTest, AModestCallerWaitsForNobodysLongRequest) {
  for (const double time_left : {2.0, 4.0, 8.0}) {
    SCOPED_TRACE(time_left);
    ExpectAModestOneJoinsAtOnce(
        {.source_tokens = 10, .time_left = 10},
        {.sentences = 64, .source_tokens = 72, .time_left = time_left},
        {.arrival = {},
         .rate = 50,
         .measured = 0.7,
         .limits = {.max_rows = 16, .max_encode_tokens = 64},
         .encode_seconds = 0.0002},
        1.2 * 10 * 0.0344);  // rounds of a full batch, each with encoding
  }
}

// Shares are in time, not in sentences: costly sentences get fewer answers.
TEST(GoodputSharesTest, WhoCostsMoreGetsFewer) {
  for (const bool longer : {true, false}) {
    SCOPED_TRACE(longer);
    auto outcomes =
        Simulation(
            {.arrival =
                 [&](uint64_t i) {
                   const bool dear = i % 2 == 0;
                   return Arrival{.caller = dear ? "dear" : "cheap",
                                  .flow = i,
                                  .time_left = 8,
                                  .load = dear && !longer ? 4.0 : 1.0};
                 },
             .rate = 2 * kCapacity,
             .ratio =
                 [&](uint64_t i) { return i % 2 == 0 && longer ? 2.0 : 1.0; }})
            .Run();
    const Outcome cheap = outcomes["cheap"], dear = outcomes["dear"];
    EXPECT_GE(static_cast<double>(cheap.in_time),
              1.5 * static_cast<double>(dear.in_time));
    EXPECT_GT(dear.in_time, cheap.in_time / 4);
    EXPECT_LE(cheap.late, 0.01 * static_cast<double>(cheap.in_time));
  }
}

// Callers that ask for more than a share get equal shares.
TEST(GoodputSharesTest, GreedyCallersShareEvenly) {
  auto outcomes =
      Simulation({.arrival =
                      [](uint64_t i) {
                        const uint64_t who = RandomBelow(7, i, 10);
                        return Arrival{.caller = who < 1   ? "small"
                                                 : who < 3 ? "middle"
                                                           : "large",
                                       .flow = i};
                      },
                  .rate = 10 * kCapacity})
          .Run();
  for (const auto& [caller, outcome] : outcomes) {
    EXPECT_GE(static_cast<double>(outcome.in_time),
              0.8 * kCapacity * kSeconds / 3)
        << caller;
  }
}

}  // namespace
}  // namespace gshard
