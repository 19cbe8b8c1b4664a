#include "services/metrics/open_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/metrics/exemplars.h"
#include "services/metrics/metrics.h"

namespace gshard {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kOther[] = "7777651916cd43dd8448eb211c80319c";

std::string Text(const std::vector<MetricFamily>& families) {
  return OpenMetricsText(families, [](const auto&, const auto&) {
    return std::vector<Exemplar>();
  });
}

MetricFamily Gauge(double value) {
  ClientMetric metric;
  metric.gauge.value = value;
  return {"gshard_loss", "Loss.", MetricType::Gauge, {metric}};
}

TEST(OpenMetricsTest, NoMetricsAreATextThatEnds) {
  EXPECT_EQ(Text({}), "# EOF\n");
}

TEST(OpenMetricsTest, NamesAndUnitsFollowTheRules) {
  ClientMetric counter;
  counter.counter.value = 3;
  ClientMetric info;
  info.label = {{"role", "router"}, {"version", "1"}};
  info.gauge.value = 1;
  EXPECT_EQ(
      Text(
          {{"gshard_build_info", "Who.", MetricType::Gauge, {info}},
           {"gshard_cpu_seconds_total", "CPU.", MetricType::Counter, {counter}},
           {"gshard_steps_total", "Steps.", MetricType::Counter, {}},
           {"gshard_held_bytes", "Held.", MetricType::Gauge, {}},
           {"gshard_load_ratio", "Load.", MetricType::Gauge, {}}}),
      R"(# TYPE gshard_build info
# HELP gshard_build Who.
gshard_build_info{role="router",version="1"} 1.0
# TYPE gshard_cpu_seconds counter
# UNIT gshard_cpu_seconds seconds
# HELP gshard_cpu_seconds CPU.
gshard_cpu_seconds_total 3.0
# TYPE gshard_steps counter
# HELP gshard_steps Steps.
# TYPE gshard_held_bytes gauge
# UNIT gshard_held_bytes bytes
# HELP gshard_held_bytes Held.
# TYPE gshard_load_ratio gauge
# UNIT gshard_load_ratio ratio
# HELP gshard_load_ratio Load.
# EOF
)");
}

TEST(OpenMetricsTest, NumbersHaveAPointOrAnExponent) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [value, text] :
       {std::pair{0.0, "0.0"}, std::pair{1.0, "1.0"}, std::pair{-2.5, "-2.5"},
        std::pair{0.0005, "0.0005"}, std::pair{512.0, "512.0"},
        std::pair{1e6, "1e+06"}, std::pair{0.1, "0.1"},
        std::pair{1e-7, "1e-07"}, std::pair{1.0 / 3, "0.3333333333333333"},
        std::pair{kInfinity, "+Inf"}, std::pair{-kInfinity, "-Inf"},
        std::pair{std::numeric_limits<double>::quiet_NaN(), "NaN"}}) {
    EXPECT_THAT(Text({Gauge(value)}),
                HasSubstr(absl::StrCat("\ngshard_loss ", text, "\n")));
  }
}

TEST(OpenMetricsTest, TextIsQuoted) {
  MetricFamily family = Gauge(1);
  family.help = "a\"b\\c\nd";
  family.metric[0].label = {{"name", "e\"f\\g\nh\n# EOF"}};
  EXPECT_EQ(Text({family}),
            R"(# TYPE gshard_loss gauge
# HELP gshard_loss a\"b\\c\nd
gshard_loss{name="e\"f\\g\nh\n# EOF"} 1.0
# EOF
)");
}

