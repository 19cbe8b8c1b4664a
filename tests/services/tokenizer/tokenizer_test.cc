#include "services/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/random.h"
#include "services/base/subprocess.h"
#include "services/base/utf8.h"
#include "services/tokenizer/trainer.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The names in tests/data/names.tsv, in both languages.
std::vector<std::string> Names() {
  std::ifstream file("tests/data/names.tsv");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    names.push_back(columns[1]);
    names.push_back(columns[2]);
  }
  return names;
}

// Lines that tokenizers often mishandle.
std::vector<std::string> OddLines() {
  std::vector<std::string> lines = {
      "",
      " ",
      "   ",
      "\t",
      " leading",
      "trailing ",
      "two  spaces",
      "a\u00A0no-break space",
      "thin\u2009space",
      "ideographic\u3000space",
      "zero\u200Bwidth",
      "soft\u00ADhyphen",
      "\uFEFFbyte order mark",
      "e\u0301 against \u00E9",
      "\uFB01ne \uFB02ow",
      "\uFF21\uFF22\uFF23",
      "\u00BD \u00B2 \u2460 \u33A1",
      "\uFDFA",
      "\u1E9E \u0130 \u0131",
      "Gr\u00FC\u00DFe aus K\u00F6ln",
      "\u00BFQu\u00E9 tal?",
      "\u041F\u0440\u0438\u0432\u0435\u0442, \u043C\u0438\u0440",
      "\u6771\u4EAC\u90FD\u306B\u4F4F\u3093\u3067\u3044\u308B",
      "\u0627\u0644\u0639\u0631\u0628\u064A\u0629",
      "\u05E2\u05D1\u05E8\u05D9",
      "\u0939\u093F\u0928\u094D\u0926\u0940",
      "\uD55C\uAD6D\uC5B4",
      "\u0E44\u0E17\u0E22",
      "\U0001F600\U0001F468\u200D\U0001F469",
      "\U0010FFFF",
      "<s> </s> <pad> <unk> <de> <fr>",
      "<de>",
      "a<de>b",
      "\u2581under",
      "\u2581",
      "\u2047",
      "\uFFFD",
      "\x01\x02\x7F",
      "\u0085next line",
      "https://example.org/a?b=c&d=%20",
      "C++20 && g++-12 -O2 | tee x.log",
      "1,234,567.89 \u20AC",
      "\"quotes\" 'and' \u201Cmore\u201D \u00ABtoo\u00BB",
      "tab\tinside",
      "back\\slash",
      "NUL-free",
      std::string(3000, 'x'),
      std::string(500, ' ') + "far",
      "\r",
      "carriage\rreturn"};
  // Random mixtures of the above and of single characters.
  const std::vector<std::string> parts = lines;
  for (uint64_t i = 0; lines.size() < 300; ++i) {
    std::string line;
    for (uint64_t j = 0; j < 1 + i % 6; ++j) {
      const uint64_t draw = RandomBelow(i, j, parts.size());
      if (parts[draw].size() < 100) absl::StrAppend(&line, parts[draw]);
      if (j % 2 == 0) line += ' ';
    }
    lines.push_back(line);
  }
  return lines;
}

class TokenizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    TokenizerOptions options;
    options.vocab_size = 500;
    options.languages = {"de", "fr", "es", "pt_BR"};
    const std::string path = ::testing::TempDir() + "tokenizer_test.model";
    ASSERT_OK(TrainTokenizer(options, Names(), path));
    ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Load(path));
    tokenizer_ = tokenizer.release();
    options.model_type = TokenizerOptions::ModelType::kBpe;
    ASSERT_OK(TrainTokenizer(options, Names(), path + ".bpe"));
    ASSERT_OK_AND_ASSIGN(auto bpe, Tokenizer::Load(path + ".bpe"));
    bpe_ = bpe.release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete bpe_;
    tokenizer_ = bpe_ = nullptr;
  }

  // The ids that `spm_encode` prints, line by line.
  static std::vector<std::vector<int32_t>> SpmEncode(
      const Tokenizer& tokenizer, const std::vector<std::string>& lines) {
    const std::string folder = ::testing::TempDir();
    std::ofstream(folder + "oracle.model", std::ios::binary)
        << tokenizer.model_bytes();
    std::ofstream input(folder + "oracle.txt", std::ios::binary);
    for (const std::string& line : lines) input << line << '\n';
    input.close();
    const auto result =
        RunSubprocess({"spm_encode", "--model=" + folder + "oracle.model",
                       "--output_format=id", folder + "oracle.txt"});
    EXPECT_OK(result);
    std::vector<std::vector<int32_t>> all;
    if (!result.ok()) return all;
    EXPECT_EQ(result->exit_code, 0) << result->error_output;
    std::vector<std::string> printed = absl::StrSplit(result->output, '\n');
    printed.pop_back();
    for (const std::string& line : printed) {
      std::vector<int32_t> ids;
      for (const auto& word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
        int32_t id = -1;
        EXPECT_TRUE(absl::SimpleAtoi(word, &id)) << word;
        ids.push_back(id);
      }
      all.push_back(ids);
    }
    return all;
  }

  static void ExpectLikeSpmEncode(const Tokenizer& tokenizer,
                                  const std::vector<std::string>& lines) {
    const std::vector<std::vector<int32_t>> expected =
        SpmEncode(tokenizer, lines);
    ASSERT_EQ(expected.size(), lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids,
                           tokenizer.Encode(lines[i]));
      EXPECT_EQ(ids, expected[i]) << "line " << i << ": " << lines[i];
    }
  }

  static Tokenizer* tokenizer_;
  static Tokenizer* bpe_;
};

