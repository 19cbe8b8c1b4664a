// Search options of requests, over gRPC and with a real model of random
// weights. A text is a list of token ids.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "router/edge/translation_service.h"
#include "services/base/random.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/router/local_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class TranslationFeaturesTest : public ::testing::Test {
 protected:
  TranslationFeaturesTest() {
    const ModelConfig config = TinyConfig();
    EXPECT_OK(models_.Add(std::make_shared<LocalModel>(
        "tiny@1", config, TinyParameters(config, 7),
        TargetTokens{.bos = 3, .eos = 1, .never = {0, 2, 3}, .unk = 12})));
    server_.AddService(&service_, v1::TranslationService::service_full_name());
    EXPECT_OK(server_.Start());
    stub_ = v1::TranslationService::NewStub(*CreateChannel(server_.address()));
  }
  ~TranslationFeaturesTest() override {
    server_.Drain(std::chrono::seconds(30));
  }

  static v1::TranslateRequest Request(const std::vector<std::string>& texts) {
    v1::TranslateRequest request;
    for (const std::string& text : texts)
      request.add_sentences()->set_text(text);
    request.mutable_options()->set_beam_size(8);
    request.mutable_options()->set_n_best(8);
    request.mutable_options()->set_max_length(12);
    return request;
  }
  static void AddTerm(v1::TranslateRequest& request, const std::string& source,
                      const std::string& target) {
    v1::Term* const term = request.mutable_options()->add_terms();
    term->set_source(source);
    term->set_target(target);
  }

  absl::StatusOr<v1::TranslateResponse> Translate(
      const v1::TranslateRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::TranslateResponse response;
    const grpc::Status status = stub_->Translate(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  ModelTable models_;
  Batcher batcher_{{}};
  TranslationService service_{&models_, &batcher_};
  ServerShell server_{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                               "/features.", getpid())}};
  std::unique_ptr<v1::TranslationService::Stub> stub_;
};

// Whether the ids in `text` contain those in `phrase` contiguously.
bool Has(const std::string& text, const std::string& phrase) {
  return absl::StrContains(absl::StrCat(" ", text, " "),
                           absl::StrCat(" ", phrase, " "));
}

TEST_F(TranslationFeaturesTest, HypothesesComeBestFirst) {
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                       Translate(Request({"4 7 9", "10"})));
  for (const v1::TranslationResult& result : response.results()) {
    ASSERT_EQ(result.hypotheses_size(), 8);
    std::set<std::string> texts;
    for (int i = 0; i < 8; ++i) {
      texts.insert(absl::StrCat(result.hypotheses(i).text(),
                                result.hypotheses(i).truncated()));
      if (i == 0) continue;
      EXPECT_LE(result.hypotheses(i).score(), result.hypotheses(i - 1).score());
    }
    EXPECT_EQ(texts.size(), 8u);
    EXPECT_EQ(result.phrase_count(), 0);
  }
}

TEST_F(TranslationFeaturesTest, EveryHypothesisBeginsWithThePrefix) {
  v1::TranslateRequest request = Request({"4 7 9", "5 5", "10"});
  request.mutable_sentences(0)->set_target_prefix("6 11 6");
  request.mutable_sentences(2)->set_target_prefix("4");
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse with, Translate(request));
  for (const v1::Hypothesis& hypothesis : with.results(0).hypotheses()) {
    EXPECT_TRUE(
        absl::StartsWith(absl::StrCat(hypothesis.text(), " "), "6 11 6 "));
    EXPECT_LE(hypothesis.token_count(), 12);
  }
  for (const v1::Hypothesis& hypothesis : with.results(2).hypotheses()) {
    EXPECT_TRUE(absl::StartsWith(absl::StrCat(hypothesis.text(), " "), "4 "));
  }
  // A sentence without a prefix gets the result that it gets alone.
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse alone,
                       Translate(Request({"5 5"})));
  EXPECT_EQ(with.results(1).SerializeAsString(),
            alone.results(0).SerializeAsString());
  // A prefix as long as the longest translation leaves no room for more.
  request.mutable_sentences(0)->set_target_prefix("6 6 6 6 6 6 6 6 6 6 6 6");
  EXPECT_THAT(Translate(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sentences[0].target_prefix: expected fewer "
                                 "than 12 tokens")));
}

