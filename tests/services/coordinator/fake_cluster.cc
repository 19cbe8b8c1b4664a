#include "tests/services/coordinator/fake_cluster.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/config/model_config_proto.h"
#include "services/config/training_job_proto.h"
#include "services/model/parameters.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "services/rpc/tensor_transfer.h"
#include "services/tokenizer/trainer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};

uint64_t NameSeed(const std::string& name) {
  uint64_t seed = 1469598103934665603u;
  for (const char c : name) seed = (seed ^ uint8_t(c)) * 1099511628211u;
  return seed;
}

// Of parts of a session, the session.
std::string WholeSession(const v1::Command& command) {
  const std::string& session = SessionOf(command);
  return session.substr(0, session.find('#'));
}

std::string Text(const v1::Command& command) {
  switch (command.action_case()) {
    case v1::Command::kLoadSession:
      return absl::StrCat("load ", WholeSession(command));
    case v1::Command::kUnloadSession:
      return absl::StrCat("unload ", WholeSession(command));
    case v1::Command::kAbortSession:
      return absl::StrCat("abort ", WholeSession(command));
    case v1::Command::kAssignMicrobatch: {
      const auto& assign = command.assign_microbatch();
      return absl::StrCat("assign ", assign.step(), "/", assign.microbatch(),
                          "/", assign.attempt());
    }
    case v1::Command::kPrepareStep:
      return absl::StrCat("prepare ", command.prepare_step().step());
    case v1::Command::kCommitStep:
      return absl::StrCat("commit ", command.commit_step().step());
    case v1::Command::kWriteCheckpoint:
      return absl::StrCat("write ", command.write_checkpoint().step());
    case v1::Command::kUpdatePlacement:
      return absl::StrCat("place ", WholeSession(command));
    case v1::Command::ACTION_NOT_SET:
      break;
  }
  return "nothing";
}

// The gradient of a parameter of `experts`, summed over `count` microbatches.
Tensor SummedGradient(const ParameterSpec& spec,
                      const std::vector<int32_t>& experts, int64_t step,
                      int64_t count) {
  Dims dims = spec.dims;
  if (spec.per_expert) dims[0] = static_cast<int64_t>(experts.size());
  Tensor sum = Tensor::Zeros(ElementType::kFloat32, dims);
  for (int32_t m = 0; m < count; ++m) {
    const auto add = [&](Tensor target, const std::string& name) {
      const Tensor gradient = FakeGradient(name, target.dims(), step, m);
      for (int64_t i = 0; i < target.size(); ++i) {
        target.f32()[i] += gradient.f32()[i];
      }
    };
    if (!spec.per_expert) {
      add(sum, spec.name);
      continue;
    }
    const Dims inner(dims.begin() + 1, dims.end());
    for (size_t i = 0; i < experts.size(); ++i) {
      add(sum.Rows(i, i + 1).Reshaped(inner),
          ExpertTensorName(spec.name, experts[i]));
    }
  }
  return sum;
}

GradientList SummedGradients(const ParameterStore& store, int64_t step,
                             int64_t count) {
  GradientList gradients;
  for (const ParameterSpec& spec : store.specs()) {
    gradients.emplace_back(spec.name,
                           SummedGradient(spec, store.experts(), step, count));
  }
  return gradients;
}

}  // namespace

Tensor FakeGradient(const std::string& name, const Dims& dims, int64_t step,
                    int32_t microbatch) {
  return RandomTensor(dims, NameSeed(name) + 1000 * step + microbatch);
}