Tokenizer* TokenizerTest::tokenizer_ = nullptr;
Tokenizer* TokenizerTest::bpe_ = nullptr;

TEST_F(TokenizerTest, EncodesLikeSpmEncode) {
  ExpectLikeSpmEncode(*tokenizer_, Names());
  ExpectLikeSpmEncode(*tokenizer_, OddLines());
}

TEST_F(TokenizerTest, EncodesLikeSpmEncodeWithBpe) {
  ExpectLikeSpmEncode(*bpe_, Names());
  ExpectLikeSpmEncode(*bpe_, OddLines());
}

TEST_F(TokenizerTest, WhatHasNoPiecesIsBlank) {
  int without = 0;
  for (char32_t c = 1; c <= 0xFFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids,
                         tokenizer_->Encode(text));
    if (!ids.empty()) continue;
    ++without;
    EXPECT_TRUE(IsBlank(text)) << std::hex << static_cast<uint32_t>(c);
  }
  EXPECT_GT(without, 20);
}

TEST_F(TokenizerTest, DecodesWhatItEncoded) {
  int decoded = 0;
  for (const std::string& name : Names()) {
    // SentencePiece normalizes: a no-break space comes back as a space.
    if (name.find("\u00A0") != std::string::npos ||
        name.find("\u2019") != std::string::npos) {
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids,
                         tokenizer_->Encode(name));
    // Rare characters have no pieces.
    if (std::count(ids.begin(), ids.end(), tokenizer_->unk_id()) > 0) continue;
    ASSERT_OK_AND_ASSIGN(const std::string text, tokenizer_->Decode(ids));
    EXPECT_EQ(text, name);
    ++decoded;
  }
  EXPECT_GT(decoded, 900);
}

TEST_F(TokenizerTest, SpecialPiecesHaveFixedIds) {
  EXPECT_EQ(tokenizer_->pad_id(), 0);
  EXPECT_EQ(tokenizer_->eos_id(), 1);
  EXPECT_EQ(tokenizer_->unk_id(), 2);
  EXPECT_EQ(tokenizer_->bos_id(), 3);
  EXPECT_THAT(tokenizer_->languages(), ElementsAre("de", "fr", "es", "pt_BR"));
  ASSERT_OK_AND_ASSIGN(const int32_t de, tokenizer_->LanguageTagId("de"));
  EXPECT_EQ(de, 4);
  ASSERT_OK_AND_ASSIGN(const int32_t pt, tokenizer_->LanguageTagId("pt_BR"));
  EXPECT_EQ(pt, 7);
  EXPECT_EQ(tokenizer_->IdToPiece(7), "<pt_BR>");
  EXPECT_THAT(
      tokenizer_->LanguageTagId("xx"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("expected one of de, fr, es, pt_BR, got \"xx\"")));
  for (const char* piece : {"pad", "s", "/s", "unk", ""}) {
    EXPECT_THAT(tokenizer_->LanguageTagId(piece),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected one of de, fr, es, pt_BR")))
        << piece;
  }
}

// Text never encodes to special pieces; otherwise a user could smuggle in a tag
// or an end of sentence.
TEST_F(TokenizerTest, TextNeverGivesSpecialPieces) {
  for (const std::string& line : OddLines()) {
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids,
                         tokenizer_->Encode(line));
    for (const int32_t id : ids) {
      EXPECT_TRUE(id == tokenizer_->unk_id() || id > 7) << line;
    }
  }
}

TEST_F(TokenizerTest, SpecialPiecesLeaveNoTraceInText) {
  ASSERT_OK_AND_ASSIGN(std::vector<int32_t> ids, tokenizer_->Encode("Afar"));
  ids.insert(ids.begin(), {3, 4});
  ids.insert(ids.end(), {1, 0, 0});
  ASSERT_OK_AND_ASSIGN(const std::string text, tokenizer_->Decode(ids));
  EXPECT_EQ(text, "Afar");
  ASSERT_OK_AND_ASSIGN(const std::string unknown, tokenizer_->Decode({2}));
  EXPECT_EQ(unknown, " \u2047 ");
}

TEST_F(TokenizerTest, EmptyInGivesEmptyOut) {
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> ids, tokenizer_->Encode(""));
  EXPECT_THAT(ids, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const std::string text, tokenizer_->Decode({}));
  EXPECT_EQ(text, "");
}

