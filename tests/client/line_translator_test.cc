#include "client/line_translator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/line_source.h"
#include "router/edge/translate_request.h"
#include "services/base/retry_delay.h"
#include "tests/client/fake_router.h"
#include "tests/client/text_input.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

struct Translated {
  absl::Status status;
  std::vector<std::string> lines;
  std::vector<std::string> errors;  // of lines
};

Translated TranslateAll(LineTranslatorOptions options,
                        std::vector<std::string> texts) {
  options.first_pause = std::chrono::milliseconds(1);
  auto translator = LineTranslator::Create(std::move(options));
  EXPECT_OK(translator);
  Translated translated;
  translated.status =
      (*translator)
          ->Translate(
              LinesOfTexts(std::move(texts), {.language = "de"}),
              [&](const SourceLine& line, const v1::TranslationResult* result) {
                if (!line.error.ok()) {
                  EXPECT_EQ(result, nullptr);
                  translated.errors.emplace_back(line.error.message());
                }
                EXPECT_EQ(line.number,
                          static_cast<int64_t>(translated.lines.size()) + 1);
                translated.lines.push_back(
                    result == nullptr ? "" : result->hypotheses(0).text());
              });
  return translated;
}

std::vector<std::string> Numbered(int count) {
  std::vector<std::string> texts;
  for (int i = 1; i <= count; ++i) texts.push_back(absl::StrCat("t", i));
  return texts;
}

TEST(LineTranslatorTest, KeepsOrderOverManyCalls) {
  FakeRouter router;
  // The first call and a later one each answer only after the other has
  // arrived, so two calls are in flight and answers can be out of order.
  std::mutex mutex;
  std::condition_variable changed;
  bool first = false, later = false;
  router.Refuse([&](int, const v1::TranslateRequest& request) {
    std::unique_lock<std::mutex> lock(mutex);
    const bool is_first = request.sentences(0).text() == "t1";
    (is_first ? first : later) = true;
    changed.notify_all();
    changed.wait(lock, [&] { return is_first ? later : first; });
    return absl::OkStatus();
  });
  const Translated translated = TranslateAll({.routers = {router.address()},
                                              .sentences_per_call = 64,
                                              .calls_in_flight = 3},
                                             Numbered(300));
  ASSERT_OK(translated.status);
  ASSERT_EQ(translated.lines.size(), 300u);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(translated.lines[i], absl::StrCat("de:T", i + 1));
  }
  EXPECT_EQ(router.requests().size(), 5u);  // of 64 sentences each
  EXPECT_LE(router.most_at_a_time(), 3);
  EXPECT_GE(router.most_at_a_time(), 2);
}

// A router counts tokens once for each hypothesis.
TEST(LineTranslatorTest, LongLinesWithManyHypothesesAreSentInSmallCalls) {
  FakeRouter router;
  LineTranslatorOptions options{.routers = {router.address()},
                                .sentences_per_call = 64};
  const std::vector<std::string> texts(4, std::string(4096, 'a'));
  ASSERT_OK(TranslateAll(options, texts).status);
  EXPECT_EQ(router.requests().size(), 1u);
  options.search.set_beam_size(32);
  ASSERT_OK(TranslateAll(options, texts).status);
  ASSERT_EQ(router.requests().size(), 3u);
  EXPECT_EQ(router.requests()[1].sentences_size(), 2);
  EXPECT_EQ(router.requests()[2].sentences_size(), 2);
}

TEST(LineTranslatorTest, BlankLinesStayBlankAndAreNotSent) {
  FakeRouter router;
  const Translated translated = TranslateAll({.routers = {router.address()}},
                                             {"", "a", "  ", "b", "\t", ""});
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("", "de:A", "", "de:B", "", ""));
  ASSERT_EQ(router.requests().size(), 1u);
  EXPECT_EQ(router.requests()[0].sentences_size(), 2);
}

TEST(LineTranslatorTest, LinesThatDoNotShowAreBlank) {
  FakeRouter router;
  const Translated translated = TranslateAll({.routers = {router.address()}},
                                             {"\u00A0", "a", "\uFEFF\u3000\t"});
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("", "de:A", ""));
  EXPECT_EQ(router.requests().at(0).sentences_size(), 1);
}

