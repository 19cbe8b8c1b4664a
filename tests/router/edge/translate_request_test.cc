// Validation of Translate requests: what is accepted, and the errors otherwise.

#include "router/edge/translate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/server/server_stream.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

void AddTerm(v1::TranslateRequest& request, const std::string& source,
             const std::string& target) {
  v1::Term* const term = request.mutable_options()->add_terms();
  term->set_source(source);
  term->set_target(target);
}

void Keep(v1::TranslateRequest& request, int begin, int end) {
  v1::TextSpan* const span = request.mutable_sentences(0)->add_keep();
  span->set_begin(begin);
  span->set_end(end);
}

v1::Sampling& Draw(v1::TranslateRequest& request) {
  return *request.mutable_options()->mutable_sampling();
}

class TranslateRequestTest : public ::testing::Test {
 protected:
  TranslateRequestTest() {
    models_.Expect({});
    EXPECT_OK(models_.Add(tiny_));
    EXPECT_OK(models_.Add(std::make_shared<FakeModel>("german@2", "de")));
  }

  static v1::TranslateRequest Valid() {
    v1::TranslateRequest request;
    request.set_model("tiny");
    v1::Sentence* const sentence = request.add_sentences();
    sentence->set_text("ein kurzer Satz");
    sentence->set_source_language("de");
    return request;
  }

  // The models as a caller with `grants` may use them.
  ModelAccess Of(const std::string& grants) const {
    return {&models_, {"shop", ParseGrants(grants).value()}, Role::kTranslate};
  }

  const std::shared_ptr<FakeModel> tiny_ =
      std::make_shared<FakeModel>("tiny@1");
  ModelTable models_;
  const ModelAccess access_ = Of("translate");
};

TEST_F(TranslateRequestTest, DefaultsAreThoseOfTheContract) {
  const auto prepared = PrepareTranslation(Valid(), access_);
  ASSERT_OK(prepared);
  EXPECT_EQ(prepared->model->id(), "tiny@1");
  ASSERT_EQ(prepared->sentences.size(), 1);
  EXPECT_THAT(prepared->sentences[0].ids, ElementsAre(1, 13, 16, 14, 2));
  const DecodeOptions& options = prepared->sentences[0].options;
  EXPECT_EQ(options.beam_size, 4);
  EXPECT_EQ(options.length_penalty, 0.6);
  EXPECT_EQ(options.n_best, 1);
  EXPECT_EQ(options.max_length, FakeModel::kPositions);  // below 2 * 5 + 10
}

// Admission looks at these before a text is tokenized.
TEST_F(TranslateRequestTest, OptionsAreKnownBeforeTheTokensAre) {
  v1::TranslateRequest request = Valid();
  for (const int asked : {0, 7}) {
    request.mutable_options()->set_max_length(asked);
    std::string model;
    ASSERT_OK_AND_ASSIGN(TranslationDraft draft,
                         TranslationDraft::Begin(request, access_, model));
    ASSERT_OK_AND_ASSIGN(const PreparedTranslation prepared,
                         PrepareTranslation(request, access_));
    const SourceSentence& sentence = prepared.sentences[0];
    const auto tokens = static_cast<int64_t>(sentence.ids.size());
    EXPECT_EQ(draft.OptionsOf(tokens).max_length, sentence.options.max_length);
    EXPECT_EQ(draft.OptionsOf(tokens).beam_size, sentence.options.beam_size);
    EXPECT_EQ(draft.OptionsOf(0).max_length, asked == 0 ? 10 : asked);
  }
}

TEST_F(TranslateRequestTest, OptionsAreTaken) {
  v1::TranslateRequest request = Valid();
  request.set_model("german@2");
  request.mutable_sentences(0)->clear_source_language();
  v1::TranslateOptions* const options = request.mutable_options();
  options->set_beam_size(5);
  options->set_length_penalty(0);
  options->set_max_length(3);
  options->set_n_best(5);
  const auto prepared = PrepareTranslation(request, access_);
  ASSERT_OK(prepared);
  const DecodeOptions& decode = prepared->sentences[0].options;
  EXPECT_EQ(decode.beam_size, 5);
  EXPECT_EQ(decode.length_penalty, 0);
  EXPECT_EQ(decode.max_length, 3);
  EXPECT_EQ(decode.n_best, 5);

  options->Clear();
  options->set_greedy(true);
  const auto greedy = PrepareTranslation(request, access_);
  ASSERT_OK(greedy);
  EXPECT_EQ(greedy->sentences[0].options.beam_size, 1);
  EXPECT_EQ(greedy->sentences[0].options.length_penalty, 0);
}

