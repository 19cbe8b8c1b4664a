// Features of a served model besides plain translation: phrases, prefixes,
// streams and routing explanations.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "services/base/log.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/decoding/routing_trace.h"
#include "services/model/parameters.h"
#include "services/model/transformer.h"
#include "services/tokenizer/tokenizer.h"
#include "services/train/parameter_source.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = google::protobuf::RepeatedPtrField<v1::TokenRouting>;

class FeaturesTest : public ::testing::Test {
 protected:
  // Trains a short job for all tests and serves it with every expert on both
  // workers. The second of two routers answers debug calls.
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    cluster_ = new Cluster(1, 2);
    cluster_->AddRouter("router-1", nullptr, /*debug_calls=*/true);
    cluster_->WaitForMembers();
    ASSERT_OK(cluster_->Train(NamesJob(directory_->path())));
    const auto path = LatestCheckpoint(directory_->path());
    ASSERT_OK(path);
    *checkpoint_ = *path;
    ASSERT_OK(cluster_->Load("names", *checkpoint_, /*replicas=*/2));
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete directory_;
  }

  static v1::TranslateRequest Request(const std::string& text) {
    v1::TranslateRequest request;
    v1::Sentence* const sentence = request.add_sentences();
    sentence->set_text(text);
    sentence->set_source_language("de");
    request.mutable_options()->set_beam_size(8);
    request.mutable_options()->set_n_best(4);
    return request;
  }

  static absl::StatusOr<v1::TranslateResponse> Translate(
      const v1::TranslateRequest& request) {
    v1::TranslateResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    RETURN_IF_ERROR(FromGrpcStatus(
        cluster_->Translation()->Translate(&context, request, &response)));
    return response;
  }

  static absl::StatusOr<v1::ExplainRoutingResponse> Explain(
      int router, const std::string& text, const std::string& target) {
    v1::ExplainRoutingRequest request;
    request.set_target(target);
    request.mutable_sentence()->set_text(text);
    request.mutable_sentence()->set_source_language("de");
    v1::ExplainRoutingResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    RETURN_IF_ERROR(
        FromGrpcStatus(cluster_->Translation(router)->ExplainRouting(
            &context, request, &response)));
    return response;
  }

  static TemporaryDirectory* directory_;
  static Cluster* cluster_;
  static std::string* const checkpoint_;
};

TemporaryDirectory* FeaturesTest::directory_ = nullptr;
Cluster* FeaturesTest::cluster_ = nullptr;
std::string* const FeaturesTest::checkpoint_ = new std::string;

TEST_F(FeaturesTest, TermsPrefixesAndWhatIsKeptAreInTheText) {
  v1::TranslateRequest request = Request("Inseln von Amerika");
  request.mutable_sentences(0)->set_target_prefix("The");
  v1::TextSpan* const span = request.mutable_sentences(0)->add_keep();
  span->set_begin(11);
  span->set_end(18);
  v1::Term* const term = request.mutable_options()->add_terms();
  term->set_source("Inseln");
  term->set_target("Islands");
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                       Translate(request));
  EXPECT_EQ(response.results(0).phrase_count(), 2);
  ASSERT_GT(response.results(0).hypotheses_size(), 0);
  for (const v1::Hypothesis& hypothesis : response.results(0).hypotheses()) {
    EXPECT_EQ(hypothesis.phrases_met(), 2);
    EXPECT_TRUE(absl::StartsWith(hypothesis.text(), "The"));
    EXPECT_THAT(hypothesis.text(), HasSubstr("Islands"));
    EXPECT_THAT(hypothesis.text(), HasSubstr("Amerika"));
  }
}

TEST_F(FeaturesTest, AStreamAnswersAsCallsDo) {
  const std::vector<std::string> texts = {"Deutschland", "Euro", "",
                                          "St. Pierre und Miquelon"};
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stub = cluster_->Translation();
  const auto stream = stub->TranslateStream(&context);
  for (size_t i = 0; i < 40; ++i) {
    v1::TranslateStreamRequest message;
    message.set_id(i);
    *message.mutable_request() = Request(texts[i % texts.size()]);
    ASSERT_TRUE(stream->Write(message));
  }
  ASSERT_TRUE(stream->WritesDone());
  std::map<uint64_t, v1::TranslateStreamResponse> answers;
  v1::TranslateStreamResponse answer;
  while (stream->Read(&answer)) answers[answer.id()] = answer;
  ASSERT_OK(FromGrpcStatus(stream->Finish()));
  ASSERT_EQ(answers.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    const auto called = Translate(Request(texts[i % texts.size()]));
    EXPECT_EQ(FromProtoStatus(answers[i].status()).code(),
              called.status().code());
    if (!called.ok()) continue;
    EXPECT_EQ(answers[i].response().SerializeAsString(),
              called->SerializeAsString());
  }
}

TEST_F(FeaturesTest, RoutingIsExplainedOnlyWhereDebugCallsAreOn) {
  EXPECT_THAT(Explain(0, "Deutschland", "Germany"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("--enable_debug_calls")));
  EXPECT_OK(Explain(1, "Deutschland", "Germany"));
}

// The number of lines of a log that contain all of `parts`.
int CountLines(const std::string& log, const std::vector<std::string>& parts) {
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    count += std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
      return absl::StrContains(line, part);
    });
  }
  return count;
}

