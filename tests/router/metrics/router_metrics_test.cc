#include "router/metrics/router_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A router's metrics after a layer whose experts got 3, 0 and 1 choices.
std::string AfterOneLayer(bool per_expert) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry, per_expert);
  metrics.OfLayer("m", "encoder.1", 3)
      .Count({3, 0, 1}, /*overflow_first=*/0,
             /*overflow_second=*/2);
  return registry.Serialize();
}

TEST(RouterMetricsTest, CountsALayer) {
  const std::string text = AfterOneLayer(false);
  EXPECT_THAT(text,
              HasSubstr("gshard_expert_tokens_total{layer=\"encoder.1\"} 4\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "gshard_expert_load_imbalance_ratio{layer=\"encoder.1\"} 2.25\n"));
  EXPECT_THAT(text, Not(HasSubstr("gshard_expert_rows_total")));
}

TEST(RouterMetricsTest, ALayerIsThereBeforeItIsCounted) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry, /*per_expert=*/true);
  metrics.OfLayer("m", "encoder.1", 2);
  for (const char* series : {"tokens_total{layer", "load_imbalance_ratio{layer",
                             "tokens_dropped_total{choice=\"first\",layer",
                             "tokens_dropped_total{choice=\"second\",layer"}) {
    EXPECT_THAT(registry.Serialize(),
                HasSubstr(absl::StrCat("gshard_expert_", series,
                                       "=\"encoder.1\"} 0\n")));
  }
  EXPECT_THAT(registry.Serialize(),
              HasSubstr("gshard_expert_rows_total{expert=\"1\",experts=\"2\","
                        "layer=\"encoder.1\",model=\"m\"} 0\n"));
}

TEST(RouterMetricsTest, RequestsAreCountedByModelFromZero) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry);
  metrics.DeclareModel("m");
  EXPECT_THAT(
      registry.Serialize(),
      AllOf(HasSubstr("gshard_translate_requests_total{code=\"OK\",model="
                      "\"m\"} 0\n"),
            HasSubstr("gshard_translate_duration_seconds_count{model=\"m\"} 0"),
            HasSubstr("gshard_decoded_tokens_total{model=\"m\"} 0\n")));
  metrics.CountCall("m", absl::StatusCode::kOk, 0.5, "");
  metrics.CountStreamRequest("", absl::StatusCode::kNotFound, 0.5, "");
  metrics.CountAdmitted(absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      registry.Serialize(),
      AllOf(HasSubstr("gshard_translate_requests_total{code=\"OK\",model="
                      "\"m\"} 1\n"),
            HasSubstr("gshard_translate_duration_seconds_count{model=\"m\"} 1"),
            HasSubstr("gshard_translate_requests_total{code=\"NOT_FOUND\","
                      "model=\"\"} 1\n"),
            HasSubstr("gshard_admitted_requests_total{code=\"OK\"} 0\n"),
            HasSubstr("gshard_admitted_requests_total{code=\"UNAVAILABLE\"} 1"),
            HasSubstr("gshard_stream_request_duration_seconds_count{model=\"\"}"
                      " 1")));
}

TEST(RouterMetricsTest, RequestsOfAnyNumberOfModelsKeepTheirCodes) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry);
  for (size_t model = 0; model <= kMaxSeries; ++model) {
    metrics.DeclareModel(absl::StrCat("m", model));
  }
  metrics.CountCall(absl::StrCat("m", kMaxSeries), absl::StatusCode::kOk, 0.5,
                    "");
  const std::string text = registry.Serialize();
  EXPECT_THAT(text, HasSubstr("gshard_translate_requests_total{code=\"OK\","
                              "model=\"other\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("code=\"other\"")));
}

TEST(RouterMetricsTest, CountsEachExpertIfToldToTheIdleOnesToo) {
  const std::string text = AfterOneLayer(true);
  for (const char* series :
       {"expert=\"0\",experts=\"3\",layer=\"encoder.1\",model=\"m\"} 3\n",
        "expert=\"1\",experts=\"3\",layer=\"encoder.1\",model=\"m\"} 0\n",
        "expert=\"2\",experts=\"3\",layer=\"encoder.1\",model=\"m\"} 1\n"}) {
    EXPECT_THAT(text,
                HasSubstr(std::string("gshard_expert_rows_total{") + series));
  }
}

TEST(RouterMetricsTest, ExpertsOfModelsAndOfTheirVersionsAreApart) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry, /*per_expert=*/true);
  metrics.OfLayer("m", "encoder.1", 2).Count({3, 4}, 0, 0);
  metrics.OfLayer("m", "encoder.1", 3).Count({5, 6, 7}, 0, 0);
  metrics.OfLayer("n", "encoder.1", 2).Count({8, 9}, 0, 0);
  const std::string first = "gshard_expert_rows_total{expert=\"0\",experts=";
  const std::string text = registry.Serialize();
  for (const char* series : {"\"2\",layer=\"encoder.1\",model=\"m\"} 3\n",
                             "\"3\",layer=\"encoder.1\",model=\"m\"} 5\n",
                             "\"2\",layer=\"encoder.1\",model=\"n\"} 8\n"}) {
    EXPECT_THAT(text, HasSubstr(first + series));
  }
}

TEST(RouterMetricsTest, AllExpertsOfALargeModelHaveTheirOwnSeries) {
  Metrics registry("router", "1");
  const RouterMetrics metrics(registry, /*per_expert=*/true);
  const std::vector<int64_t> rows(2048, 7);
  for (int layer = 0; layer < 36; ++layer) {
    metrics.OfLayer("m", absl::StrCat("encoder.", layer), std::ssize(rows))
        .Count(rows, /*overflow_first=*/0, /*overflow_second=*/0);
  }
  const std::string text = registry.Serialize();
  EXPECT_THAT(
      text,
      HasSubstr("gshard_expert_rows_total{expert=\"2047\","
                "experts=\"2048\",layer=\"encoder.35\",model=\"m\"} 7\n"));
  EXPECT_EQ(text.find("\"other\""), std::string::npos);
}

}  // namespace
}  // namespace gshard
