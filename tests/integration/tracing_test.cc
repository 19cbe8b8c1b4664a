// The spans that coordinator, routers and workers send to a collector.

#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/services/trace/fake_collector.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kCaller[] = "b7ad6b7169203331";
constexpr char kRun[] = "gshard.v1.ExpertWorkerService/Run";

using Spans = std::vector<CollectedSpan>;

Spans Where(const Spans& spans, const std::string& service,
            const std::string& name, SpanKind kind) {
  Spans found;
  for (const CollectedSpan& span : spans) {
    if (span.service == service && span.name == name && span.kind == kind) {
      found.push_back(span);
    }
  }
  return found;
}

std::set<std::string> Ids(const Spans& spans) {
  std::set<std::string> ids;
  for (const CollectedSpan& span : spans) ids.insert(span.span_id);
  return ids;
}

// Expects each call to a worker to be a child of one of `parents` and to have a
// worker's span.
void ExpectCalls(const Spans& spans, const std::set<std::string>& parents) {
  const Spans calls = Where(spans, "gshard-router", kRun, SpanKind::kClient);
  EXPECT_FALSE(calls.empty());
  std::map<std::string, std::string> traces;
  for (const CollectedSpan& call : calls) {
    EXPECT_THAT(parents, Contains(call.parent_id));
    EXPECT_THAT(call.attribute("gshard.worker"), HasSubstr("worker-"));
    EXPECT_EQ(call.attribute("rpc.grpc.status_code"), "0");
    traces[call.span_id] = call.trace_id;
  }
  const Spans runs =
      Where(spans, "gshard-expert-worker", kRun, SpanKind::kServer);
  EXPECT_EQ(runs.size(), calls.size());
  std::set<std::string> answered;
  for (const CollectedSpan& run : runs) {
    EXPECT_EQ(traces[run.parent_id], run.trace_id);
    EXPECT_NE(run.attribute("gshard.rows"), "");
    answered.insert(run.parent_id);
  }
  EXPECT_EQ(answered.size(), calls.size());
}

class TracingTest : public ::testing::Test {
 protected:
  // Trains once for all tests, with every span recorded.
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    TrainingJob job = NamesJob(directory_->path());
    job.steps = 2;
    FakeCollector collector;
    {
      // The endpoint comes from OpenTelemetry's environment variable instead of
      // a flag.
      const std::string endpoint = collector.endpoint() + "/";
      ::setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.c_str(), 1);
      Cluster cluster(1, 2, ReduceWay::kCoordinator, std::nullopt, Base("", 1));
      ::unsetenv("OTEL_EXPORTER_OTLP_ENDPOINT");
      cluster.WaitForMembers();
      ASSERT_OK(cluster.Train(job));
      coordinator_metrics_ =
          cluster.coordinator().Metrics(MetricsFormat::kOpenMetrics);
    }
    trained_ = new Spans(collector.Spans());
  }
  static void TearDownTestSuite() {
    delete directory_;
    delete trained_;
  }

  static ProcessOptions Base(const std::string& endpoint, double ratio) {
    ProcessOptions base;
    base.trace = {.otlp_endpoint = endpoint, .sample_ratio = ratio};
    return base;
  }

  static TemporaryDirectory* directory_;
  static Spans* trained_;
  static std::string coordinator_metrics_;
};

TemporaryDirectory* TracingTest::directory_ = nullptr;
Spans* TracingTest::trained_ = nullptr;
std::string TracingTest::coordinator_metrics_;

TEST_F(TracingTest, AStepIsOneTraceAcrossAllProcesses) {
  const Spans steps =
      Where(*trained_, "gshard-coordinator", "step", SpanKind::kInternal);
  ASSERT_EQ(steps.size(), 2u);
  for (const CollectedSpan& step : steps) {
    EXPECT_EQ(step.parent_id, "");
    Spans of_step;
    std::copy_if(
        trained_->begin(), trained_->end(), std::back_inserter(of_step),
        [&](const CollectedSpan& s) { return s.trace_id == step.trace_id; });
    const Spans asked = Where(of_step, "gshard-coordinator",
                              "assign_microbatch", SpanKind::kClient);
    EXPECT_EQ(asked.size(), 5u);
    EXPECT_THAT(asked, Each(Field(&Span::parent_id, step.span_id)));
    const Spans done =
        Where(of_step, "gshard-router", "assign_microbatch", SpanKind::kServer);
    EXPECT_EQ(done.size(), 5u);
    for (const CollectedSpan& one : done) {
      EXPECT_THAT(Ids(asked), Contains(one.parent_id));
    }
    EXPECT_EQ(
        Where(of_step, "gshard-expert-worker", "commit_step", SpanKind::kServer)
            .size(),
        2u);
    ExpectCalls(of_step, Ids(done));
  }
}

// A pattern for a bucket of `metric`, in a series with `label` if given, whose
// exemplar names the trace.
std::string ExemplarOf(const std::string& metric, const std::string& trace,
                       const std::string& label = "") {
  return absl::StrCat("\n", metric, "_bucket\\{[^}]*", label,
                      "[^}]*\\} [0-9]+ # \\{trace_id=\"", trace, "\"\\} ");
}

