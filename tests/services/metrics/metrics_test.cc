#include "services/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, SaysWhatWasBuiltAndHowTheProcessIs) {
  const Metrics metrics("router", "1.2.0");
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("# TYPE gshard_build_info gauge"));
  EXPECT_THAT(text,
              HasSubstr("gshard_build_info{role=\"router\",version=\"1.2.0\"} "
                        "1"));
  for (const char* name :
       {"process_cpu_seconds_total ", "process_resident_memory_bytes ",
        "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("\n", name)));
  }
}

TEST(MetricsTest, MetricsAreZeroFromTheStart) {
  Metrics metrics("worker", "1");
  metrics.AddCounter("gshard_steps_total", "Steps.");
  metrics.AddGauge("gshard_queued_tokens", "Tokens.");
  metrics.AddHistogram("gshard_call_duration_seconds", "Calls.");
  metrics.AddCounterFamily("gshard_calls_total", "Calls.", {"code"})
      .With({"OK"});
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("\ngshard_steps_total 0\n"));
  EXPECT_THAT(text, HasSubstr("\ngshard_queued_tokens 0\n"));
  EXPECT_THAT(text, HasSubstr("\ngshard_call_duration_seconds_count 0\n"));
  EXPECT_THAT(text, HasSubstr("\ngshard_calls_total{code=\"OK\"} 0\n"));
}

TEST(MetricsTest, CountsSetsAndObserves) {
  Metrics metrics("worker", "1");
  const Counter counter = metrics.AddCounter("gshard_steps_total", "Steps.");
  counter.Increment();
  counter.Increment(2.5);
  EXPECT_EQ(counter.Value(), 3.5);

  const Gauge gauge = metrics.AddGauge("gshard_loss", "Loss.");
  gauge.Set(4);
  gauge.Add(-1);
  EXPECT_EQ(gauge.Value(), 3);

  const Histogram histogram =
      metrics.AddHistogram("gshard_wait_seconds", "Waits.", {0.1, 1});
  histogram.Observe(0.1);  // bounds are inclusive
  histogram.Observe(0.5);
  histogram.Observe(7);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("gshard_wait_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("gshard_wait_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("gshard_wait_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("gshard_wait_seconds_sum 7.6"));
}

TEST(MetricsTest, LabelsTellSeriesApart) {
  Metrics metrics("router", "1");
  const CounterFamily family = metrics.AddCounterFamily(
      "gshard_requests_total", "Requests.", {"model", "code"});
  family.With({"m", "OK"}).Increment();
  family.With({"m", "OK"}).Increment();
  family.With({"m", "NOT_FOUND"}).Increment();
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text,
              HasSubstr("gshard_requests_total{code=\"OK\",model=\"m\"} 2"));
  EXPECT_THAT(
      text,
      HasSubstr("gshard_requests_total{code=\"NOT_FOUND\",model=\"m\"} 1"));
}

TEST(MetricsTest, LabelValuesAreQuoted) {
  Metrics metrics("router", "1");
  metrics.AddGaugeFamily("gshard_state", "State.", {"name"})
      .With({"a\"b\\c\nd"})
      .Set(1);
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr(R"(gshard_state{name="a\"b\\c\nd"} 1)"));
}

// The number of series is limited, so no label can exhaust memory.
TEST(MetricsTest, SeriesAreBounded) {
  Metrics metrics("router", "1");
  const CounterFamily family =
      metrics.AddCounterFamily("gshard_things_total", "Things.", {"thing"});
  for (size_t i = 0; i < kMaxSeries + 10; ++i) {
    family.With({absl::StrCat("v", i)}).Increment();
  }
  EXPECT_EQ(family.With({"other"}).Value(), 10);
  EXPECT_EQ(family.With({"v0"}).Value(), 1);
  EXPECT_THAT(metrics.Serialize(),
              Not(HasSubstr(absl::StrCat("v", kMaxSeries + 5))));
}

TEST(MetricsTest, ASeriesThatIsRemovedLeavesItsRoom) {
  Metrics metrics("router", "1");
  const CounterFamily family =
      metrics.AddCounterFamily("gshard_calls_total", "Calls.", {"worker"}, 2);
  family.With({"a"}).Increment();
  family.With({"b"}).Increment();
  family.Remove({"a"});
  family.Remove({"absent"});
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("worker=\"a\"")));
  family.With({"c"}).Increment();
  family.Remove({"b"});
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, Not(HasSubstr("other")));
  EXPECT_THAT(text, HasSubstr("gshard_calls_total{worker=\"c\"} 1"));
  // It begins anew.
  EXPECT_EQ(family.With({"a"}).Value(), 0);
  CounterFamily().Remove({"a"});
}