TEST_F(TranslateRequestTest, TranslationsAreDrawnAsAsked) {
  v1::TranslateRequest request = Valid();
  Draw(request);
  const auto options = [&] {
    const auto prepared = PrepareTranslation(request, access_);
    EXPECT_OK(prepared);
    return prepared.ok() ? prepared->sentences[0].options : DecodeOptions();
  };
  const DecodeOptions plain = options();
  ASSERT_TRUE(plain.sampling.has_value());
  EXPECT_EQ(plain.sampling->top_k, 10);
  EXPECT_EQ(plain.sampling->temperature, 1.0);
  EXPECT_EQ(plain.beam_size, 1);
  EXPECT_EQ(plain.n_best, 1);
  // Nobody has asked for this seed.
  EXPECT_NE(options().sampling->seed, plain.sampling->seed);
  request.mutable_options()->set_n_best(32);
  Draw(request).set_top_k(64);
  Draw(request).set_temperature(0.01f);
  Draw(request).set_seed(0);
  const DecodeOptions asked = options();
  EXPECT_EQ(asked.sampling->top_k, 64);
  EXPECT_FLOAT_EQ(static_cast<float>(asked.sampling->temperature), 0.01f);
  EXPECT_EQ(asked.sampling->seed, 0u);
  EXPECT_EQ(asked.beam_size, 32);
  EXPECT_EQ(asked.n_best, 32);
}

// Expects a case for every field that can have a bad value: one of `messages`
// begins with its name.
void ExpectEveryField(const google::protobuf::Descriptor& message,
                      const std::string& prefix,
                      const std::vector<std::string>& messages) {
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    if (&field ==
        v1::TranslateRequest::descriptor()->FindFieldByName("require_full")) {
      continue;  // not about the request: see translate_answer.h
    }
    if (&field == v1::Sampling::descriptor()->FindFieldByName("seed")) {
      continue;  // any is valid
    }
    const std::string name =
        absl::StrCat(prefix, field.name(), field.is_repeated() ? "[0]" : "");
    // A span is reported as a whole.
    if (field.message_type() != nullptr &&
        field.message_type() != v1::TextSpan::descriptor()) {
      ExpectEveryField(*field.message_type(), name + ".", messages);
      continue;
    }
    EXPECT_THAT(messages, Contains(StartsWith(name + ": "))) << name;
  }
}

