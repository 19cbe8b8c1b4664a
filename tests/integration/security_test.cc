// A cluster with mutual TLS on every link and tokens for clients: it works,
// refuses unauthorized callers, and logs calls without their contents.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/gshard/v1/expert.grpc.pb.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/subprocess.h"
#include "services/checkpoint/sha256.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kBossToken[] = "canary-token-of-the-boss";
constexpr char kShopToken[] = "canary-token-of-the-shop";
constexpr char kTrainerToken[] = "canary-token-of-the-trainer";
constexpr char kTitlesToken[] = "canary-token-for-titles";
constexpr char kText[] = "Kanarienvogel";
constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";

class SecureClusterTest : public ::testing::Test {
 protected:
  SecurityOptions With(const std::string& name,
                       const std::string& token = "") const {
    SecurityOptions options{.tls_certificate = files_.Certificate(name),
                            .tls_key = files_.Key(name),
                            .tls_ca = files_.Authority()};
    if (!token.empty()) {
      options.token_file = files_.Write(Sha256(token), token);
    }
    return options;
  }
  ClusterSecurity Security() const {
    ClusterSecurity security{.members = With("member"),
                             .client = With("ops", kBossToken)};
    security.members.auth_file = files_.Write(
        "callers",
        absl::StrCat("member certificate member.gshard expert\n", "boss token ",
                     Sha256(kBossToken), " translate,train,admin\n",
                     "shop token ", Sha256(kShopToken), " translate\n",
                     "trainer token ", Sha256(kTrainerToken), " train\n",
                     "titles token ", Sha256(kTitlesToken),
                     " translate:titles-*\n"));
    return security;
  }

  static std::shared_ptr<grpc::Channel> Channel(
      const std::string& address, const SecurityOptions& options) {
    return *CreateChannel(address,
                          {.security = *Security::CreateForClient(options)});
  }

  static absl::Status Translate(const std::shared_ptr<grpc::Channel>& channel,
                                grpc::ClientContext& context,
                                const std::string& model = "names") {
    v1::TranslateRequest request;
    request.set_model(model);
    request.mutable_options()->set_greedy(true);
    v1::Sentence& sentence = *request.add_sentences();
    sentence.set_text(kText);
    sentence.set_source_language("de");
    v1::TranslateResponse response;
    SetDeadline(context);
    return FromGrpcStatus(v1::TranslationService::NewStub(channel)->Translate(
        &context, request, &response));
  }
  static absl::Status Translate(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& model = "names") {
    grpc::ClientContext context;
    return Translate(channel, context, model);
  }

  static absl::Status Submit(const std::shared_ptr<grpc::Channel>& channel,
                             const TrainingJob& job) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::SubmitJobRequest request;
    *request.mutable_job() = TrainingJobToProto(job);
    v1::SubmitJobResponse response;
    return FromGrpcStatus(v1::CoordinatorService::NewStub(channel)->SubmitJob(
        &context, request, &response));
  }

  static absl::Status RunStream(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream =
        v1::ExpertWorkerService::NewStub(channel)->Run(&context);
    stream->WritesDone();
    return FromGrpcStatus(stream->Finish());
  }

  const Certificates files_;
  const TemporaryDirectory directory_;
};

// The lines of a log that contain `what`.
std::string LinesWith(const std::string& log, const std::string& what) {
  std::istringstream lines(log);
  std::string found, line;
  while (std::getline(lines, line)) {
    if (line.find(what) != std::string::npos) found += line + "\n";
  }
  return found;
}

TEST_F(SecureClusterTest, TrainsAndTranslates) {
  ::testing::internal::CaptureStderr();
  SetLogThreshold(LogSeverity::kDebug);
  {
    Cluster cluster(2, 2, ReduceWay::kCoordinator, Security());
    TrainingJob job = NamesJob(directory_.path());
    job.steps = 4;
    job.min_workers = 2;
    job.serve_as = "names";
    ASSERT_OK(cluster.Train(job).status());

    const std::string router = cluster.router(0).address();
    const auto shop = Channel(router, With("ops", kShopToken));
    grpc::ClientContext context;
    context.AddMetadata("traceparent",
                        absl::StrCat("00-", kTraceId, "-b7ad6b7169203331-01"));
    context.AddMetadata("x-request-id", "order-7");
    EXPECT_OK(Translate(shop, context));
    EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 1u);
    EXPECT_THAT(Translate(shop, "absent"),
                StatusIs(absl::StatusCode::kNotFound, _));

    // Callers without the required role or credentials.
    constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
    constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
    const std::string worker = cluster.worker(0).address();
    EXPECT_THAT(RunStream(Channel(worker, With("ops", kShopToken))),
                StatusIs(kDenied, HasSubstr("expert")));
    EXPECT_THAT(RunStream(Channel(worker, With("ops"))),
                StatusIs(kUnauthenticated, _));
    EXPECT_OK(RunStream(Channel(worker, With("member"))));
    EXPECT_THAT(Translate(Channel(router, With("member"))),
                StatusIs(kDenied, HasSubstr("translate")));
    EXPECT_THAT(Translate(Channel(router, With("ops", kTitlesToken))),
                StatusIs(kDenied, HasSubstr("'names'")));
    EXPECT_THAT(Translate(Channel(router, {})),
                StatusIs(absl::StatusCode::kUnavailable, _));
    grpc::ClientContext unload_context;
    SetDeadline(unload_context);
    v1::UnloadModelResponse unloaded;
    EXPECT_THAT(
        FromGrpcStatus(
            v1::CoordinatorService::NewStub(
                Channel(cluster.coordinator_address(), With("ops", kShopToken)))
                ->UnloadModel(&unload_context, {}, &unloaded)),
        StatusIs(kDenied, HasSubstr("admin")));
  }
  SetLogThreshold(LogSeverity::kInfo);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, Not(HasSubstr("canary")));
  EXPECT_THAT(log, Not(HasSubstr(kText)));
  EXPECT_THAT(log, Not(HasSubstr("PRIVATE KEY")));

  // Audited actions are logged, including those that the guard refuses.
  const std::string audit = LinesWith(log, "\"message\":\"audit\"");
  for (const char* act :
       {"submit\",\"caller\":\"boss", "serve_as\",\"caller\":\"boss",
        "unload\",\"caller\":\"shop"}) {
    const std::string one =
        LinesWith(audit, absl::StrCat("\"act\":\"", act, "\""));
    EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 1) << act << audit;
  }
  EXPECT_EQ(std::count(audit.begin(), audit.end(), '\n'), 3) << audit;

  // The trace passes from the client via the router to the workers.
  const std::string traced = LinesWith(log, kTraceId);
  EXPECT_THAT(LinesWith(traced, "/Translate"), HasSubstr("order-7"));
  EXPECT_THAT(traced, HasSubstr("ran a segment"));
  // A step's trace passes from the coordinator via a router to the workers.
  const std::string pushed = LinesWith(log, "/PushGradients");
  ASSERT_THAT(pushed, HasSubstr("\"trace_id\":\""));
  const std::string step = pushed.substr(pushed.find("\"trace_id\":\""), 45);
  EXPECT_THAT(LinesWith(log, step), HasSubstr("ran a segment"));
}

