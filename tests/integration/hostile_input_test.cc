// Bad requests to every public method: each gets the code in its table row
// (hostile_rows.h), every field of every request has a row, and the servers
// keep working.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/rpc/security/method_roles.h"
#include "tests/integration/cluster.h"
#include "tests/integration/hostile_rows.h"
#include "tests/integration/names_job.h"
#include "tests/integration/raw_call.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using ::testing::_;
using ::testing::HasSubstr;

const MethodDescriptor* FindMethod(const std::string& name) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      "gshard.v1." + name);
}

// "/gshard.v1.TranslationService/Translate"
std::string Path(const std::string& method) {
  const std::vector<std::string> parts = absl::StrSplit(method, '.');
  return absl::StrCat("/gshard.v1.", parts[0], "/", parts[1]);
}

// kPublic: methods open to callers other than members.
enum class Methods { kPublic, kAll };
std::set<std::string> ListMethods(Methods which) {
  std::set<std::string> methods;
  for (const std::string& path : MethodsWithAccess()) {
    const std::vector<std::string> parts =
        absl::StrSplit(path, absl::ByAnyChar("./"));
    const MethodAccess& access = *FindMethodAccess(path);
    if (parts[1] == "gshard" &&
        (which == Methods::kAll || access.roles != Roles{Role::kExpert})) {
      methods.insert(absl::StrCat(parts[3], ".", parts[4]));
    }
  }
  return methods;
}

// Collects all fields of `message`, nested ones as "options.beam_size".
void ListFields(const Descriptor& message, const std::string& prefix,
                std::set<std::string>* fields) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = prefix + field.name();
    fields->insert(name);
    if (field.message_type() != nullptr) {
      ListFields(*field.message_type(), name + ".", fields);
    }
  }
}

bool IsBoolean(const std::string& method, const std::string& path) {
  const Descriptor* message = FindMethod(method)->input_type();
  const FieldDescriptor* field = nullptr;
  for (const auto& part : absl::StrSplit(path, '.')) {
    field = message->FindFieldByName(std::string(part));
    message = field->message_type();
  }
  return field->type() == FieldDescriptor::TYPE_BOOL;
}

std::string BytesOf(const HostileRow& row) {
  if (!row.bytes.empty()) return row.bytes;
  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<google::protobuf::Message> message(
      factory.GetPrototype(FindMethod(row.method)->input_type())->New());
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(row.text, message.get()))
      << row.text;
  return message->SerializeAsString();
}