// The client holds back calls that the router would leave unread, because their
// deadlines would run meanwhile.
TEST(LineTranslatorTest, SendsNoMoreThanARouterReads) {
  FakeRouter router;
  // Calls wait up to 200 ms so that an excess call has time to arrive.
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  router.Refuse([&](int, const v1::TranslateRequest&) {
    std::unique_lock<std::mutex> lock(mutex);
    ++arrived;
    changed.notify_all();
    changed.wait_for(lock, std::chrono::milliseconds(200),
                     [&] { return arrived > 256 / 64; });
    return absl::OkStatus();
  });
  const Translated translated = TranslateAll({.routers = {router.address()},
                                              .sentences_per_call = 64,
                                              .calls_in_flight = 32},
                                             Numbered(1000));
  ASSERT_OK(translated.status);
  EXPECT_EQ(translated.lines.size(), 1000u);
  EXPECT_LE(router.most_at_a_time(), 256 / 64);
}

TEST(LineTranslatorTest, NothingButBlankLinesNeedsNoCall) {
  FakeRouter router;
  const Translated translated =
      TranslateAll({.routers = {router.address()}}, {"", ""});
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("", ""));
  EXPECT_TRUE(router.requests().empty());
}

TEST(LineTranslatorTest, NamesTheLineOfARefusedSentence) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest& request) {
    for (int i = 0; i < request.sentences_size(); ++i) {
      if (request.sentences(i).text() == "t5") {
        return absl::InvalidArgumentError(
            absl::StrCat("sentences[", i, "].text: too many tokens"));
      }
    }
    return absl::OkStatus();
  });
  // Two sentences per call; line 2 is blank, so line 5 is in the third call.
  std::vector<std::string> texts = Numbered(8);
  texts[1] = "";
  const Translated translated = TranslateAll(
      {.routers = {router.address()}, .sentences_per_call = 2}, texts);
  EXPECT_THAT(translated.status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("line 5: sentences[0].text: too many")));
  EXPECT_THAT(translated.lines, ElementsAre("de:T1", "", "de:T3", "de:T4"));
}

TEST(LineTranslatorTest, NamesTheLinesOfAFailedCall) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::NotFoundError("no model x");
  });
  EXPECT_THAT(
      TranslateAll({.routers = {router.address()}, .model = "x"}, Numbered(3))
          .status,
      StatusIs(absl::StatusCode::kNotFound, "lines 1 to 3: no model x"));
  EXPECT_EQ(router.requests()[0].model(), "x");
}

TEST(LineTranslatorTest, RefusesBadTextBehindTheLinesBeforeIt) {
  FakeRouter router;
  const Translated malformed =
      TranslateAll({.routers = {router.address()}}, {"a", "b\xff", "c"});
  EXPECT_THAT(malformed.status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "line 2: expected UTF-8, got byte 255 at offset 1"));
  EXPECT_THAT(malformed.lines, ElementsAre("de:A"));
  EXPECT_THAT(TranslateAll({.routers = {router.address()}},
                           {std::string(kMaxTextBytes + 1, 'x')})
                  .status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "line 1: expected at most 16384 bytes, got 16385"));
}

TEST(LineTranslatorTest, LinesWithErrorsStayBlankOnRequest) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest& request) {
    for (int i = 0; i < request.sentences_size(); ++i) {
      const std::string at = absl::StrCat("sentences[", i, "]");
      if (request.sentences(i).text() == "t5") {
        return absl::InvalidArgumentError(at + ".text: too many tokens");
      }
      if (request.sentences(i).text() == "t6") {
        return absl::ResourceExhaustedError(at + ": too many positions");
      }
    }
    return absl::OkStatus();
  });
  std::vector<std::string> texts = Numbered(6);
  texts[1] = "b\xff";
  texts[3] = std::string(kMaxTextBytes + 1, 'x');
  const Translated translated = TranslateAll(
      {.routers = {router.address()}, .blank_errors = true}, texts);
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("de:T1", "", "de:T3", "", "", ""));
  EXPECT_THAT(
      translated.errors,
      ElementsAre(StartsWith("line 2: expected UTF-8"),
                  StartsWith("line 4: expected at most"),
                  StartsWith("line 5: sentences[2].text: too many tokens"),
                  StartsWith("line 6: sentences[2]: too many positions")));
  EXPECT_THAT(router.requests(), SizeIs(3));

  // Nothing is sent once no sentence is left; another error still ends it.
  const Translated none = TranslateAll(
      {.routers = {router.address()}, .blank_errors = true}, {"t5", "t6"});
  ASSERT_OK(none.status);
  EXPECT_THAT(none.lines, ElementsAre("", ""));
  EXPECT_THAT(router.requests(), SizeIs(5));
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::InvalidArgumentError("sentences[1].text: not one it was sent");
  });
  EXPECT_THAT(
      TranslateAll({.routers = {router.address()}, .blank_errors = true}, {"a"})
          .status,
      StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("line 1: ")));
}