TEST_F(TranslateRequestTest, BadFieldsAreNamed) {
  using Request = v1::TranslateRequest;
  struct Case {
    std::function<void(Request&)> spoil;
    absl::StatusCode code;
    std::string message;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {[](Request& r) { r.clear_sentences(); }, kInvalid,
       "sentences: expected 1 to 64, got 0"},
      {[](Request& r) {
         for (int i = 0; i < 64; ++i) *r.add_sentences() = r.sentences(0);
       },
       absl::StatusCode::kResourceExhausted,
       "sentences: expected at most 64, got 65"},
      {[](Request& r) { r.mutable_sentences(0)->clear_text(); }, kInvalid,
       "sentences[0].text: expected 1 to 16384 bytes, got 0"},
      {[](Request& r) {
         *r.add_sentences() = r.sentences(0);
         r.mutable_sentences(1)->set_text(std::string(16385, 'a'));
       },
       kInvalid, "sentences[1].text: expected 1 to 16384 bytes, got 16385"},
      {[](Request& r) { r.mutable_sentences(0)->set_text("  "); }, kInvalid,
       "sentences[0].text: expected text"},
      {[](Request& r) {
         r.mutable_sentences(0)->set_text("a b c d e f g h i j k");
       },
       kInvalid, "sentences[0].text: expected at most 12 tokens, got 13"},
      {[](Request& r) { r.mutable_sentences(0)->set_source_language("xx"); },
       kInvalid,
       "sentences[0].source_language: expected one of de, fr, got \"xx\""},
      {[](Request& r) { r.mutable_sentences(0)->clear_source_language(); },
       kInvalid, "sentences[0].source_language: expected one of"},
      {[](Request& r) { r.set_model("other"); }, absl::StatusCode::kNotFound,
       "model: no model 'other' is loaded on this router; loaded: tiny@1, "
       "german@2"},
      {[](Request& r) { r.set_model("tiny@9"); }, absl::StatusCode::kNotFound,
       "model: no model 'tiny@9'"},
      {[](Request& r) { r.set_model(std::string(300, 'm')); }, kInvalid,
       "model: expected at most 257 bytes, got 300"},
      {[](Request& r) { r.clear_model(); }, kInvalid,
       "model: expected one of the models, which are tiny@1, german@2"},
      {[](Request& r) { r.mutable_options()->set_beam_size(33); }, kInvalid,
       "options.beam_size: expected 1 to 32, got 33"},
      {[](Request& r) { r.mutable_options()->set_beam_size(-1); }, kInvalid,
       "options.beam_size: expected 1 to 32, got -1"},
      {[](Request& r) { r.mutable_options()->set_length_penalty(4.5); },
       kInvalid, "options.length_penalty: expected 0 to 4, got 4.5"},
      {[](Request& r) { r.mutable_options()->set_length_penalty(-0.5); },
       kInvalid, "options.length_penalty: expected 0 to 4, got -0.5"},
      {[](Request& r) { r.mutable_options()->set_length_penalty(NAN); },
       kInvalid, "options.length_penalty: expected 0 to 4, got "},
      {[](Request& r) { r.mutable_options()->set_max_length(13); }, kInvalid,
       "options.max_length: expected 1 to 12, got 13"},
      {[](Request& r) { r.mutable_options()->set_max_length(-1); }, kInvalid,
       "options.max_length: expected 1 to 12, got -1"},
      {[](Request& r) { r.mutable_options()->set_n_best(5); }, kInvalid,
       "options.n_best: expected 1 to 4, got 5"},
      {[](Request& r) { r.mutable_options()->set_n_best(-2); }, kInvalid,
       "options.n_best: expected 1 to 4, got -2"},
      {[](Request& r) {
         r.mutable_options()->set_greedy(true);
         r.mutable_options()->set_beam_size(2);
       },
       kInvalid, "options.greedy: contradicts options.beam_size 2"},
      {[](Request& r) {
         r.mutable_options()->set_greedy(true);
         r.mutable_options()->set_n_best(2);
       },
       kInvalid, "options.n_best: expected 1 to 1, got 2"},
      {[](Request& r) {
         r.mutable_options()->set_unknown(static_cast<v1::UnknownPolicy>(3));
       },
       kInvalid, "options.unknown: expected 0 to 2, got 3"},
      {[](Request& r) {
         r.mutable_options()->set_greedy(true);
         r.mutable_options()->set_alternatives(true);
       },
       kInvalid, "options.alternatives: contradicts options.greedy"},
      {[](Request& r) {
         r.mutable_options()->set_alternatives(true);
         AddTerm(r, "a", "b");
       },
       kInvalid, "options.alternatives: contradicts options.terms"},
      {[](Request& r) {
         r.mutable_options()->set_alternatives(true);
         Keep(r, 0, 1);
       },
       kInvalid, "sentences[0].keep: contradicts options.alternatives"},
      {[](Request& r) { Draw(r).set_top_k(65); }, kInvalid,
       "options.sampling.top_k: expected 1 to 64, got 65"},
      {[](Request& r) { Draw(r).set_temperature(10.5); }, kInvalid,
       "options.sampling.temperature: expected 0.01 to 10, got 10.5"},
      {[](Request& r) { Draw(r).set_temperature(NAN); }, kInvalid,
       "options.sampling.temperature: expected 0.01 to 10, got "},
      {[](Request& r) {
         Draw(r);
         r.mutable_options()->set_n_best(33);
       },
       kInvalid, "options.n_best: expected 1 to 32, got 33"},
      {[](Request& r) {
         Draw(r);
         r.mutable_options()->set_beam_size(2);
       },
       kInvalid, "options.sampling: contradicts options.beam_size 2"},
      {[](Request& r) {
         Draw(r);
         r.mutable_options()->set_greedy(true);
       },
       kInvalid, "options.sampling: contradicts options.greedy"},
      {[](Request& r) {
         Draw(r);
         r.mutable_options()->set_alternatives(true);
       },
       kInvalid, "options.sampling: contradicts options.alternatives"},
      {[](Request& r) {
         Draw(r);
         AddTerm(r, "a", "b");
       },
       kInvalid, "options.sampling: contradicts options.terms"},
      {[](Request& r) {
         Draw(r);
         Keep(r, 0, 1);
       },
       kInvalid, "sentences[0].keep: contradicts options.sampling"},
      {[](Request& r) { AddTerm(r, "", "b"); }, kInvalid,
       "options.terms[0].source: expected 1 to 256 bytes"},
      {[](Request& r) { AddTerm(r, "b", std::string(257, 'x')); }, kInvalid,
       "options.terms[0].target: expected 1 to 256 bytes"},
      {[](Request& r) { AddTerm(r, "ein", "?"); }, kInvalid,
       "options.terms[0].target: cannot write"},
      {[](Request& r) { Keep(r, 0, 99); }, kInvalid,
       "sentences[0].keep[0]: expected whole characters"},
      {[](Request& r) {
         r.mutable_sentences(0)->set_target_prefix(std::string(16385, 'x'));
       },
       kInvalid, "sentences[0].target_prefix: expected 0 to 16384, got 16385"},
      {[](Request& r) { r.mutable_sentences(0)->set_target_prefix("?"); },
       kInvalid, "sentences[0].target_prefix: cannot write"},
      {[](Request& r) {
         r.mutable_sentences(0)->set_target_prefix("a b c d e f g h i j");
         AddTerm(r, "ein", "k l");
       },
       kInvalid,
       "sentences[0].target_prefix: expected fewer than 12 tokens, with terms "
       "and what is kept, got 12"},
  };
  std::vector<std::string> messages;
  for (const Case& bad : cases) {
    Request request = Valid();
    bad.spoil(request);
    EXPECT_THAT(PrepareTranslation(request, access_),
                StatusIs(bad.code, StartsWith(bad.message)));
    messages.push_back(bad.message);
  }
  ExpectEveryField(*Request::descriptor(), "", messages);
}

