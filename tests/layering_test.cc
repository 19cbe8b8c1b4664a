// The rules of tests/testing/source_rules.h on this source tree, and on small
// made-up trees that break each rule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/failure_table.h"
#include "tests/testing/file_lists.h"
#include "tests/testing/metric_names.h"
#include "tests/testing/source_rules.h"
#include "tests/testing/source_tree.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The project root is the working directory of every test.
const std::vector<SourceFile>& ThisTree() {
  static const std::vector<SourceFile>& files =
      *new std::vector<SourceFile>(ReadSourceTree("."));
  return files;
}

TEST(ThisTreeTest, IsRead) {
  EXPECT_THAT(ThisTree(),
              Contains(Field(&SourceFile::path, "tests/layering_test.cc")));
  EXPECT_THAT(ThisTree(), Contains(Field(&SourceFile::path, "CMakeLists.txt")));
}

// Adds one failure per violation.
void ExpectNone(const std::vector<std::string>& violations) {
  for (const std::string& violation : violations) ADD_FAILURE() << violation;
}

TEST(ThisTreeTest, RoomsUseOnlyRoomsAboveThem) {
  ExpectNone(LayeringViolations(ThisTree()));
}

TEST(ThisTreeTest, LibrariesStayInTheRoomsThatWrapThem) {
  ExpectNone(FenceViolations(ThisTree()));
}

TEST(ThisTreeTest, IsTidy) { ExpectNone(TidyViolations(ThisTree())); }

TEST(ThisTreeTest, EachRowOfTheFailureTableHasItsTest) {
  ExpectNone(FailureTableViolations(ThisTree()));
}

TEST(ThisTreeTest, ListsTheFilesOfATranslationAndOfAStep) {
  ExpectNone(FileListViolations(ThisTree()));
}

TEST(ThisTreeTest, AlertsAndDashboardsAskForMetricsThatThereAre) {
  ExpectNone(MetricNameViolations(ThisTree()));
}

constexpr char kRooms[] =
    "# Rooms, lowest first.\n"
    "set(GSHARD_ROOMS\n  services/base\n  services/moe  # gates\n"
    "  services/model services/rpc\n  services/coordinator\n"
    "  router/admission router/edge router expert_worker client)\n"
    "foreach(room ${GSHARD_ROOMS})\nendforeach()\n";

// A tree of one file that includes `header`.
std::vector<SourceFile> Including(const std::string& path,
                                  const std::string& header) {
  const std::string spelled = header[0] == '<' ? header : '"' + header + '"';
  return {{"CMakeLists.txt", kRooms},
          {path, absl::StrCat("// Made up.\n#include ", spelled, "\n")}};
}

TEST(LayeringTest, ReadsTheListOfRooms) {
  EXPECT_THAT(
      RoomOrder(kRooms),
      ElementsAre("services/base", "services/moe", "services/model",
                  "services/rpc", "services/coordinator", "router/admission",
                  "router/edge", "router", "expert_worker", "client"));
  EXPECT_THAT(LayeringViolations({{"CMakeLists.txt", "set(X y)\n"}}),
              ElementsAre(HasSubstr("lists no rooms")));
}

TEST(LayeringTest, ARoomMayUseItselfAndRoomsAbove) {
  for (const char* header : {"services/base/log.h", "services/moe/gating.h",
                             "<vector>", "absl/status/status.h"}) {
    EXPECT_THAT(LayeringViolations(Including("services/moe/a.cc", header)),
                IsEmpty());
  }
}

TEST(LayeringTest, ARoomMayNotUseRoomsBelow) {
  EXPECT_THAT(
      LayeringViolations(Including("services/moe/a.h", "services/model/b.h")),
      ElementsAre(AllOf(StartsWith("services/moe/a.h:2: "),
                        HasSubstr("must not use services/model"))));
}

TEST(LayeringTest, ARoomMustBeInTheList) {
  EXPECT_THAT(LayeringViolations(Including("services/attic/a.cc", "<vector>")),
              ElementsAre(HasSubstr("services/attic is not in")));
}

TEST(LayeringTest, NobodyButTheClientUsesAProcess) {
  for (const char* from :
       {"services/rpc/a.cc", "router/a.cc", "expert_worker/a.cc"}) {
    for (const char* to : {"client/b.h", "services/coordinator/b.h"}) {
      EXPECT_THAT(LayeringViolations(Including(from, to)),
                  ElementsAre(HasSubstr("only the client uses processes")))
          << from << " " << to;
    }
  }
  EXPECT_THAT(LayeringViolations(Including("router/a.cc", "expert_worker/b.h")),
              ElementsAre(HasSubstr("router must not use expert_worker")));
  EXPECT_THAT(
      LayeringViolations(Including("services/coordinator/a.cc", "router/b.h")),
      ElementsAre(HasSubstr("must not use router")));
  for (const char* to : {"router/b.h", "expert_worker/b.h",
                         "services/coordinator/b.h", "services/rpc/b.h"}) {
    EXPECT_THAT(LayeringViolations(Including("client/up.cc", to)), IsEmpty());
  }
}