v1::MicrobatchStats FakeStats(const ModelConfig& model, int64_t step,
                              int32_t microbatch) {
  v1::MicrobatchStats stats;
  stats.set_target_tokens(10 + microbatch);
  stats.set_sentences(2);
  stats.set_loss_sum(30.0 / static_cast<double>(step));
  for (size_t l = 0; l < MoeLayerNames(model).size(); ++l) {
    v1::LayerStats* const layer = stats.add_layers();
    layer->set_balance_loss_sum(1.5);
    layer->set_groups(1);
    layer->set_routed_first(8);
    layer->set_routed_second(8);
    layer->set_overflow_first(1);
    layer->set_overflow_second(3);
    for (int64_t e = 0; e < model.experts; ++e) layer->add_expert_rows(4);
  }
  return stats;
}

FakeMember::FakeMember(std::shared_ptr<grpc::Channel> channel,
                       v1::MemberRole role, std::string name,
                       Intercept intercept)
    : channel_(channel), intercept_(std::move(intercept)) {
  MemberOptions options;
  options.channel = std::move(channel);
  options.role = role;
  options.name = name;
  options.address = absl::StrCat("unix:/tmp/", name);
  options.build_version = "fake";
  client_ = std::make_unique<MemberClient>(std::move(options), this);
  CHECK(client_->Start().ok());
}

std::vector<std::string> FakeMember::commands() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return commands_;
}

void FakeMember::WaitFor(const std::string& command) const {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait(lock, [&] {
    return std::count(commands_.begin(), commands_.end(), command) > 0;
  });
}

v1::LoadSession FakeMember::last_load() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_load_;
}

void FakeMember::OnLost() {
  std::lock_guard<std::mutex> lock(mutex_);
  sessions_.clear();
}

v1::CommandReply FakeMember::Handle(const v1::Command& command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(Text(command));
    came_.notify_all();
  }
  if (intercept_) {
    std::optional<v1::CommandReply> reply = intercept_(command);
    if (reply.has_value()) return *std::move(reply);
  }
  absl::StatusOr<v1::CommandReply> reply = Do(command);
  return reply.ok() ? *std::move(reply) : ReplyWith(reply.status());
}