// A request that is no UTF-8 would end the stream, and other calls with it.
TEST(LineTranslatorTest, ALanguageThatIsNoUtf8IsNotSent) {
  FakeRouter router;
  auto translator = LineTranslator::Create(
      {.routers = {router.address()}, .blank_errors = true});
  ASSERT_OK(translator);
  std::vector<std::string> errors;
  ASSERT_OK((*translator)
                ->Translate(
                    LinesOfTexts({"de\ta", "\xff\tb", "de\tc"},
                                 {.tab_separated = true}),
                    [&](const SourceLine& line, const v1::TranslationResult*) {
                      if (line.error.ok()) return;
                      errors.emplace_back(line.error.message());
                    }));
  EXPECT_THAT(errors,
              ElementsAre("line 2: language: expected UTF-8, got byte 255 at "
                          "offset 0"));
  ASSERT_THAT(router.requests(), SizeIs(1));
  EXPECT_EQ(router.requests()[0].sentences_size(), 2);
}

// Patience limits the pauses that a router asks for, too.
TEST(LineTranslatorTest, WaitsNoLongerThanItsPatience) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return WithRetryDelay(absl::ResourceExhaustedError("full"),
                          std::chrono::hours(1));
  });
  EXPECT_THAT(
      TranslateAll({.routers = {router.address()},
                    .patience = std::chrono::milliseconds(10)},
                   {"a"})
          .status,
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
  EXPECT_THAT(router.requests(), SizeIs(2));
}

TEST(LineTranslatorTest, SendsAgainWhatARouterHadNoTimeFor) {
  FakeRouter busy, idle;
  busy.Refuse([](int, const v1::TranslateRequest&) {
    return absl::ResourceExhaustedError("the queue is full");
  });
  const Translated translated = TranslateAll(
      {.routers = {busy.address(), idle.address()}, .calls_in_flight = 1},
      {"a"});
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("de:A"));
  EXPECT_EQ(busy.requests().size(), 1u);
}

TEST(LineTranslatorTest, AsksOnceMoreWhatWasNotAnsweredInTime) {
  FakeRouter router;
  router.Refuse([](int call, const v1::TranslateRequest&) {
    return call == 0 ? absl::DeadlineExceededError("late") : absl::OkStatus();
  });
  EXPECT_OK(TranslateAll({.routers = {router.address()}}, {"a"}).status);
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::DeadlineExceededError("late");
  });
  EXPECT_THAT(TranslateAll({.routers = {router.address()}}, {"a"}).status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, "line 1: late"));
  EXPECT_THAT(router.requests(), SizeIs(4));
}

TEST(LineTranslatorTest, GoesToTheRoutersThatCameInstead) {
  FakeRouter router;
  const std::string gone = FakeRouter().address();
  int found = 0;
  const Translated translated = TranslateAll(
      {.routers = {gone},
       .find_routers = [&]() -> absl::StatusOr<std::vector<std::string>> {
         ++found;
         return std::vector<std::string>{router.address()};
       },
       .sentences_per_call = 1},
      Numbered(4));
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines,
              ElementsAre("de:T1", "de:T2", "de:T3", "de:T4"));
  EXPECT_GE(found, 1);
}

// A router that is restarted is missing for a while.
TEST(LineTranslatorTest, GoesBackToARouterThatIsBack) {
  FakeRouter stays, back;
  back.Refuse([](int call, const v1::TranslateRequest&) {
    return call == 0 ? absl::UnavailableError("restart") : absl::OkStatus();
  });
  std::atomic<bool> gone{true};
  auto translator = LineTranslator::Create(
      {.routers = {stays.address(), back.address()},
       .find_routers = [&]() -> absl::StatusOr<std::vector<std::string>> {
         if (gone.exchange(false)) return std::vector{stays.address()};
         return std::vector{stays.address(), back.address()};
       },
       .sentences_per_call = 1,
       .first_pause = std::chrono::milliseconds(1)});
  ASSERT_OK(translator);
  int64_t lines = 0;
  ASSERT_OK(
      (*translator)
          ->Translate(
              {.next = [&]() -> absl::StatusOr<std::optional<SourceLine>> {
                if (back.requests().size() > 1) {
                  return std::nullopt;
                }
                SourceLine line;
                line.number = ++lines;
                line.text = "t";
                return line;
              }},
              [](const SourceLine&, const v1::TranslationResult*) {}));
}