TEST_F(TranslationFeaturesTest, TermsAndWhatIsKeptAreInEveryHypothesis) {
  v1::TranslateRequest request = Request({"4 7 9", "7 5", "9 9"});
  AddTerm(request, "7", "11 6");
  AddTerm(request, "9 9", "5");
  v1::TextSpan* const span = request.mutable_sentences(0)->add_keep();
  span->set_begin(4);
  span->set_end(5);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                       Translate(request));
  const std::vector<std::vector<std::string>> phrases = {
      {"11 6", "9"}, {"11 6"}, {"5"}};
  for (int i = 0; i < 3; ++i) {
    const v1::TranslationResult& result = response.results(i);
    const int count = static_cast<int>(phrases[i].size());
    EXPECT_EQ(result.phrase_count(), count);
    EXPECT_GT(result.hypotheses_size(), 0);
    for (const v1::Hypothesis& hypothesis : result.hypotheses()) {
      EXPECT_EQ(hypothesis.phrases_met(), count);
      for (const std::string& phrase : phrases[i]) {
        EXPECT_TRUE(Has(hypothesis.text(), phrase)) << hypothesis.text();
      }
    }
  }
}

TEST_F(TranslationFeaturesTest, AlternativesHaveDifferentNextTokens) {
  v1::TranslateRequest request = Request({"4 7 9"});
  request.mutable_sentences(0)->set_target_prefix("6 11");
  request.mutable_options()->set_beam_size(5);
  request.mutable_options()->clear_n_best();
  request.mutable_options()->set_alternatives(true);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                       Translate(request));
  ASSERT_EQ(response.results(0).hypotheses_size(), 5);
  std::set<std::string> third;
  for (const v1::Hypothesis& hypothesis : response.results(0).hypotheses()) {
    ASSERT_TRUE(absl::StartsWith(hypothesis.text(), "6 11"));
    const std::vector<std::string> tokens =
        absl::StrSplit(hypothesis.text(), ' ');
    third.insert(tokens.size() > 2 ? tokens[2] : "end");
  }
  EXPECT_EQ(third.size(), 5u);
}

TEST_F(TranslationFeaturesTest, TranslationsAreDrawnBySeed) {
  v1::TranslateRequest request = Request({"4 7 9", "10", "4 7 9"});
  request.mutable_options()->clear_beam_size();
  v1::Sampling& sampling = *request.mutable_options()->mutable_sampling();
  sampling.set_temperature(2);
  sampling.set_seed(3);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse first, Translate(request));
  std::set<std::string> texts;
  for (const v1::Hypothesis& one : first.results(0).hypotheses()) {
    texts.insert(one.text());
  }
  EXPECT_EQ(first.results(0).hypotheses_size(), 8);
  EXPECT_GT(texts.size(), 4u);
  // The same again, alone and in company.
  EXPECT_EQ(first.results(0).SerializeAsString(),
            first.results(2).SerializeAsString());
  request.mutable_sentences()->DeleteSubrange(1, 2);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse alone, Translate(request));
  EXPECT_EQ(first.results(0).SerializeAsString(),
            alone.results(0).SerializeAsString());
  // With other seeds, or none, others.
  sampling.set_seed(4);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse other, Translate(request));
  sampling.clear_seed();
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse any, Translate(request));
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse again, Translate(request));
  EXPECT_EQ(std::set({alone.SerializeAsString(), other.SerializeAsString(),
                      any.SerializeAsString(), again.SerializeAsString()})
                .size(),
            4u);
  // Two sentences have no draws in common, though the seed is one: if they had,
  // all sources would begin with as improbable a token.
  v1::TranslateRequest many;
  for (int i = 0; i < 40; ++i) {
    many.add_sentences()->set_text(absl::StrCat(4 + i % 7, " ", 4 + i / 7));
  }
  many.mutable_options()->set_max_length(1);
  many.mutable_options()->mutable_sampling()->set_seed(1);
  many.mutable_options()->mutable_sampling()->set_top_k(2);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse drawn, Translate(many));
  v1::TranslateRequest best = many;
  best.mutable_options()->clear_sampling();
  best.mutable_options()->set_greedy(true);
  ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse greedy, Translate(best));
  int differ = 0;
  for (int i = 0; i < 40; ++i) {
    differ += drawn.results(i).hypotheses(0).text() !=
              greedy.results(i).hypotheses(0).text();
  }
  EXPECT_GT(differ, 0);
  EXPECT_LT(differ, 40);
}