absl::StatusOr<v1::CommandReply> FakeMember::Do(const v1::Command& command) {
  v1::CommandReply reply;
  if (command.has_assign_microbatch()) {
    RETURN_IF_ERROR(RunMicrobatch(command.assign_microbatch(), &reply));
    return reply;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (command.has_load_session()) {
    const v1::LoadSession& load = command.load_session();
    Session& session = sessions_[load.session()];
    session.load = last_load_ = load;
    if (load.has_worker()) RETURN_IF_ERROR(LoadWorker(load, &session));
    reply.mutable_session_loaded();
    return reply;
  }
  if (command.has_unload_session() || command.has_abort_session()) {
    sessions_.erase(SessionOf(command));
    return reply;
  }
  const auto found = sessions_.find(SessionOf(command));
  if (found == sessions_.end()) return absl::NotFoundError("no such session");
  Session& session = found->second;
  if (command.has_update_placement()) {
    *session.load.mutable_router()->mutable_placement() =
        command.update_placement().placement();
    last_load_ = session.load;
  } else if (command.has_prepare_step()) {
    Prepare(command.prepare_step(), &session, reply.mutable_step_prepared());
  } else if (command.has_commit_step()) {
    const v1::CommitStep& commit = command.commit_step();
    if (commit.skip_update()) return reply;
    session.store->Update(session.gradients, commit.gradient_scale(),
                          commit.step(), commit.learning_rate());
  } else {
    RETURN_IF_ERROR(Write(command.write_checkpoint(), session,
                          reply.mutable_checkpoint_written()));
  }
  return reply;
}

absl::Status FakeMember::LoadWorker(const v1::LoadSession& load,
                                    Session* session) {
  const v1::WorkerSession& worker = load.worker();
  std::vector<ParameterSpec> specs;
  for (const v1::ExpertParameter& parameter : worker.parameters()) {
    ParameterSpec spec;
    spec.name = parameter.name();
    spec.dims.assign(parameter.dims().begin(), parameter.dims().end());
    spec.per_expert = true;
    spec.initializer.stddev = parameter.initializer().stddev();
    spec.initializer.fan_in = parameter.initializer().fan_in();
    spec.initializer.kind = static_cast<InitializerKind>(
        static_cast<int>(parameter.initializer().kind()) - 1);
    specs.push_back(std::move(spec));
  }
  session->store = std::make_unique<ParameterStore>(
      std::move(specs),
      std::vector<int32_t>(worker.experts().begin(), worker.experts().end()),
      load.training() ? MakeOptimizer(AdafactorConfig()) : nullptr);
  if (worker.source().checkpoint_directory().empty()) {
    return session->store->Initialize(worker.source().initial_seed());
  }
  ASSIGN_OR_RETURN(
      const auto reader,
      CheckpointReader::Open(worker.source().checkpoint_directory()));
  return session->store->Load(*reader);
}

absl::Status FakeMember::RunMicrobatch(const v1::AssignMicrobatch& assign,
                                       v1::CommandReply* reply) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = sessions_.find(assign.session());
  if (found == sessions_.end()) return absl::NotFoundError("no such session");
  const v1::LoadSession load = found->second.load;
  lock.unlock();
  ASSIGN_OR_RETURN(const ModelConfig model,
                   ModelConfigFromProto(load.router().model()));
  std::map<std::string, ExpectedTensor> expected;
  NamedTensors gradients;
  for (const ParameterSpec& spec : ParametersOf(model, /*per_expert=*/false)) {
    expected[spec.name] = {ElementType::kFloat32, spec.dims};
    gradients[spec.name] =
        FakeGradient(spec.name, spec.dims, assign.step(), assign.microbatch());
  }
  v1::PullParametersRequest pull;
  pull.set_session(assign.session());
  pull.set_version(assign.parameter_version());
  RETURN_IF_ERROR(PullParameters(channel_, pull, expected, kLong).status());
  v1::TensorFrameHeader header;
  header.set_session(assign.session());
  header.set_step(assign.step());
  header.set_microbatch(assign.microbatch());
  header.set_attempt(assign.attempt());
  RETURN_IF_ERROR(PushGradients(channel_, header, gradients, kLong));
  *reply->mutable_microbatch_done()->mutable_stats() =
      FakeStats(model, assign.step(), assign.microbatch());
  return absl::OkStatus();
}

void FakeMember::Prepare(const v1::PrepareStep& prepare, Session* session,
                         v1::StepPrepared* prepared) {
  session->gradients =
      SummedGradients(*session->store, prepare.step(),
                      session->load.worker().microbatches_per_step());
  for (const SquaredNorm& norm :
       session->store->SquaredNorms(session->gradients)) {
    v1::GradientNorm* const out = prepared->add_norms();
    out->set_tensor(norm.tensor);
    out->set_squared_norm(norm.value);
  }
}

absl::Status FakeMember::Write(const v1::WriteCheckpoint& write,
                               const Session& session,
                               v1::CheckpointWritten* written) {
  ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::Create(write.root(), write.step(), write.shard(),
                               session.store->TensorSpecs()));
  RETURN_IF_ERROR(session.store->Save(*writer));
  ASSIGN_OR_RETURN(const auto entries, writer->Finish());
  for (const TensorEntry& entry : entries) {
    v1::TensorEntry* const out = written->add_tensors();
    out->set_name(entry.name);
    out->set_file(entry.file);
    out->set_element_type(v1::ELEMENT_TYPE_FLOAT32);
    out->mutable_dims()->Add(entry.dims.begin(), entry.dims.end());
    out->set_sha256(entry.sha256);
  }
  return absl::OkStatus();
}

FakeCluster::FakeCluster(CoordinatorOptions options, bool keep)
    : options_(std::move(options)), keep_(keep) {
  options_.retry_delay = absl::ZeroDuration();
  StartCoordinator();
  channel_ = *CreateChannel(server_->address());
  stub_ = v1::CoordinatorService::NewStub(channel_);
}