TEST(LayeringTest, OnlyTestsUseWhatIsForTests) {
  EXPECT_THAT(LayeringViolations(
                  Including("services/moe/a.cc", "tests/testing/tensors.h")),
              ElementsAre(HasSubstr("is for tests only")));
  EXPECT_THAT(LayeringViolations(Including("tests/services/moe/a_test.cc",
                                           "tests/testing/tensors.h")),
              IsEmpty());
}

TEST(LayeringTest, ARoomMayLieInARoom) {
  EXPECT_THAT(
      LayeringViolations(Including("router/admission/a.cc", "router/edge/b.h")),
      ElementsAre(HasSubstr("must not use router/edge")));
  EXPECT_THAT(
      LayeringViolations(Including("router/admission/a.cc", "router/b.h")),
      ElementsAre(HasSubstr("must not use router, which comes later")));
  EXPECT_THAT(
      LayeringViolations(Including("expert_worker/a.cc", "router/edge/b.h")),
      ElementsAre(HasSubstr("only the client uses processes")));
  for (const char* from : {"router/edge/a.cc", "router/a.cc",
                           "router/edge/inner/a.cc", "client/a.cc"}) {
    EXPECT_THAT(LayeringViolations(Including(from, "router/admission/b.h")),
                IsEmpty())
        << from;
  }
}

TEST(LayeringTest, EachRoomIsInTheMap) {
  std::vector<SourceFile> tree = Including("services/moe/a.cc", "<vector>");
  tree.push_back({"ARCHITECTURE.md",
                  "| `services/base` | x |\n| `services/moe` |\n"
                  "| `services/model` |\n| `services/rpc` |\n"
                  "| `services/coordinator` |\n| `router/edge` |\n"
                  "| `router` |\n| `expert_worker` |\n| `client` |\n"});
  EXPECT_THAT(LayeringViolations(tree),
              ElementsAre(HasSubstr("router/admission has no line")));
}

// An include such as "../model/x.h" would evade the other rules.
TEST(LayeringTest, IncludesAreSpelledFromTheRoot) {
  for (const char* header : {"b.h", "../model/b.h", "services/../model/b.h"}) {
    EXPECT_THAT(LayeringViolations(Including("services/moe/a.cc", header)),
                ElementsAre(HasSubstr("from the project root")));
  }
}

TEST(FenceTest, GrpcIsForTheWireAndTheProcesses) {
  for (const char* header : {"<grpcpp/grpcpp.h>", "grpc/grpc.h",
                             "proto/gshard/v1/expert.grpc.pb.h"}) {
    for (const char* path :
         {"services/moe/a.cc", "services/config/a.cc", "services/cluster/a.h",
          "tests/services/train/a_test.cc", "tests/testing/a.h"}) {
      EXPECT_THAT(FenceViolations(Including(path, header)),
                  ElementsAre(HasSubstr("gRPC header")))
          << path << " " << header;
    }
    for (const char* path :
         {"services/rpc/a.cc", "services/coordinator/a.cc", "router/a.cc",
          "expert_worker/a.h", "client/a.cc", "tests/router/a_test.cc",
          "tests/services/rpc/a_test.cc", "tests/integration/a_test.cc"}) {
      EXPECT_THAT(FenceViolations(Including(path, header)), IsEmpty())
          << path << " " << header;
    }
  }
}

TEST(FenceTest, ProtobufIsForTheWireConfigAndCheckpoints) {
  for (const char* header :
       {"<google/protobuf/text_format.h>", "proto/gshard/v1/tensor.pb.h"}) {
    EXPECT_THAT(FenceViolations(Including("services/config/a.cc", header)),
                IsEmpty());
    EXPECT_THAT(FenceViolations(Including("services/model/a.cc", header)),
                ElementsAre(HasSubstr("protobuf header")));
  }
}

TEST(FenceTest, OneRoomWrapsEachKernelAndTextLibrary) {
  EXPECT_THAT(
      FenceViolations(Including("services/moe/a.cc", "<oneapi/dnnl/dnnl.hpp>")),
      ElementsAre(HasSubstr("oneDNN header")));
  EXPECT_THAT(FenceViolations(Including("services/train/a.cc", "<sqlite3.h>")),
              ElementsAre(HasSubstr("SQLite header")));
  EXPECT_THAT(
      FenceViolations(Including("router/a.cc", "<sentencepiece_processor.h>")),
      ElementsAre(HasSubstr("SentencePiece header")));
}