TEST_F(TokenizerTest, RefusesBadTextAndIds) {
  EXPECT_THAT(
      tokenizer_->Encode("ab\xFF"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8, byte 2")));
  EXPECT_THAT(
      tokenizer_->Encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a')),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1048577")));
  EXPECT_THAT(tokenizer_->Decode({5, -1}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ids[1]")));
  EXPECT_THAT(tokenizer_->Decode({tokenizer_->vocab_size()}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ids[0]")));
}

TEST_F(TokenizerTest, RefusesWhatIsNoModel) {
  EXPECT_THAT(Tokenizer::Load("no/such.model"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such")));
  EXPECT_THAT(Tokenizer::FromModelBytes("garbage"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("intact")));
  const std::string& good = tokenizer_->model_bytes();
  EXPECT_THAT(Tokenizer::FromModelBytes(good.substr(0, good.size() / 2)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("intact")));
  std::string renamed = good;
  renamed.replace(renamed.find("<pad>"), 5, "<dap>");
  EXPECT_THAT(Tokenizer::FromModelBytes(renamed),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("<pad>")));
}

// The samples of a self-test are text like any other; SentencePiece would
// encode them while it loads the model, and refuse it for a wrong answer.
TEST_F(TokenizerTest, SelfTestsAreNotRun) {
  // Field 4, of samples: field 1, with "a" for an input.
  const std::string self_test = "\x22\x05\x0A\x03\x0A\x01";
  const std::string bytes = tokenizer_->model_bytes() + self_test + "a";
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::FromModelBytes(bytes));
  EXPECT_EQ(tokenizer->model_bytes(), bytes);
  ASSERT_OK_AND_ASSIGN(const auto a, tokenizer->Encode("Afar"));
  ASSERT_OK_AND_ASSIGN(const auto b, tokenizer_->Encode("Afar"));
  EXPECT_EQ(a, b);
}

// A model with flipped bits is either refused, or handles every line without
// taking the process down.
TEST_F(TokenizerTest, AlteredModelsDoNoHarm) {
  const std::string& good = tokenizer_->model_bytes();
  const std::vector<std::string> lines = OddLines();
  int refused = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    std::string altered = good;
    for (uint64_t j = 0; j < 1 + i % 4; ++j) {
      altered[RandomBelow(i, 2 * j, good.size())] ^=
          static_cast<char>(1 << RandomBelow(i, 2 * j + 1, 8));
    }
    const auto tokenizer = Tokenizer::FromModelBytes(altered);
    if (!tokenizer.ok()) {
      ++refused;
      continue;
    }
    for (size_t k = i % 10; k < lines.size(); k += 10) {
      const auto ids = (*tokenizer)->Encode(lines[k]);
      if (ids.ok()) (*tokenizer)->Decode(*ids).status().IgnoreError();
    }
  }
  EXPECT_GT(refused, 50);
}

TEST_F(TokenizerTest, ModelBytesMakeTheSameTokenizer) {
  ASSERT_OK_AND_ASSIGN(const auto copy,
                       Tokenizer::FromModelBytes(tokenizer_->model_bytes()));
  EXPECT_EQ(copy->vocab_size(), tokenizer_->vocab_size());
  ASSERT_OK_AND_ASSIGN(const auto a, copy->Encode("Nouvelle-Zélande"));
  ASSERT_OK_AND_ASSIGN(const auto b, tokenizer_->Encode("Nouvelle-Zélande"));
  EXPECT_EQ(a, b);
}

TEST_F(TokenizerTest, EncodesOnManyThreads) {
  const std::vector<std::string> names = Names();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& name : names) {
    ASSERT_OK_AND_ASSIGN(expected.emplace_back(), tokenizer_->Encode(name));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t n = 0; n < names.size(); ++n) {
        const size_t i = (n + 100 * t) % names.size();
        const auto ids = tokenizer_->Encode(names[i]);
        if (!ids.ok() || *ids != expected[i]) ++wrong[t];
        if (ids.ok() && !tokenizer_->Decode(*ids).ok()) ++wrong[t];
      }
      // Other tokenizers are created and destroyed meanwhile.
      if (!Tokenizer::FromModelBytes(tokenizer_->model_bytes()).ok()) {
        ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// A process can use the tokenizer together with gRPC and protobuf, which both
// clash with SentencePiece's own protobuf.
TEST_F(TokenizerTest, LivesBesideGrpcAndProtobuf) {
  ASSERT_OK(tokenizer_->Encode("before"));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("localhost:0", grpc::InsecureServerCredentials(),
                           &port);
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_GT(port, 0);
  google::protobuf::FileDescriptorProto file;
  file.set_name("a.proto");
  google::protobuf::FileDescriptorProto copy;
  ASSERT_TRUE(copy.ParseFromString(file.SerializeAsString()));
  EXPECT_EQ(copy.name(), "a.proto");
  ASSERT_OK(tokenizer_->Encode("after"));
  server->Shutdown();
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace gshard