void FakeCluster::StartCoordinator() {
  coordinator_ = std::make_unique<Coordinator>(options_);
  if (keep_) {
    const absl::Status restored = coordinator_->Restore(scratch / "state");
    CHECK(restored.ok());
  }
  service_ = std::make_unique<CoordinatorServiceImpl>(coordinator_.get(),
                                                      FrameLimits());
  server_ = std::make_unique<ServerShell>(
      ServerOptions{.address = "unix:" + directory_.path() + "/server"});
  server_->AddService(service_.get(),
                      v1::CoordinatorService::service_full_name());
  server_->OnDrain([this] { coordinator_->Drain(absl::ZeroDuration()); });
  CHECK(server_->Start().ok());
}

void FakeCluster::RestartCoordinator() {
  coordinator_->Shutdown();
  server_->Drain(std::chrono::milliseconds(0));
  server_ = nullptr;
  service_ = nullptr;
  coordinator_ = nullptr;
  StartCoordinator();
}

FakeCluster::~FakeCluster() {
  for (const auto& member : members_) member->Leave();
  server_->Drain(std::chrono::milliseconds(0));
  coordinator_->Shutdown();
}

FakeMember& FakeCluster::AddRouter(const std::string& name,
                                   FakeMember::Intercept intercept) {
  return *members_.emplace_back(std::make_unique<FakeMember>(
      channel_, v1::MEMBER_ROLE_ROUTER, name, std::move(intercept)));
}

FakeMember& FakeCluster::AddWorker(const std::string& name,
                                   FakeMember::Intercept intercept) {
  return *members_.emplace_back(std::make_unique<FakeMember>(
      channel_, v1::MEMBER_ROLE_EXPERT_WORKER, name, std::move(intercept)));
}

absl::Status FakeCluster::Submit(const TrainingJob& job, bool resume) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::SubmitJobRequest request;
  *request.mutable_job() = TrainingJobToProto(job);
  request.set_resume(resume);
  v1::SubmitJobResponse response;
  return FromGrpcStatus(stub_->SubmitJob(&context, request, &response));
}

absl::Status FakeCluster::Cancel(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::CancelJobRequest request;
  request.set_job(job);
  v1::CancelJobResponse response;
  return FromGrpcStatus(stub_->CancelJob(&context, request, &response));
}

absl::StatusOr<std::string> FakeCluster::LoadModel(
    const std::string& name, const std::string& version,
    const std::string& directory) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  request.set_checkpoint_directory(directory);
  v1::LoadModelResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(stub_->LoadModel(&context, request, &response)));
  return response.session();
}

absl::Status FakeCluster::UnloadModel(const std::string& session) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::UnloadModelRequest request;
  request.set_session(session);
  v1::UnloadModelResponse response;
  return FromGrpcStatus(stub_->UnloadModel(&context, request, &response));
}

v1::DescribeResponse FakeCluster::Describe(bool include_experts) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::DescribeRequest request;
  request.set_include_experts(include_experts);
  v1::DescribeResponse response;
  CHECK(stub_->Describe(&context, request, &response).ok());
  return response;
}

std::vector<v1::JobProgress> FakeCluster::Watch(
    const std::string& job,
    const std::function<bool(const v1::JobProgress&)>& enough) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::WatchJobRequest request;
  request.set_job(job);
  const auto reader = stub_->WatchJob(&context, request);
  std::vector<v1::JobProgress> lines;
  v1::JobProgress progress;
  while (reader->Read(&progress)) {
    lines.push_back(progress);
    if (enough && enough(progress)) {
      context.TryCancel();
      break;
    }
  }
  (void)reader->Finish();
  return lines;
}