TEST_F(TranslateRequestTest, PrefixAndPhrasesAreTokens) {
  v1::TranslateRequest request = Valid();
  request.mutable_sentences(0)->set_text("a bb ccc");
  request.mutable_sentences(0)->set_target_prefix("dddd e");
  request.mutable_options()->set_unknown(v1::UNKNOWN_POLICY_ALLOW);
  AddTerm(request, "bb", "ff g");
  AddTerm(request, "b", "h");
  Keep(request, 5, 8);
  const auto prepared = PrepareTranslation(request, access_);
  ASSERT_OK(prepared);
  const DecodeOptions& decode = prepared->sentences[0].options;
  EXPECT_EQ(decode.prefix, (std::vector<int32_t>{14, 11}));
  EXPECT_EQ(decode.phrases,
            (std::vector<std::vector<int32_t>>{{13}, {12, 11}}));
  EXPECT_TRUE(decode.allow_unknown);

  request = Valid();
  request.mutable_options()->set_alternatives(true);
  const auto alternatives = PrepareTranslation(request, access_);
  ASSERT_OK(alternatives);
  EXPECT_TRUE(alternatives->sentences[0].options.alternatives);
  EXPECT_EQ(alternatives->sentences[0].options.n_best, 4);
  EXPECT_FALSE(alternatives->sentences[0].options.allow_unknown);
}

TEST_F(TranslateRequestTest, TermsBecomeTokensOnce) {
  v1::TranslateRequest request = Valid();
  for (int i = 0; i < 9; ++i) *request.add_sentences() = Valid().sentences(0);
  AddTerm(request, "ein", "ff g");
  AddTerm(request, "Satz", "h");
  AddTerm(request, "zwei", "not needed");
  const auto prepared = PrepareTranslation(request, access_);
  ASSERT_OK(prepared);
  for (const SourceSentence& sentence : prepared->sentences) {
    EXPECT_EQ(sentence.options.phrases,
              (std::vector<std::vector<int32_t>>{{12, 11}, {11}}));
  }
  EXPECT_EQ(tiny_->target_encodings(), 2);
}

// As many as a translation may have are enough to refuse it.
TEST_F(TranslateRequestTest, NoMoreBecomesTokensThanATranslationMayHave) {
  v1::TranslateRequest request = Valid();
  request.mutable_sentences(0)->set_target_prefix("a b c d e f g h i j");
  AddTerm(request, "ein", "k l");
  AddTerm(request, "kurzer", "m n");
  AddTerm(request, "Satz", "o p");
  EXPECT_THAT(PrepareTranslation(request, access_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected fewer than 12 tokens, with terms "
                                 "and what is kept, got 12 or more")));
  EXPECT_EQ(tiny_->target_encodings(), 2);
}