TEST(LineTranslatorTest, StaysWithItsRoutersIfNobodyKnowsOthers) {
  FakeRouter router;
  router.Refuse([](int call, const v1::TranslateRequest&) {
    return call == 0 ? absl::UnavailableError("restart") : absl::OkStatus();
  });
  EXPECT_OK(TranslateAll({.routers = {router.address()},
                          .find_routers =
                              []() -> absl::StatusOr<std::vector<std::string>> {
                            return absl::UnavailableError("restart");
                          }},
                         {"a"})
                .status);
}

TEST(LineTranslatorTest, GivesUpWhenItsPatienceIsOver) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::UnavailableError("a worker is lost");
  });
  EXPECT_THAT(
      TranslateAll({.routers = {router.address()},
                    .patience = std::chrono::milliseconds(20)},
                   {"a"})
          .status,
      StatusIs(absl::StatusCode::kUnavailable, "line 1: a worker is lost"));
  EXPECT_GE(router.requests().size(), 2u);
}

TEST(LineTranslatorTest, SaysOnceForEachCodeThatItWaits) {
  FakeRouter router;
  router.Refuse([](int call, const v1::TranslateRequest&) {
    return call >= 8 ? absl::OkStatus()
           : call % 2 == 0
               ? absl::UnavailableError("no model")
               : WithRetryDelay(absl::ResourceExhaustedError("full"),
                                std::chrono::milliseconds(1));
  });
  std::vector<std::string> said;
  const auto waits = [&](std::chrono::milliseconds left,
                         const absl::Status& why) {
    EXPECT_GT(left, std::chrono::seconds(50));
    said.emplace_back(why.message());
  };
  EXPECT_OK(TranslateAll({.routers = {router.address()},
                          .sentences_per_call = 1,
                          .waits = waits},
                         {"a", "b"})
                .status);
  EXPECT_THAT(said,
              UnorderedElementsAre(HasSubstr("no model"), HasSubstr("full")));
}

TEST(LineTranslatorTest, ComesBackAsOftenAsItIsAsked) {
  FakeRouter router;
  router.Refuse([](int call, const v1::TranslateRequest&) {
    return call >= 5 ? absl::OkStatus()
                     : WithRetryDelay(absl::ResourceExhaustedError("full"),
                                      std::chrono::milliseconds(1));
  });
  LineTranslatorOptions options = {.routers = {router.address()},
                                   .first_pause = std::chrono::milliseconds(1)};
  EXPECT_OK(TranslateAll(options, {"a"}).status);
  EXPECT_EQ(router.requests().size(), 6u);
  // Retries end with the patience.
  router.Refuse([](int, const v1::TranslateRequest&) {
    return WithRetryDelay(absl::ResourceExhaustedError("full"),
                          std::chrono::milliseconds(1));
  });
  options.patience = std::chrono::milliseconds(100);
  EXPECT_FALSE(TranslateAll(options, {"a"}).status.ok());
}

TEST(LineTranslatorTest, GoesOnWhereALostStreamEnded) {
  FakeRouter router;
  router.BreakStreams();
  const Translated translated = TranslateAll({.routers = {router.address()},
                                              .sentences_per_call = 1,
                                              .calls_in_flight = 2},
                                             Numbered(6));
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines, ElementsAre("de:T1", "de:T2", "de:T3", "de:T4",
                                            "de:T5", "de:T6"));
}

TEST(LineTranslatorTest, GoesToTheOthersWhenARouterIsGone) {
  FakeRouter router;
  const std::string gone = FakeRouter().address();
  const Translated translated =
      TranslateAll({.routers = {gone, router.address()},
                    .sentences_per_call = 1,
                    .calls_in_flight = 2},
                   Numbered(4));
  ASSERT_OK(translated.status);
  EXPECT_THAT(translated.lines,
              ElementsAre("de:T1", "de:T2", "de:T3", "de:T4"));
  EXPECT_EQ(router.requests().size(), 4u);
}

TEST(LineTranslatorTest, RoutersWithoutStreamsAreCalledOneByOne) {
  FakeRouter router;
  router.ForgetStreams();
  const Translated translated = TranslateAll(
      {.routers = {router.address()}, .sentences_per_call = 2}, Numbered(5));
  ASSERT_OK(translated.status);
  EXPECT_EQ(translated.lines.size(), 5u);
  EXPECT_EQ(router.requests().size(), 3u);
}