TEST(MetricsTest, OnlyTheFirstLabelRunsOutOfRoom) {
  Metrics metrics("router", "1");
  const CounterFamily family = metrics.AddCounterFamily(
      "gshard_requests_total", "Requests.", {"model", "code"}, 2);
  for (const char* model : {"a", "b", "c"}) {
    family.With({model, "OK"}).Increment();
    family.With({model, "INTERNAL"});
  }
  EXPECT_EQ(family.With({"a", "OK"}).Value(), 1);
  EXPECT_EQ(family.With({"other", "OK"}).Value(), 2);
  EXPECT_EQ(family.With({"other", "INTERNAL"}).Value(), 0);
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("code=\"other\"")));
}

TEST(MetricsTest, AFamilyMayHaveItsOwnBoundAndTellsOfItOnce) {
  Metrics metrics("router", "1");
  const CounterFamily many = metrics.AddCounterFamily(
      "gshard_many_total", "Things.", {"thing"}, kMaxSeries + 10);
  const CounterFamily few =
      metrics.AddCounterFamily("gshard_few_total", "Things.", {"thing"}, 2);
  ::testing::internal::CaptureStderr();
  for (size_t i = 0; i < kMaxSeries + 10; ++i) {
    many.With({absl::StrCat("v", i)}).Increment();
  }
  EXPECT_EQ(many.With({absl::StrCat("v", kMaxSeries + 9)}).Value(), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) few.With({absl::StrCat("v", i)}).Increment();
  EXPECT_EQ(few.With({"other"}).Value(), 8);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("\"metric\":\"gshard_few_total\",\"most\":2"));
  EXPECT_EQ(log.find('\n'), log.size() - 1) << log;
}

TEST(MetricsTest, CallbacksAreReadAtEachScrape) {
  Metrics metrics("router", "1");
  double value = 1;
  metrics.AddCallbackGauge("gshard_age_seconds", "Age.",
                           [&value] { return value; });
  EXPECT_THAT(metrics.Serialize(), HasSubstr("\ngshard_age_seconds 1\n"));
  value = 2;
  EXPECT_THAT(metrics.Serialize(), HasSubstr("\ngshard_age_seconds 2\n"));
}

TEST(MetricsTest, DefaultHandlesIgnoreEverything) {
  Counter().Increment();
  Gauge().Set(1);
  Histogram().Observe(1);
  CounterFamily().With({"x"}).Increment();
  EXPECT_EQ(Counter().Value(), 0);
  EXPECT_EQ(Gauge().Value(), 0);
}

TEST(MetricsTest, ThreadsMayCountAndScrapeTogether) {
  Metrics metrics("router", "1");
  const CounterFamily family =
      metrics.AddCounterFamily("gshard_calls_total", "Calls.", {"code"});
  const Histogram histogram =
      metrics.AddHistogram("gshard_call_seconds", "Calls.");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        family.With({absl::StrCat(i % 3)}).Increment();
        histogram.Observe(0.001 * i);
        if (i % 100 == 0) metrics.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(family.With({"0"}).Value() + family.With({"1"}).Value() +
                family.With({"2"}).Value(),
            2000);
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("gshard_call_seconds_count 2000\n"));
}

TEST(MetricsDeathTest, NamesFollowTheRules) {
  Metrics metrics("router", "1");
  EXPECT_DEATH(metrics.AddCounter("gshard_steps", ""), "CHECK");
  EXPECT_DEATH(metrics.AddGauge("gshard_loss_total", ""), "CHECK");
  EXPECT_DEATH(metrics.AddGauge("loss", ""), "CHECK");
  EXPECT_DEATH(metrics.AddGauge("gshard_Loss", ""), "CHECK");
  EXPECT_DEATH(metrics.AddCounterFamily("gshard_a_total", "", {"a b"}),
               "CHECK");
  metrics.AddGauge("gshard_loss", "");
  EXPECT_DEATH(metrics.AddGauge("gshard_loss", ""), "CHECK");
}

}  // namespace
}  // namespace gshard