// What is kept is text, too, and is checked part by part.
TEST_F(TranslateRequestTest, WhatIsKeptCountsAsBytesOfItsSentence) {
  v1::TranslateRequest request = Valid();
  request.mutable_sentences(0)->set_target_prefix("dddd e");
  Keep(request, 0, 3);
  Keep(request, 4, 10);
  Keep(request, 0, 3);
  Keep(request, 12, 2);
  Keep(request, -1, 2'000'000'000);
  std::string name;
  ASSERT_OK_AND_ASSIGN(const TranslationDraft draft,
                       TranslationDraft::Begin(request, access_, name));
  EXPECT_EQ(draft.next_bytes(), 15 + 6 + 3 + 6 + 3 + 15);
}

TEST_F(TranslateRequestTest, NoModelIsNotTheCallersFault) {
  v1::TranslateRequest request = Valid();
  request.clear_model();
  const ModelTable none;
  EXPECT_THAT(PrepareTranslation(
                  request, {&none, {"shop", AllGrants()}, Role::kTranslate}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("no model is loaded")));
}

std::string Times(int count, absl::string_view bytes) {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, bytes);
  return all;
}

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Encodes a length-delimited field.
std::string Field(int number, const std::string& bytes) {
  const auto length = static_cast<uint32_t>(bytes.size());
  std::string encoded(1, static_cast<char>(number << 3 | 2));
  for (uint32_t left = length;; left >>= 7) {
    encoded.push_back(static_cast<char>(left < 128 ? left : left | 128));
    if (left < 128) return encoded + bytes;
  }
}

TEST_F(TranslateRequestTest, TinyFieldsWithoutNumberAreNotParsed) {
  constexpr int kMany = 70'000;
  const auto expect_refused = [](const auto& parsed, const std::string& what) {
    EXPECT_THAT(parsed, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("more than 65536 fields")))
        << what;
  };
  // Unknown fields in every message: empty, numeric and in a group.
  for (const char* tiny : {"\x7A", "\x78", "\x7B\x78"}) {
    std::string fields = Times(kMany, std::string(tiny) + '\0');
    if (tiny[0] == '\x7B') fields += Times(kMany, "\x7C");
    const std::string sentences = Field(1, fields), keep = Field(4, fields);
    const std::string options = Field(3, fields), term = Field(6, fields);
    for (const std::string& request :
         {fields, sentences, Field(1, keep), options, Field(3, term)}) {
      expect_refused(ParseTranslateRequest(Buffer(request)), tiny);
      expect_refused(ParseTranslateStreamRequest(Buffer(Field(2, request))),
                     tiny);
    }
    expect_refused(ParseTranslateStreamRequest(Buffer(fields)), tiny);
    expect_refused(ParseExplainRoutingRequest(Buffer(fields)), tiny);
    expect_refused(ParseExplainRoutingRequest(Buffer(Field(2, keep))), tiny);
  }
  // Known fields.
  v1::TranslateRequest sentences, terms, kept = Valid();
  for (int i = 0; i < kMany; ++i) {
    sentences.add_sentences();
    terms.mutable_options()->add_terms();
    kept.mutable_sentences(0)->add_keep();
  }
  for (const v1::TranslateRequest& request : {sentences, terms, kept}) {
    expect_refused(ParseTranslateRequest(SerializeRaw(request)), "known");
    v1::TranslateStreamRequest message;
    *message.mutable_request() = request;
    expect_refused(ParseTranslateStreamRequest(SerializeRaw(message)), "known");
  }
  // Text may be long.
  v1::TranslateRequest large;
  for (int i = 0; i < 64; ++i) {
    large.add_sentences()->set_text(std::string(16384, '\n'));
  }
  EXPECT_OK(ParseTranslateRequest(SerializeRaw(large)));
  // Every field may be filled up to its limit.
  v1::TranslateRequest full;
  for (int i = 0; i < 64; ++i) {
    AddTerm(full, std::string(256, 's'), std::string(256, 't'));
    *full.add_sentences() = Valid().sentences(0);
    full.mutable_sentences(i)->set_target_prefix(std::string(4096, 'p'));
    for (int k = 1; k <= 32; ++k) {
      v1::TextSpan* const span = full.mutable_sentences(i)->add_keep();
      span->set_begin(k);
      span->set_end(k + 1);
    }
  }
  EXPECT_OK(ParseTranslateRequest(SerializeRaw(full)));
}