TEST_F(TranslationFeaturesTest, TheUnknownTokenComesOnlyWhereItIsAllowed) {
  v1::TranslateRequest request = Request({"4 7 9", "10"});
  // One hypothesis for every possible first token.
  request.mutable_options()->set_alternatives(true);
  request.mutable_options()->set_beam_size(10);
  request.mutable_options()->clear_n_best();
  std::map<v1::UnknownPolicy, int> unknown;
  for (const v1::UnknownPolicy policy :
       {v1::UNKNOWN_POLICY_UNSPECIFIED, v1::UNKNOWN_POLICY_NEVER,
        v1::UNKNOWN_POLICY_ALLOW}) {
    request.mutable_options()->set_unknown(policy);
    ASSERT_OK_AND_ASSIGN(const v1::TranslateResponse response,
                         Translate(request));
    for (const v1::TranslationResult& result : response.results()) {
      for (const v1::Hypothesis& hypothesis : result.hypotheses()) {
        unknown[policy] += Has(hypothesis.text(), "12");
      }
    }
  }
  EXPECT_EQ(unknown[v1::UNKNOWN_POLICY_UNSPECIFIED], 0);
  EXPECT_EQ(unknown[v1::UNKNOWN_POLICY_NEVER], 0);
  EXPECT_GT(unknown[v1::UNKNOWN_POLICY_ALLOW], 0);
}

// A random request of any kind, sometimes invalid.
v1::TranslateRequest RandomRequest(uint64_t seed) {
  const auto below = [seed](uint64_t counter, int64_t n) {
    return static_cast<int>(RandomBelow(seed, counter, n));
  };
  v1::TranslateRequest request;
  for (int s = below(0, 4); s > 0; --s) {
    std::string text;
    for (int i = 1 + below(s, 8); i > 0; --i) {
      absl::StrAppend(&text, text.empty() ? "" : " ", 4 + below(10 * s + i, 7));
    }
    request.add_sentences()->set_text(text);
    if (below(100 + s, 4) == 0) {
      request.mutable_sentences(0)->set_target_prefix("6 5");
    }
  }
  v1::TranslateOptions& options = *request.mutable_options();
  options.set_beam_size(below(200, 6));
  options.set_max_length(below(201, 20));
  options.set_n_best(below(202, 4));
  options.set_greedy(below(203, 4) == 0);
  options.set_alternatives(below(204, 6) == 0);
  if (below(206, 4) == 0) options.mutable_sampling()->set_seed(seed);
  if (below(205, 3) == 0) {
    options.add_terms()->set_source("7");
    options.mutable_terms(0)->set_target("8 9");
  }
  return request;
}

TEST_F(TranslationFeaturesTest, AStreamAnswersAsCallsDo) {
  constexpr int kRequests = 150;
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::minutes(2));
  const auto stream = stub_->TranslateStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      v1::TranslateStreamRequest message;
      message.set_id(i);
      *message.mutable_request() = RandomRequest(i);
      EXPECT_TRUE(stream->Write(message));
    }
    EXPECT_TRUE(stream->WritesDone());
  });
  std::map<uint64_t, v1::TranslateStreamResponse> answers;
  v1::TranslateStreamResponse answer;
  while (stream->Read(&answer)) {
    EXPECT_TRUE(answers.emplace(answer.id(), answer).second);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(answers.size(), size_t{kRequests});
  int translated = 0;
  for (int i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(RandomRequest(i).ShortDebugString());
    const auto called = Translate(RandomRequest(i));
    const absl::Status status = FromProtoStatus(answers[i].status());
    EXPECT_EQ(status.code(), called.status().code());
    EXPECT_EQ(status.message(), called.status().message());
    if (!called.ok()) continue;
    ++translated;
    EXPECT_EQ(answers[i].response().SerializeAsString(),
              called->SerializeAsString());
  }
  EXPECT_GT(translated, kRequests / 3);
  EXPECT_LT(translated, kRequests);
}

}  // namespace
}  // namespace gshard