constexpr char kTidyHeader[] =
    "#ifndef SERVICES_MOE_A_H_\n#define SERVICES_MOE_A_H_\n\n"
    "#endif  // SERVICES_MOE_A_H_\n";

TEST(TidyTest, AcceptsAGuardThatMatchesThePath) {
  EXPECT_THAT(TidyViolations({{"services/moe/a.h", kTidyHeader}}), IsEmpty());
}

TEST(TidyTest, RefusesAGuardOfAnotherPath) {
  for (const std::string& text : {std::string(kTidyHeader), std::string(),
                                  std::string("#pragma once\n")}) {
    EXPECT_THAT(TidyViolations({{"services/moe/b.h", text}}),
                ElementsAre(HasSubstr("must be SERVICES_MOE_B_H_")));
  }
}

TEST(TidyTest, EverySourceFileIsBuilt) {
  const SourceFile test = {"tests/services/moe/a_test.cc", "\n"};
  EXPECT_THAT(TidyViolations({test}),
              ElementsAre(HasSubstr("no CMakeLists.txt names this file")));
  EXPECT_THAT(TidyViolations({test,
                              {"tests/services/moe/CMakeLists.txt",
                               "# gshard_test(a SRCS a_test.cc)\n"
                               "gshard_test(b SRCS aa_test.cc)\n"}}),
              ElementsAre(HasSubstr("no CMakeLists.txt names this file")));
  EXPECT_THAT(TidyViolations({test,
                              {"tests/services/moe/CMakeLists.txt",
                               "gshard_test(a SRCS a_test.cc)\n"}}),
              IsEmpty());
  EXPECT_THAT(TidyViolations({test,
                              {"tests/CMakeLists.txt",
                               "gshard_test(a\n"
                               "  SRCS services/moe/a_test.cc)\n"}}),
              IsEmpty());
}

TEST(TidyTest, RefusesLongFilesAndDrawers) {
  std::string text;
  for (int i = 0; i < 601; ++i) text += "a\n";
  EXPECT_THAT(TidyViolations({{"deploy/long.sh", text}}),
              ElementsAre(HasSubstr("has 601 lines")));
  EXPECT_THAT(TidyViolations({{"deploy/fits.sh", text.substr(2)}}), IsEmpty());
  const std::vector<SourceFile> drawer = {
      {"router/CMakeLists.txt", "gshard_binary(x SRCS string_utils.cc)\n"},
      {"router/string_utils.cc", "\n"}};
  EXPECT_THAT(TidyViolations(drawer), ElementsAre(HasSubstr("not utils")));
}

TEST(TidyTest, RefusesWorkLeftToDoAndTestsSwitchedOff) {
  const auto list = [](const std::string& line) {
    return TidyViolations({{"tests/a.cmake", "\n" + line + "\n"}});
  };
  EXPECT_THAT(list("// TO"
                   "DO: later"),
              ElementsAre(StartsWith("tests/a.cmake:2: ")));
  EXPECT_THAT(list("// FIX"
                   "ME"),
              ElementsAre(HasSubstr("is left")));
  EXPECT_THAT(list("  GTEST_"
                   "SKIP();"),
              ElementsAre(HasSubstr("off")));
  EXPECT_THAT(list("TEST(A, DISABLED"
                   "_B) {"),
              ElementsAre(HasSubstr("off")));
  EXPECT_THAT(list("TO"
                   "DOS and FIX"
                   "MENT are words"),
              IsEmpty());
}

TEST(TidyTest, LocksAreThoseThatClangChecks) {
  const auto list = [](const std::string& path, const std::string& line) {
    return TidyViolations(
        {{path, line + "\n"},
         {"router/CMakeLists.txt", "gshard_binary(x SRCS a.cc)\n"},
         {"tests/router/CMakeLists.txt", "gshard_test(y SRCS a_test.cc)\n"}});
  };
  for (const char* type :
       {"std::mutex", "std::shared_mutex", "std::condition_variable",
        "std::lock_guard", "std::unique_lock", "std::scoped_lock"}) {
    EXPECT_THAT(list("router/a.cc", absl::StrCat("  ", type, " a;")),
                ElementsAre(AllOf(StartsWith("router/a.cc:1: "),
                                  HasSubstr("services/base/mutex.h"),
                                  HasSubstr(type))));
  }
  EXPECT_THAT(list("router/a.cc", "  MutexLock lock(mutex_);"), IsEmpty());
  EXPECT_THAT(list("tests/router/a_test.cc", "  std::mutex mutex;"), IsEmpty());
}