TEST_F(FeaturesTest, IdsAndTracesGoAlongWithStreamsAndExplanations) {
  const std::vector<std::string> traces = {"0af7651916cd43dd8448eb211c80319c",
                                           "1bf7651916cd43dd8448eb211c80319c"};
  const auto identify = [&](const std::string& id, const std::string& trace,
                            grpc::ClientContext& context) {
    SetDeadline(context);
    context.AddMetadata("x-request-id", id);
    context.AddMetadata("traceparent",
                        absl::StrCat("00-", trace, "-b7ad6b7169203331-01"));
  };
  const auto answered_id = [](const grpc::ClientContext& context) {
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find("x-request-id");
    return found == metadata.end()
               ? ""
               : std::string(found->second.data(), found->second.size());
  };
  ::testing::internal::CaptureStderr();
  SetLogThreshold(LogSeverity::kDebug);
  {
    grpc::ClientContext context;
    identify("stream-1", traces[0], context);
    const auto stub = cluster_->Translation();
    const auto stream = stub->TranslateStream(&context);
    v1::TranslateStreamRequest message;
    *message.mutable_request() = Request("Kanarienvogel");
    stream->Write(message);
    stream->WritesDone();
    v1::TranslateStreamResponse answer;
    while (stream->Read(&answer)) {
    }
    EXPECT_OK(FromGrpcStatus(stream->Finish()));
    EXPECT_EQ(answered_id(context), "stream-1");
  }
  for (const int router : {1, 0}) {
    grpc::ClientContext context;
    const std::string id = absl::StrCat("explain-", router);
    identify(id, traces[1], context);
    v1::ExplainRoutingRequest request;
    request.mutable_sentence()->set_text("Kanarienvogel");
    request.mutable_sentence()->set_source_language("de");
    v1::ExplainRoutingResponse response;
    const absl::Status status =
        FromGrpcStatus(cluster_->Translation(router)->ExplainRouting(
            &context, request, &response));
    EXPECT_EQ(status.ok(), router == 1) << status;
    EXPECT_EQ(answered_id(context), id);  // errors carry the id, too
  }
  SetLogThreshold(LogSeverity::kInfo);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountLines(log, {"/TranslateStream", "stream-1", traces[0]}), 1);
  EXPECT_GT(CountLines(log, {"ran a segment", traces[0]}), 0);
  EXPECT_EQ(CountLines(log, {"/ExplainRouting", "explain-1", traces[1]}), 1);
  EXPECT_EQ(CountLines(log, {"PERMISSION_DENIED", "explain-0"}), 1);
  EXPECT_GT(CountLines(log, {"ran a segment", traces[1]}), 0);
  EXPECT_EQ(CountLines(log, {"Kanarien"}), 0);
}

// Explained routing equals that of one process with all experts, which
// routing_trace_test checks against the gate's reference, and names every
// holder of an expert.
TEST_F(FeaturesTest, RoutingIsThatOfTheModelAndNamesAllHolders) {
  const std::string text = "Vereinigte Staaten", target = "United States";
  ASSERT_OK_AND_ASSIGN(const v1::ExplainRoutingResponse response,
                       Explain(1, text, target));
  const ModelConfig model = NamesJob("").model;
  ASSERT_OK_AND_ASSIGN(const auto checkpoint,
                       CheckpointReader::Open(*checkpoint_));
  std::vector<int32_t> experts(model.experts);
  std::iota(experts.begin(), experts.end(), 0);
  ASSERT_OK_AND_ASSIGN(const TensorMap parameters,
                       ReadParameters(ModelParameters(model), experts,
                                      checkpoint.get(), /*seed=*/0));
  ASSERT_OK_AND_ASSIGN(std::string bytes, checkpoint->ReadTokenizer());
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       Tokenizer::FromModelBytes(std::move(bytes)));
  ASSERT_OK_AND_ASSIGN(std::vector<int32_t> source, tokenizer->Encode(text));
  source.insert(source.begin(), *tokenizer->LanguageTagId("de"));
  source.push_back(tokenizer->eos_id());
  ASSERT_OK_AND_ASSIGN(std::vector<int32_t> read, tokenizer->Encode(target));
  read.insert(read.begin(), tokenizer->bos_id());
  const RoutingTracer tracer(*BuildEncodeProgram(model, true),
                             *BuildDecodeProgram(model, true));
  ASSERT_OK_AND_ASSIGN(
      const RoutingTrace trace,
      tracer.Trace(source, read, parameters, /*segments=*/nullptr));

  const auto check = [&](const std::vector<int32_t>& ids,
                         const std::vector<LayerRouting>& layers,
                         const Tokens& tokens) {
    ASSERT_EQ(tokens.size(), static_cast<int>(ids.size()));
    for (size_t t = 0; t < ids.size(); ++t) {
      EXPECT_EQ(tokens[t].piece(), tokenizer->IdToPiece(ids[t]));
      ASSERT_EQ(tokens[t].layers_size(), static_cast<int>(layers.size()));
      for (size_t l = 0; l < layers.size(); ++l) {
        const v1::TokenLayerRouting& layer = tokens[t].layers(l);
        EXPECT_EQ(layer.layer(), layers[l].layer);
        ASSERT_EQ(layer.visits_size(), 2);
        for (size_t k = 0; k < 2; ++k) {
          const v1::ExpertVisit& visit = layer.visits(k);
          EXPECT_EQ(visit.expert(), layers[l].tokens[t][k].expert);
          EXPECT_EQ(visit.weight(), layers[l].tokens[t][k].weight);
          EXPECT_FALSE(visit.overflowed());
          std::vector<std::string> hosts(visit.hosts().begin(),
                                         visit.hosts().end());
          std::sort(hosts.begin(), hosts.end());
          EXPECT_THAT(hosts, ElementsAre("worker-0", "worker-1"));
        }
        EXPECT_NEAR(layer.visits(0).weight() + layer.visits(1).weight(), 1.0,
                    1e-5);
      }
    }
  };
  check(source, trace.source, response.source());
  check(read, trace.target, response.target());
  EXPECT_EQ(response.source(0).layers(0).layer(), "encoder.0.moe");
}

}  // namespace
}  // namespace gshard