TEST(LineTranslatorTest, WaitsAsLongAsItIsAsked) {
  FakeRouter router;
  std::atomic<int> calls = 0;
  std::chrono::steady_clock::time_point first, second;
  router.Refuse([&](int call, const v1::TranslateRequest&) {
    (call == 0 ? first : second) = std::chrono::steady_clock::now();
    ++calls;
    return call > 0 ? absl::OkStatus()
                    : WithRetryDelay(absl::ResourceExhaustedError("full"),
                                     std::chrono::milliseconds(50));
  });
  ASSERT_OK(TranslateAll({.routers = {router.address()}}, {"a"}).status);
  EXPECT_EQ(calls, 2);
  EXPECT_GE(second - first, std::chrono::milliseconds(50));
}

// A caller that writes each line after the previous answer, like a user of a
// co-process, gets each answer while the input stays open.
TEST(LineTranslatorTest, APipeThatPausesGetsItsAnswers) {
  FakeRouter router;
  ASSERT_OK_AND_ASSIGN(const auto translator,
                       LineTranslator::Create({.routers = {router.address()}}));
  PipeInput in;
  in.Write("a\n");
  std::vector<std::string> answers;
  ASSERT_OK(translator->Translate(
      LinesOfFile(in.file(), {.language = "de"}),
      [&](const SourceLine&, const v1::TranslationResult* result) {
        answers.push_back(result->hypotheses(0).text());
        // The second line is written only after the first answer.
        answers.size() == 1 ? in.Write("b\n") : in.End();
      }));
  EXPECT_THAT(answers, ElementsAre("de:A", "de:B"));
  EXPECT_EQ(router.requests().size(), 2u);
}

TEST(LineTranslatorTest, LinesThatComeMeanwhileDoNotWaitForAnswers) {
  FakeRouter router;
  PipeInput in;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  // The first call is answered only after the second arrives; the second line
  // is written while the first call is in flight.
  router.Refuse([&](int call, const v1::TranslateRequest&) {
    std::unique_lock<std::mutex> lock(mutex);
    ++arrived;
    changed.notify_all();
    if (call == 0) {
      in.Write("b\n");
      in.End();
      changed.wait(lock, [&] { return arrived == 2; });
    }
    return absl::OkStatus();
  });
  ASSERT_OK_AND_ASSIGN(const auto translator,
                       LineTranslator::Create({.routers = {router.address()}}));
  in.Write("a\n");
  int answers = 0;
  ASSERT_OK(translator->Translate(
      LinesOfFile(in.file(), {}),
      [&](const SourceLine&, const v1::TranslationResult*) { ++answers; }));
  EXPECT_EQ(answers, 2);
}

TEST(LineTranslatorTest, LinesThatAreThereTravelTogether) {
  FakeRouter router;
  ASSERT_OK_AND_ASSIGN(const auto translator,
                       LineTranslator::Create({.routers = {router.address()}}));
  PipeInput in;
  in.Write("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
  in.End();
  ASSERT_OK(translator->Translate(
      LinesOfFile(in.file(), {}),
      [](const SourceLine&, const v1::TranslationResult*) {}));
  EXPECT_EQ(router.requests().size(), 2u);  // of 8 and 2 lines
}

TEST(LineTranslatorTest, NamesTheRouterThatCannotBeReached) {
  const Translated translated = TranslateAll(
      {.routers = {"127.0.0.1:1"}, .patience = std::chrono::milliseconds(1)},
      {"a"});
  EXPECT_THAT(translated.status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(StartsWith("line 1: router 127.0.0.1:1: "),
                             HasSubstr("onnection refused"))));
}

TEST(LineTranslatorTest, NamesTheRouterThatDoesNotAnswer) {
  FakeRouter router;
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  router.Refuse([ended](int, const v1::TranslateRequest&) {
    ended.wait();
    return absl::OkStatus();
  });
  EXPECT_THAT(TranslateAll({.routers = {router.address()},
                            .timeout = std::chrono::milliseconds(50)},
                           {"a"})
                  .status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat("line 1: router ", router.address(),
                                    " did not answer")));
  end.set_value();
}

TEST(LineTranslatorTest, NeedsRouters) {
  EXPECT_THAT(LineTranslator::Create({}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a router's address")));
  EXPECT_THAT(
      LineTranslator::Create({.routers = {"nowhere"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
}

}  // namespace
}  // namespace gshard