TEST_F(TranslateRequestTest, BytesThatAreNotUtf8AreNamed) {
  v1::TranslateRequest request = Valid();
  *request.add_sentences() = request.sentences(0);
  request.mutable_sentences(1)->set_text("na\xC3");
  EXPECT_THAT(ParseTranslateRequest(SerializeRaw(request)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "sentences[1].text: expected UTF-8, byte 2 is not"));
  request = Valid();
  request.mutable_sentences(0)->set_source_language("\xFF");
  EXPECT_THAT(
      ParseTranslateRequest(SerializeRaw(request)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "sentences[0].source_language: expected UTF-8, byte 0 is not"));
  request = Valid();
  AddTerm(request, "a", "b");
  AddTerm(request, "a", "x\xE2\x82");
  EXPECT_THAT(ParseTranslateRequest(SerializeRaw(request)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "options.terms[1].target: expected UTF-8, byte 1 is "
                       "not"));
  request = Valid();
  request.set_model("\xC0\x80");
  EXPECT_THAT(ParseTranslateRequest(SerializeRaw(request)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "model: expected UTF-8, byte 0 is not"));
}

TEST_F(TranslateRequestTest, WhatIsLongerThanItMayBeIsNotParsed) {
  // Each empty sentence has two bytes here but takes many times that in memory.
  std::string bytes;
  while (bytes.size() <= kMaxRequestBytes) bytes.append("\x0A\x00", 2);
  const grpc::Slice slice(bytes);
  EXPECT_THAT(ParseTranslateRequest(grpc::ByteBuffer(&slice, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("expected at most 4194304")));
  EXPECT_THAT(ParseTranslateStreamRequest(grpc::ByteBuffer(&slice, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("expected at most 4194304")));
}

TEST_F(TranslateRequestTest, BytesThatAreNoMessageAreRefused) {
  const grpc::ByteBuffer whole = SerializeRaw(Valid());
  grpc::Slice bytes;
  ASSERT_TRUE(whole.DumpToSingleSlice(&bytes).ok());
  const std::string text(bytes.begin(), bytes.end());
  ASSERT_OK(ParseTranslateRequest(whole));
  int refused = 0;
  for (size_t length = 0; length < text.size(); ++length) {
    const grpc::Slice part(text.substr(0, length));
    const auto request = ParseTranslateRequest(grpc::ByteBuffer(&part, 1));
    if (request.ok()) continue;  // cut between fields
    ++refused;
    EXPECT_THAT(request, StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("not a valid")));
  }
  EXPECT_GT(refused, 20);
}

// A caller limited to some models can use them and learns nothing of others.
TEST_F(TranslateRequestTest, ModelsAreThoseOfTheCaller) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  v1::TranslateRequest request = Valid();
  const auto prepare = [&](const std::string& model,
                           const std::string& grants) {
    request.set_model(model);
    return PrepareTranslation(request, Of(grants)).status();
  };
  EXPECT_OK(prepare("tiny", "translate:t*"));
  EXPECT_OK(prepare("tiny@1", "translate:t*,translate:x"));
  EXPECT_THAT(prepare("german", "translate:t*"),
              StatusIs(kDenied, HasSubstr("'german'")));
  EXPECT_THAT(prepare("german@2", "translate:t*"), StatusIs(kDenied, _));
  EXPECT_THAT(prepare("absent", "translate:t*"), StatusIs(kDenied, _));
  EXPECT_THAT(prepare("tiny", "admin"), StatusIs(kDenied, _));
  for (const char* model : {"", "t", "tiny@9"}) {
    const absl::Status status = prepare(model, "translate:t*");
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), Not(HasSubstr("german"))) << model;
  }
  for (const auto& [grants, listed] :
       {std::pair("translate", 2), std::pair("translate:t*", 1),
        std::pair("translate:x", 0), std::pair("admin", 0)}) {
    const auto models = Of(grants).List();
    ASSERT_OK(models);
    EXPECT_EQ(std::ssize(*models), listed) << grants;
    if (listed == 1) {
      EXPECT_EQ(models->front().model->id(), "tiny@1");
    }
  }
  // Without a name, the only model is denied if the caller has no right to it.
  models_.Remove("tiny@1", /*wait=*/true);
  EXPECT_THAT(prepare("", "translate:t*"), StatusIs(kDenied, _));
  EXPECT_OK(prepare("", "translate:german"));
}

}  // namespace
}  // namespace gshard