const std::string& FakeCluster::TokenizerPath() {
  static const std::string& path = *[] {
    auto* const path =
        new std::string(::testing::TempDir() + "coordinator_test.model");
    std::vector<std::string> sentences;
    for (int i = 0; i < 200; ++i) {
      sentences.push_back(absl::StrCat("a b c d number ", i));
    }
    TokenizerOptions options;
    options.vocab_size = 64;
    options.languages = {"de"};
    const absl::Status status = TrainTokenizer(options, sentences, *path);
    CHECK(status.ok());
    return path;
  }();
  return path;
}

TrainingJob FakeCluster::MakeJob(const std::string& name) const {
  TrainingJob job;
  job.name = name;
  job.model.name = "tiny";
  job.model.encoder_layers = 1;
  job.model.decoder_layers = 1;
  job.model.model_width = 8;
  job.model.ffn_width = 8;
  job.model.expert_width = 4;
  job.model.heads = 2;
  job.model.head_width = 4;
  job.model.experts = 3;
  job.model.moe_period = 1;
  job.model.shared_vocabulary = true;
  job.model.source_vocabulary_size = 64;
  job.model.target_vocabulary_size = 64;
  job.data.train_path = scratch / "train.tsv";
  Spill(job.data.train_path, "de\teins\tone\nde\tzwei\ttwo\n");
  job.data.source_tokenizer_path = TokenizerPath();
  job.data.default_language = "de";
  job.steps = 3;
  job.microbatches_per_step = 4;
  job.clip_norm = 0.5;
  job.schedule.multiplier = 0.1;
  job.schedule.warmup_steps = 1;
  job.checkpoint.directory = scratch / name;
  job.progress_every_steps = 1;
  return job;
}

std::unique_ptr<ParameterStore> ExpectedParameters(
    const TrainingJob& job, int64_t steps, const std::set<int64_t>& skipped) {
  ModelConfig model = job.model;
  std::vector<int32_t> experts(model.experts);
  std::iota(experts.begin(), experts.end(), 0);
  auto store = std::make_unique<ParameterStore>(ModelParameters(model), experts,
                                                MakeOptimizer(job.optimizer));
  CHECK(store->Initialize(job.seed).ok());
  const Schedule schedule = MakeSchedule(job.schedule);
  for (int64_t step = 1; step <= steps; ++step) {
    if (skipped.count(step) > 0) continue;
    const GradientList gradients =
        SummedGradients(*store, step, job.microbatches_per_step);
    int64_t tokens = 0;
    for (int32_t m = 0; m < job.microbatches_per_step; ++m) {
      tokens += FakeStats(model, step, m).target_tokens();
    }
    const auto scale =
        ScaleStep(TotalSquaredNorm(store->SquaredNorms(gradients)), tokens,
                  job.clip_norm);
    CHECK(scale.ok());
    store->Update(gradients, scale->gradient_scale, step,
                  schedule.LearningRate(step));
  }
  return store;
}

void ExpectTrained(TrainingJob job, int64_t step,
                   const std::set<int64_t>& skipped) {
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(CheckpointPath(
                                              job.checkpoint.directory, step)));
  ASSERT_OK_AND_ASSIGN(job.model,
                       ParseModelConfig(reader->manifest().model_config));
  const auto optimizer = MakeOptimizer(job.optimizer);
  ASSERT_OK(
      reader->CheckExactly(CheckpointTensors(job.model, optimizer.get())));
  ParameterStore trained(ModelParameters(job.model), {0, 1, 2}, optimizer);
  ASSERT_OK(trained.Load(*reader));
  const auto expected = ExpectedParameters(job, step, skipped);
  for (const auto& [name, tensor] : expected->tensors()) {
    EXPECT_TRUE(TensorEqual(trained.tensors().at(name), tensor)) << name;
  }
  EXPECT_EQ(reader->manifest().metadata.at("seed"), "1");
  ASSERT_OK_AND_ASSIGN(const std::string tokenizer, reader->ReadTokenizer());
  EXPECT_EQ(tokenizer, Slurp(FakeCluster::TokenizerPath()));
}

}  // namespace gshard