TEST(OpenMetricsTest, AHistogramHasAnExemplarInEachBucketThatHasATrace) {
  Metrics metrics("router", "1");
  const Histogram histogram =
      metrics.AddHistogram("gshard_wait_seconds", "Waits.", {0.1, 1});
  histogram.Observe(0.05);
  EXPECT_THAT(metrics.Serialize(MetricsFormat::kOpenMetrics),
              Not(HasSubstr(" # {")));
  histogram.Observe(0.1, kOther);
  histogram.Observe(0.1, kTrace);  // bounds are inclusive
  histogram.Observe(0.5, "");
  histogram.Observe(7, kOther);
  const std::string text = metrics.Serialize(MetricsFormat::kOpenMetrics);
  const std::string time = R"( 1[0-9]{9}\.[0-9]{3})";
  EXPECT_THAT(
      text,
      ::testing::ContainsRegex(absl::StrCat(
          "# TYPE gshard_wait_seconds histogram\n"
          "# UNIT gshard_wait_seconds seconds\n"
          "# HELP gshard_wait_seconds Waits.\n"
          "gshard_wait_seconds_bucket\\{le=\"0.1\"\\} 3 # \\{trace_id=\"",
          kTrace, "\"\\} 0.1", time,
          "\ngshard_wait_seconds_bucket\\{le=\"1.0\"\\} 4\n"
          "gshard_wait_seconds_bucket\\{le=\"\\+Inf\"\\} 5 # \\{trace_id=\"",
          kOther, "\"\\} 7.0", time,
          "\ngshard_wait_seconds_count 5\n"
          "gshard_wait_seconds_sum 7.75\n")));
  EXPECT_THAT(text, EndsWith("\n# EOF\n"));
  // The older text format has no exemplars.
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr(kTrace)));
}

TEST(OpenMetricsTest, ExemplarsAreOfTheirSeries) {
  Metrics metrics("router", "1");
  const HistogramFamily family = metrics.AddHistogramFamily(
      "gshard_stage_seconds", "Stages.", {"stage", "kind"}, {1});
  family.With({"a", "x"}).Observe(0.5, kTrace);
  family.With({"b", "x"}).Observe(0.5);
  const std::string text = metrics.Serialize(MetricsFormat::kOpenMetrics);
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat(
                  R"(bucket{kind="x",stage="a",le="1.0"} 1 # {trace_id=")",
                  kTrace, "\"} 0.5")));
  EXPECT_THAT(text, HasSubstr("bucket{kind=\"x\",stage=\"b\",le=\"1.0\"} 1\n"));
}

TEST(OpenMetricsTest, OneNameIsOneFamily) {
  Metrics metrics("router", "1");
  metrics.AddCounter("gshard_steps_total", "Steps.");
  EXPECT_DEATH(metrics.AddGauge("gshard_steps", "Steps."), "CHECK");
}

TEST(ExemplarsTest, ABucketKeepsTheLast) {
  Exemplars exemplars({1, 2});
  EXPECT_THAT(exemplars.Last(), ElementsAre());
  for (int i = 0; i < 1000; ++i) {
    exemplars.Add(1.5, absl::StrCat(i), absl::FromUnixSeconds(i));
  }
  EXPECT_THAT(exemplars.Last(), ElementsAre(Field(&Exemplar::trace_id, ""),
                                            Field(&Exemplar::trace_id, "999"),
                                            Field(&Exemplar::trace_id, "")));
  EXPECT_EQ(exemplars.Last()[1].time, absl::FromUnixSeconds(999));
  exemplars.Add(std::numeric_limits<double>::quiet_NaN(), kTrace, {});
  exemplars.Add(std::numeric_limits<double>::infinity(), kOther, {});
  EXPECT_EQ(exemplars.Last().size(), 3u);
  EXPECT_EQ(exemplars.Last()[2].trace_id, kOther);
}

TEST(ExemplarsTest, ThreadsMayAddAndReadTogether) {
  Metrics metrics("router", "1");
  const HistogramFamily family =
      metrics.AddHistogramFamily("gshard_call_seconds", "Calls.", {"stage"});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        family.With({absl::StrCat(i % 3)}).Observe(0.001 * i, kTrace);
        if (i % 100 == 0) metrics.Serialize(MetricsFormat::kOpenMetrics);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.Serialize(MetricsFormat::kOpenMetrics),
              HasSubstr("gshard_call_seconds_count{stage=\"0\"} 668\n"));
}

}  // namespace
}  // namespace gshard