// A tree with a failure table of one row, a test and a script.
std::vector<SourceFile> WithRow(const std::string& row) {
  return {{"ARCHITECTURE.md",
           absl::StrCat("| what fails | who | what | seen | shown by |\n",
                        "|---|---|---|---|---|\n", row, "\n\nText.\n")},
          {"tests/a_test.cc", "TEST_F(ATest,\n       Holds) {}\n"},
          {"tests/fault/b.sh", "true\n"}};
}

TEST(FailureTableTest, NamesTestsThatThereAre) {
  EXPECT_THAT(FailureTableViolations(WithRow("| a | b | c | d | `ATest.Holds`, "
                                             "`tests/fault/b.sh` |")),
              IsEmpty());
  EXPECT_THAT(
      FailureTableViolations(WithRow("| a | b | c | d | `ATest.Fails` |")),
      ElementsAre("ARCHITECTURE.md:3: there is no test ATest.Fails"));
  EXPECT_THAT(FailureTableViolations(WithRow("| a | b | c | d | later |")),
              ElementsAre(HasSubstr("no test is named")));
  EXPECT_THAT(
      FailureTableViolations(WithRow("| a | b | | d | `ATest.Holds` |")),
      ElementsAre(HasSubstr("a cell is empty")));
  EXPECT_THAT(FailureTableViolations(WithRow("| a | b | `ATest.Holds` |")),
              ElementsAre(HasSubstr("expected 5 cells, got 3")));
  EXPECT_THAT(FailureTableViolations({{"ARCHITECTURE.md", "Text.\n"}}),
              ElementsAre(HasSubstr("no table of failures")));
}

// A tree with two file lists, the second of which has `items`, and the files.
std::vector<SourceFile> WithList(const std::string& items) {
  return {{"ARCHITECTURE.md",
           absl::StrCat("### The 2 files that a call passes\n\n`Text`.\n\n",
                        "- `a`: `one`,\n  then `two`.\n\n`Text`.\n\n",
                        "### The 2 files that a step passes\n", items)},
          {"a/one.cc", "\n"},
          {"a/two.h", "\n"},
          {"a/two.cc", "\n"},
          {"b/three.h", "\n"}};
}

TEST(FileListsTest, NameFilesThatThereAreAndAsManyAsTheySay) {
  EXPECT_THAT(FileListViolations(WithList("- `a`: `two`.\n- `b`: `three`.\n")),
              IsEmpty());
  EXPECT_THAT(FileListViolations(WithList("- `a`: `two`.\n")),
              ElementsAre("ARCHITECTURE.md:10: says 2 files, and lists 1"));
  EXPECT_THAT(
      FileListViolations(WithList("- `a`: `one`, `two`.\n- `b`: `three`.\n")),
      ElementsAre("ARCHITECTURE.md:10: says 2 files, and lists 3"));
  EXPECT_THAT(FileListViolations(WithList("- `a`: `two`.\n- `b`: `four`.\n")),
              ElementsAre("ARCHITECTURE.md:12: there is no file b/four"));
  EXPECT_THAT(FileListViolations(WithList("- `a`: `one`, `two`, `two`.\n")),
              ElementsAre("ARCHITECTURE.md:11: a/two is listed twice"));
  EXPECT_THAT(FileListViolations({{"ARCHITECTURE.md", "Text.\n"}}),
              ElementsAre(HasSubstr("expected the lists")));
}

// A tree with a monitoring rule, and code with a counter and a histogram.
std::vector<SourceFile> WithRule(const std::string& expression) {
  return {
      {"deploy/monitoring/rules.yml", "groups:\n" + expression + "\n"},
      {"router/metrics.cc", "Add(\"gshard_a_total\", \"gshard_b_seconds\")"},
      {"tests/a_test.cc", "Expect(\"gshard_c_total\")"}};
}

TEST(MetricNamesTest, AreThoseThatCodeDefines) {
  EXPECT_THAT(MetricNameViolations(WithRule(
                  "gshard:mine gshard_a_total{job=~\"gshard_router|gshard_.*\"}"
                  " / gshard_b_seconds_bucket")),
              IsEmpty());
  for (const char* unknown :
       {"gshard_a", "gshard_a_totals", "gshard_c_total"}) {
    EXPECT_THAT(MetricNameViolations(WithRule(unknown)),
                ElementsAre(absl::StrCat("deploy/monitoring/rules.yml:2: there "
                                         "is no metric ",
                                         unknown)));
  }
  std::vector<SourceFile> files = WithRule("gshard_a_total");
  files.push_back({"deploy/kubernetes/scaler.yaml", "query: gshard_d\n"});
  EXPECT_THAT(
      MetricNameViolations(files),
      ElementsAre(HasSubstr("scaler.yaml:1: there is no metric gshard_d")));
  EXPECT_THAT(MetricNameViolations(WithRule("up == 0")),
              ElementsAre(HasSubstr("no metric is asked for")));
}

}  // namespace
}  // namespace gshard