class HostileInputTest : public ::testing::Test {
 protected:
  // Serves a model of one training step on one worker, and adds a router with
  // debug calls.
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    cluster_ = new Cluster(1, 1);
    cluster_->WaitForMembers();
    TrainingJob job = NamesJob(Folder("checkpoints"));
    job.steps = job.microbatches_per_step = 1;
    const auto lines = cluster_->Train(job);
    ASSERT_TRUE(lines.ok()) << lines.status();
    const auto checkpoint = LatestCheckpoint(Folder("checkpoints"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = new std::string(*checkpoint);
    const absl::Status loaded = cluster_->Load("names", *checkpoint);
    ASSERT_TRUE(loaded.ok()) << loaded;

    RouterOptions options;
    options.process.listen = "unix:" + Folder("router");
    options.process.name = "explains";
    options.process.coordinator = cluster_->coordinator_address();
    options.limits.debug_calls = true;
    router_ = new RouterProcess(options);
    const absl::Status started = router_->Start();
    ASSERT_TRUE(started.ok()) << started;
    ASSERT_TRUE(Eventually([] {
      return Call("/gshard.v1.TranslationService/Translate",
                  BytesOf(TranslateRows()[4]))
          .status.ok();
    }));
  }
  static void TearDownTestSuite() {
    router_->Drain(std::chrono::seconds(30));
    delete router_;
    delete cluster_;
    delete checkpoint_;
    delete directory_;
  }

  static std::string Folder(const std::string& name) {
    return directory_->path() + "/" + name;
  }

  // A valid job under an unused name.
  static TrainingJob FreeJob() {
    TrainingJob job = NamesJob(Folder("other"));
    job.name = "other";
    return job;
  }

  static std::vector<HostileRow> AllRows() {
    std::vector<HostileRow> all;
    for (auto& rows :
         {TranslateRows(), TranslateStreamRows(), ExplainRoutingRows(),
          CoordinatorRows(*checkpoint_), SubmitJobRows(FreeJob()), JobRows()}) {
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

  // Jobs that are invalid as a whole.
  static std::vector<HostileRow> JobRows() {
    std::vector<HostileRow> rows;
    const auto add = [&rows](const TrainingJob& job, bool resume,
                             absl::StatusCode code, const std::string& says) {
      v1::SubmitJobRequest request;
      *request.mutable_job() = TrainingJobToProto(job);
      request.set_resume(resume);
      rows.push_back({"CoordinatorService.SubmitJob", resume ? "resume" : "job",
                      "", request.SerializeAsString(), code, says});
    };
    rows.push_back({"CoordinatorService.SubmitJob", "job", "", ""});
    rows.push_back({"CoordinatorService.SubmitJob", "job", "job {}", "",
                    absl::StatusCode::kInvalidArgument, "name"});
    rows.push_back({"CoordinatorService.SubmitJob", "validate_only",
                    "job {} validate_only: true", "",
                    absl::StatusCode::kInvalidArgument, "name"});
    TrainingJob job = NamesJob(Folder("checkpoints"));
    job.steps = job.microbatches_per_step = 1;
    add(job, false, absl::StatusCode::kAlreadyExists, "");
    add(job, true, absl::StatusCode::kOutOfRange, "");
    job.name = "other";  // its folder belongs to another job
    add(job, false, absl::StatusCode::kAlreadyExists, "");
    for (const char* path : {"no/such/file", "../../etc/none", "/", "tests"}) {
      job = FreeJob();
      job.data.train_path = path;
      add(job, false, absl::StatusCode::kInvalidArgument, "train_path");
    }
    job = FreeJob();
    job.max_length = job.model.max_positions + 1;
    add(job, false, absl::StatusCode::kInvalidArgument, "max_length");
    job = FreeJob();
    job.tokens_per_microbatch = job.max_length - 1;
    add(job, false, absl::StatusCode::kInvalidArgument,
        "tokens_per_microbatch");
    job = FreeJob();
    job.data.target_tokenizer_path = "tests/data/names.tsv";
    add(job, false, absl::StatusCode::kInvalidArgument,
        "target_tokenizer_path");
    return rows;
  }

  static RawAnswer Call(const std::string& path, const std::string& bytes) {
    const auto of = [&path](const char* service) {
      return path.find(service) != std::string::npos;
    };
    return CallRaw(cluster_->Channel(of("Translation") ? router_->address()
                                     : of("ExpertWorker")
                                         ? cluster_->worker(0).address()
                                         : cluster_->coordinator_address()),
                   path, bytes);
  }

  // The status of the request; that of the first answer on a stream.
  static absl::Status Outcome(const std::string& method,
                              const std::string& bytes) {
    const RawAnswer answer = Call(Path(method), bytes);
    if (method != "TranslationService.TranslateStream" ||
        answer.messages.empty()) {
      return answer.status;
    }
    EXPECT_OK(answer.status);
    v1::TranslateStreamResponse response;
    EXPECT_TRUE(response.ParseFromString(answer.messages[0]));
    return FromProtoStatus(response.status());
  }

  static TemporaryDirectory* directory_;
  static Cluster* cluster_;
  static RouterProcess* router_;
  static std::string* checkpoint_;
};

TemporaryDirectory* HostileInputTest::directory_ = nullptr;
Cluster* HostileInputTest::cluster_ = nullptr;
RouterProcess* HostileInputTest::router_ = nullptr;
std::string* HostileInputTest::checkpoint_ = nullptr;

TEST_F(HostileInputTest, EveryFieldOfEveryPublicMethodHasARow) {
  std::map<std::string, std::set<std::string>> rows;
  for (const HostileRow& row : AllRows()) rows[row.method].insert(row.field);
  const std::set<std::string> methods = ListMethods(Methods::kPublic);
  EXPECT_THAT(methods, testing::Contains("TranslationService.Translate"));
  for (const std::string& method : methods) {
    ASSERT_NE(FindMethod(method), nullptr) << method;
    std::set<std::string> fields;
    ListFields(*FindMethod(method)->input_type(), "", &fields);
    for (const std::string& field : fields) {
      // SubmitJobRows() covers a job's fields except Booleans and whole
      // messages, for which it has no bad values.
      if (field.starts_with("job.") &&
          (IsBoolean(method, field) || fields.lower_bound(field + ".") !=
                                           fields.lower_bound(field + "/"))) {
        continue;
      }
      EXPECT_TRUE(rows[method].contains(field))
          << method << ": no bad value of the field " << field
          << "; add a row to tests/integration/hostile_*_rows.cc";
    }
    for (const std::string& field : rows[method]) {
      EXPECT_TRUE(field.empty() || fields.contains(field))
          << method << " has no field " << field;
    }
  }
}

TEST_F(HostileInputTest, EveryRowGetsItsCode) {
  for (const HostileRow& row : AllRows()) {
    const std::string shown =
        row.text.empty() ? row.bytes.substr(0, 200) : row.text.substr(0, 200);
    SCOPED_TRACE(absl::StrCat(row.method, " ", row.field, ": ", shown));
    const absl::Status status = Outcome(row.method, BytesOf(row));
    EXPECT_EQ(status.code(), row.code) << status;
    if (status.code() != absl::StatusCode::kInvalidArgument) continue;
    const std::string last = row.field.substr(row.field.rfind('.') + 1);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(row.says.empty() ? last : row.says));
  }
}

TEST_F(HostileInputTest, WhatIsNoMessageIsInvalid) {
  const std::set<std::string> methods = ListMethods(Methods::kAll);
  EXPECT_THAT(methods,
              testing::IsSupersetOf({"CoordinatorService.Join",
                                     "CoordinatorService.PushGradients",
                                     "ExpertWorkerService.Run"}));
  for (const std::string& method : methods) {
    for (const std::string& bytes : MalformedMessages()) {
      SCOPED_TRACE(absl::StrCat(method, " ", absl::CHexEscape(bytes)));
      EXPECT_THAT(Call(Path(method), bytes).status,
                  StatusIs(absl::StatusCode::kInvalidArgument, _));
    }
  }
}

TEST_F(HostileInputTest, WhatIsTooLargeIsRefusedUnread) {
  const std::string bytes(size_t{65} << 20, '\x0A');
  for (const char* method :
       {"TranslationService.Translate", "CoordinatorService.SubmitJob"}) {
    const auto channel = CreateChannel(
        method[0] == 'T' ? router_->address() : cluster_->coordinator_address(),
        {.max_message_bytes = size_t{1} << 30});
    EXPECT_THAT(CallRaw(*channel, Path(method), bytes).status,
                StatusIs(absl::StatusCode::kResourceExhausted, _));
  }
}

TEST_F(HostileInputTest, HealthAnswersWhateverIsAsked) {
  const std::string check = "/grpc.health.v1.Health/Check";
  const auto service = [](const std::string& name) {
    return absl::StrCat("\x0A", std::string(1, static_cast<char>(name.size())),
                        name);
  };
  EXPECT_OK(Call(check, "").status);
  EXPECT_OK(Call(check, service("gshard.v1.CoordinatorService")).status);
  for (const char* name : {"other", "../x", "gshard.v1.coordinatorservice"}) {
    EXPECT_THAT(Call(check, service(name)).status,
                StatusIs(absl::StatusCode::kNotFound, _));
  }
  for (const std::string& bytes : MalformedMessages()) {
    EXPECT_THAT(Call(check, bytes).status,
                StatusIs(absl::StatusCode::kInvalidArgument, _))
        << absl::CHexEscape(bytes);
  }
}

TEST_F(HostileInputTest, MethodsThatAreNotThereAreUnimplemented) {
  for (const char* path :
       {"/gshard.v1.TranslationService/Delete", "/gshard.v1.Other/Translate",
        "/", "/../../etc/passwd"}) {
    EXPECT_THAT(Call(path, "").status,
                StatusIs(absl::StatusCode::kUnimplemented, _))
        << path;
  }
}

// The cluster's own router has debug calls off and denies every request that
// parses.
TEST_F(HostileInputTest, ExplainRoutingIsOffByDefault) {
  for (const HostileRow& row : ExplainRoutingRows()) {
    const absl::Status status =
        CallRaw(cluster_->Channel(cluster_->router(0).address()),
                Path(row.method), BytesOf(row))
            .status;
    EXPECT_TRUE(absl::IsPermissionDenied(status) ||
                row.says == "ExplainRoutingRequest" ||
                row.text.find("\\377") != std::string::npos)
        << row.text << " " << status;
  }
}

}  // namespace
}  // namespace gshard
