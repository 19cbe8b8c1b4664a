#include "services/rpc/wire/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/services/trace/fake_collector.h"

namespace gshard {
namespace {

constexpr char kSampled[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr char kUnsampled[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

class TracerTest : public ::testing::Test {
 protected:
  void Export(double ratio) {
    exporter_ = std::make_shared<SpanExporter>(
        SpanExporterOptions{.endpoint = collector_.endpoint()});
    tracer_.ExportTo(exporter_, ratio);
  }
  // Shuts the exporter down and returns all ended spans.
  std::vector<CollectedSpan> Spans() {
    exporter_->Shutdown();
    return collector_.Spans();
  }

  FakeCollector collector_;
  std::shared_ptr<SpanExporter> exporter_;
  const Tracer tracer_ = Tracer::Create();
};

TEST_F(TracerTest, SpansHaveTheirParents) {
  Export(0);
  OpenSpan served = tracer_.Serve(kSampled, "v=1", "");
  served.SetMethod("/gshard.v1.TranslationService/Translate");
  EXPECT_EQ(served.context().state, "v=1");
  OpenSpan child = tracer_.Child(served.context(), "queue");
  child.Set("gshard.sentences", 3);
  OpenSpan call = tracer_.Child(child.context(), "", SpanKind::kClient);
  call.End(absl::NotFoundError("canary"));
  child.End();
  served.End(absl::NotFoundError("canary"));
  served.End();  // has ended already
  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 3u);
  for (const CollectedSpan& span : spans) {
    EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_LE(span.start_nanos, span.end_nanos);
    EXPECT_GT(span.start_nanos, 1'600'000'000'000'000'000);
  }
  EXPECT_EQ(spans[2].parent_id, "b7ad6b7169203331");
  EXPECT_EQ(spans[2].span_id, served.context().span_id);
  EXPECT_EQ(spans[2].kind, SpanKind::kServer);
  EXPECT_EQ(spans[2].name, "gshard.v1.TranslationService/Translate");
  EXPECT_EQ(spans[2].attribute("rpc.system"), "grpc");
  EXPECT_EQ(spans[2].attribute("rpc.service"), "gshard.v1.TranslationService");
  EXPECT_EQ(spans[2].attribute("rpc.method"), "Translate");
  EXPECT_EQ(spans[2].attribute("rpc.grpc.status_code"), "5");
  EXPECT_EQ(spans[2].error, "");  // the caller's error
  EXPECT_EQ(spans[1].parent_id, spans[2].span_id);
  EXPECT_EQ(spans[1].kind, SpanKind::kInternal);
  EXPECT_EQ(spans[1].attribute("gshard.sentences"), "3");
  EXPECT_EQ(spans[1].attribute("rpc.grpc.status_code"), "");
  EXPECT_EQ(spans[0].parent_id, spans[1].span_id);
  EXPECT_EQ(spans[0].kind, SpanKind::kClient);
  EXPECT_EQ(spans[0].error, "NOT_FOUND");
  for (const FakeHttpRequest& request : collector_.Requests()) {
    EXPECT_EQ(request.body.find("canary"), std::string::npos);
  }
}

TEST_F(TracerTest, TheBitOfTheCallerDecides) {
  Export(1);
  OpenSpan served = tracer_.Serve(kUnsampled, "", "a");
  OpenSpan child = tracer_.Child(served.context(), "b");
  EXPECT_FALSE(served.recorded());
  EXPECT_EQ(child.context(), served.context());
  EXPECT_NE(served.context().span_id, "b7ad6b7169203331");
  EXPECT_EQ(served.context().flags, 0);
  served.End();
  EXPECT_TRUE(Spans().empty());
}

TEST_F(TracerTest, TheRatioDecidesWhatBeginsHere) {
  Export(1);
  OpenSpan served = tracer_.Serve("", "", "a");
  EXPECT_EQ(served.context().flags, 1);
  served.End();
  OpenSpan root = tracer_.Root(tracer_.Sampled(TraceOf("job/1 7")), "step");
  root.End();
  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].parent_id, "");
  EXPECT_EQ(spans[1].parent_id, "");
  EXPECT_EQ(spans[1].trace_id, TraceOf("job/1 7").trace_id);
}

TEST_F(TracerTest, NothingIsRecordedWithoutAnExporter) {
  for (const Tracer& tracer : {tracer_, Tracer()}) {
    OpenSpan served = tracer.Serve(kSampled, "", "a");
    EXPECT_FALSE(served.recorded());
    EXPECT_EQ(served.context().flags, 1);
    EXPECT_EQ(tracer.Child(served.context(), "b").context(), served.context());
    EXPECT_EQ(tracer.Serve("", "", "a").context().flags, 0);
  }
}

TEST_F(TracerTest, WhatNobodyEndsWasCancelled) {
  Export(1);
  {
    OpenSpan span = tracer_.Serve(kSampled, "", "a");
    const OpenSpan moved = std::move(span);
  }
  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].attribute("rpc.grpc.status_code"), "1");
}

TEST_F(TracerTest, ASpanMayHaveBegunBefore) {
  Export(1);
  OpenSpan span = tracer_.Serve(kSampled, "", "a");
  span.StartAt(std::chrono::steady_clock::now() - std::chrono::seconds(5));
  span.End();
  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_GE(spans[0].end_nanos - spans[0].start_nanos, 5'000'000'000);
}

}  // namespace
}  // namespace gshard