// A caller with only the training role cannot replace a served model.
TEST_F(SecureClusterTest, ATrainerReplacesNoModel) {
  Cluster cluster(1, 1, ReduceWay::kCoordinator, Security());
  TrainingJob job = NamesJob(directory_.path());
  job.steps = 2;
  job.serve_as = "names";
  ASSERT_OK(cluster.Train(job).status());
  const auto served = [&] {
    std::vector<std::string> sessions;
    const v1::DescribeResponse state = cluster.Describe();
    for (const auto& info : state.sessions()) {
      sessions.push_back(info.session());
    }
    return sessions;
  };
  ASSERT_THAT(served(), ElementsAre("names@2"));
  const auto trainer =
      Channel(cluster.coordinator_address(), With("ops", kTrainerToken));
  job.name = "takeover";
  job.steps = 3;
  job.checkpoint.directory += "-takeover";
  EXPECT_THAT(Submit(trainer, job),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("serve_as"), HasSubstr("role admin"))));
  EXPECT_FALSE(std::filesystem::exists(job.checkpoint.directory));
  // Without serve_as, the same job is accepted.
  job.serve_as.clear();
  EXPECT_OK(Submit(trainer, job));
  EXPECT_THAT(served(), Contains("names@2"));
}

// Runs the `gshard` program with flags and the environment.
TEST_F(SecureClusterTest, TheCommandShowsItsToken) {
  Cluster cluster(1, 1, ReduceWay::kCoordinator, Security());
  cluster.WaitForMembers();
  const auto describe = [&](const std::string& token) {
    const SecurityOptions options = With("ops", token);
    return RunSubprocess(
        {std::string(GSHARD_PROGRAMS) + "/gshard", "describe",
         "--coordinator=" + cluster.coordinator_address(),
         "--tls_ca=" + options.tls_ca, "--tls_key=" + options.tls_key,
         "--tls_certificate=" + options.tls_certificate},
        {.environment = {"GSHARD_TOKEN_FILE=" + options.token_file},
         .working_directory = {}});
  };
  ASSERT_OK_AND_ASSIGN(const SubprocessResult boss, describe(kBossToken));
  EXPECT_EQ(boss.exit_code, 0) << boss.error_output;
  EXPECT_THAT(boss.output, HasSubstr("worker-0"));
  ASSERT_OK_AND_ASSIGN(const SubprocessResult guess, describe("guess"));
  EXPECT_EQ(guess.exit_code, 1);
  EXPECT_THAT(guess.error_output, HasSubstr("the token is not valid"));
}

// Redirects stderr to a file that can be read while the test runs.
class StderrInFile {
 public:
  explicit StderrInFile(std::string path)
      : path_(std::move(path)), stderr_(::dup(STDERR_FILENO)) {
    const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && ::dup2(file, STDERR_FILENO) >= 0);
    ::close(file);
  }
  ~StderrInFile() {
    ::dup2(stderr_, STDERR_FILENO);
    ::close(stderr_);
  }

  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const std::string path_;
  const int stderr_;
};

// Without a member certificate of the cluster's authority, no process joins.
TEST_F(SecureClusterTest, StrangersDoNotJoin) {
  Cluster cluster(1, 1, ReduceWay::kCoordinator, Security());
  cluster.WaitForMembers();
  const Certificates others;
  ExpertWorkerOptions options;
  options.process.listen = "unix:" + directory_.path() + "/stranger";
  options.process.name = "stranger";
  options.process.coordinator = cluster.coordinator_address();
  for (const SecurityOptions& security :
       {SecurityOptions{}, With("ops"),
        SecurityOptions{.tls_certificate = others.Certificate("member"),
        .tls_key = others.Key("member"),
        .tls_ca = files_.Authority()}}) {
    options.process.security = security;
    const StderrInFile log(directory_.path() + "/stranger.log");
    ExpertWorkerProcess stranger(options);
    EXPECT_OK(stranger.Start());
    EXPECT_TRUE(Eventually([&] {
      return log.Text().find("cannot join the coordinator") !=
             std::string::npos;
    }));
    EXPECT_THAT(log.Text(), Not(HasSubstr("joined the coordinator")));
  }
}

}  // namespace
}  // namespace gshard