TEST_F(TracingTest, TheLengthOfAStepHasItsTrace) {
  const Spans steps =
      Where(*trained_, "gshard-coordinator", "step", SpanKind::kInternal);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_THAT(
      coordinator_metrics_,
      AnyOf(ContainsRegex(ExemplarOf("gshard_train_step_duration_seconds",
                                     steps[0].trace_id)),
            ContainsRegex(ExemplarOf("gshard_train_step_duration_seconds",
                                     steps[1].trace_id))));
}

TEST_F(TracingTest, ATranslationSaysWhereItsTimeWent) {
  FakeCollector collector;
  std::string router_metrics, worker_metrics;
  {
    Cluster cluster(1, 2, ReduceWay::kCoordinator, std::nullopt,
                    Base(collector.endpoint(), 0));
    ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                         LatestCheckpoint(directory_->path()));
    ASSERT_OK(cluster.Load("names", checkpoint));
    for (const std::string& parent :
         {absl::StrCat("00-", kTrace, "-", kCaller, "-01"),
          absl::StrCat("00-", std::string(32, '7'), "-", kCaller, "-00"),
          std::string()}) {
      v1::TranslateRequest request;
      request.set_model("names");
      for (const char* text : {"Deutschland", "Euro"}) {
        v1::Sentence* const sentence = request.add_sentences();
        sentence->set_text(text);
        sentence->set_source_language("de");
      }
      v1::TranslateResponse response;
      grpc::ClientContext context;
      SetDeadline(context);
      if (!parent.empty()) context.AddMetadata("traceparent", parent);
      ASSERT_OK(FromGrpcStatus(
          cluster.Translation()->Translate(&context, request, &response)));
    }
    router_metrics = cluster.router(0).Metrics(MetricsFormat::kOpenMetrics);
    worker_metrics = cluster.worker(0).Metrics(MetricsFormat::kOpenMetrics);
  }
  // Exemplars name the trace of the only sampled translation of three.
  EXPECT_THAT(
      router_metrics,
      ContainsRegex(ExemplarOf("gshard_translate_duration_seconds", kTrace)));
  for (const char* stage : {"tokenize", "encode", "decode"}) {
    EXPECT_THAT(router_metrics,
                ContainsRegex(ExemplarOf("gshard_stage_duration_seconds",
                                         kTrace, stage)));
  }
  for (const char* stage : {"queue", "run"}) {
    EXPECT_THAT(worker_metrics,
                ContainsRegex(ExemplarOf("gshard_expert_call_duration_seconds",
                                         kTrace, stage)));
  }
  EXPECT_THAT(router_metrics, Not(HasSubstr("77777777")));
  const Spans spans = collector.Spans();
  EXPECT_THAT(spans, Each(Field(&Span::trace_id, kTrace)));
  const Spans served =
      Where(spans, "gshard-router", "gshard.v1.TranslationService/Translate",
            SpanKind::kServer);
  ASSERT_EQ(served.size(), 1u);
  EXPECT_EQ(served[0].parent_id, kCaller);
  std::set<std::string> parents;
  for (const char* name : {"prepare", "queue", "encode", "decode"}) {
    const Spans phases =
        Where(spans, "gshard-router", name, SpanKind::kInternal);
    ASSERT_FALSE(phases.empty()) << name;
    EXPECT_THAT(phases, Each(Field(&Span::parent_id, served[0].span_id)));
    if (name == std::string("encode") || name == std::string("decode")) {
      parents.merge(Ids(phases));
    }
    if (name == std::string("prepare")) {
      ASSERT_EQ(phases.size(), 1u);
      EXPECT_EQ(phases[0].attribute("gshard.sentences"), "2");
      EXPECT_GT(std::stoi(phases[0].attribute("gshard.bytes")), 20);
      EXPECT_NE(phases[0].attribute("gshard.work_micros"), "");
      EXPECT_LE(phases[0].start_nanos, phases[0].end_nanos);
    }
    if (name != std::string("decode")) continue;
    ASSERT_EQ(phases.size(), 1u);
    EXPECT_EQ(phases[0].attribute("gshard.sentences"), "2");
    EXPECT_GT(std::stoi(phases[0].attribute("gshard.steps")), 0);
    EXPECT_GT(std::stoi(phases[0].attribute("gshard.tokens")), 0);
  }
  ExpectCalls(spans, parents);
  for (const FakeHttpRequest& request : collector.Requests()) {
    EXPECT_THAT(request.body, Not(HasSubstr("Deutschland")));
  }
}

TEST_F(TracingTest, AnEndpointThatIsNoneIsAWrongFlag) {
  for (const char* endpoint : {"localhost:4318", "ftp://host", "http://",
                               "http://user:secret@host:4318"}) {
    RouterOptions options;
    options.process = Base(endpoint, 1);
    options.process.listen = absl::StrCat("unix:", directory_->path(), "/r");
    options.process.coordinator = "localhost:7000";
    RouterProcess router(options);
    EXPECT_THAT(router.Start(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("otlp_endpoint: expected http"),
                               Not(HasSubstr("secret")))));
  }
}

}  // namespace
}  // namespace gshard
