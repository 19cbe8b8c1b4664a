#include "tests/services/coordinator/fake_member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/write_shard.h"
#include "services/config/model_config_proto.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/model/parameters.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/train/job_options.h"
#include "services/train/parameter_source.h"
#include "tests/services/coordinator/fake_gradients.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kTransferTime{60'000};

// The session of a command; for a bundle, the session that it is part of.
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
      return absl::StrCat(assign.validation() ? "validate " : "assign ",
                          assign.step(), "/", assign.microbatch(), "/",
                          assign.attempt());
    }
    case v1::Command::kPrepareStep:
      return absl::StrCat("prepare ", command.prepare_step().step());
    case v1::Command::kCommitStep:
      return absl::StrCat("commit ", command.commit_step().step());
    case v1::Command::kWriteCheckpoint:
      return absl::StrCat("write ", command.write_checkpoint().step());
    case v1::Command::kConnectRouters:
      return absl::StrCat("connect ", SessionOf(command));
    case v1::Command::kUpdatePlacement:
      return absl::StrCat("place ", WholeSession(command));
    case v1::Command::ACTION_NOT_SET:
      break;
  }
  return "nothing";
}

}  // namespace

FakeMember::FakeMember(std::shared_ptr<grpc::Channel> channel,
                       v1::MemberRole role, std::string name,
                       Intercept intercept, int64_t memory_bytes)
    : transfer_(Over(channel)), intercept_(std::move(intercept)) {
  MemberOptions options;
  options.channel = std::move(channel);
  options.role = role;
  options.name = name;
  options.address = absl::StrCat("unix:/tmp/", name);
  options.build_version = "fake";
  options.memory_bytes = memory_bytes;
  client_ = std::make_unique<MemberClient>(std::move(options), this);
  CHECK(client_->Start().ok());
}

FakeMember::Transfer FakeMember::Over(std::shared_ptr<grpc::Channel> channel) {
  return {.pull =
              [channel](const v1::PullParametersRequest& pull,
                        const std::map<std::string, ExpectedTensor>& expected) {
                return PullParameters(channel, pull, expected, kTransferTime)
                    .status();
              },
          .push =
              [channel](const v1::TensorFrameHeader& header,
                        const NamedTensors& gradients) {
                return PushGradients(channel, header, gradients, kTransferTime);
              }};
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

void FakeMember::WaitForInterrupt(const std::string& session) const {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait(lock, [&] { return interrupted_.count(session) > 0; });
}

void FakeMember::Interrupt(const std::string& session) {
  std::lock_guard<std::mutex> lock(mutex_);
  interrupted_.insert(session);
  came_.notify_all();
}

v1::MemberAccepted FakeMember::accepted() const {
  std::unique_lock<std::mutex> lock(mutex_);
  came_.wait(lock, [&] { return accepted_.has_value(); });
  return *accepted_;
}

v1::LoadSession FakeMember::last_load() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_load_;
}

void FakeMember::SetText(const v1::TextLoaded& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  text_ = text;
}

void FakeMember::SetRowsPerHeartbeat(std::vector<int64_t> rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  rows_ = std::move(rows);
}

void FakeMember::OnLost() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(sessions_, [](const auto& session) {
    return session.second.load.training();
  });
}

void FakeMember::OnAccepted(const v1::MemberAccepted& accepted) {
  std::lock_guard<std::mutex> lock(mutex_);
  accepted_ = accepted;
  came_.notify_all();
}

v1::Heartbeat FakeMember::Load() {
  v1::Heartbeat heartbeat;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, session] : sessions_) {
    if (session.load.training()) continue;
    v1::SessionLoad& load = *heartbeat.add_session_loads();
    load.set_session(id);
    if (!session.load.has_router()) continue;
    session.expert_rows.resize(rows_.size());
    for (size_t e = 0; e < rows_.size(); ++e) {
      session.expert_rows[e] += rows_[e];
    }
    load.mutable_expert_rows()->Add(session.expert_rows.begin(),
                                    session.expert_rows.end());
  }
  return heartbeat;
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
    const auto found = sessions_.find(load.session());
    if (found != sessions_.end()) {
      if (found->second.load.router().checkpoint_directory() !=
          load.router().checkpoint_directory()) {
        return absl::AbortedError("it is loaded from elsewhere");
      }
      return absl::AlreadyExistsError("it is loaded");
    }
    Session& session = sessions_[load.session()];
    session.load = last_load_ = load;
    if (load.has_worker()) RETURN_IF_ERROR(LoadWorker(load, &session));
    v1::SessionLoaded* const loaded = reply.mutable_session_loaded();
    if (text_.has_value() && load.training() && load.has_router()) {
      *loaded->mutable_text() = *text_;
    }
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
    if (command.update_placement().current()) {
      session.load.mutable_router()->set_standby(false);
    }
    last_load_ = session.load;
  } else if (command.has_prepare_step()) {
    Prepare(command.prepare_step(), &session, reply.mutable_step_prepared());
  } else {
    Commit(command.commit_step(), &session);
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
  session->step = worker.step();
  std::unique_ptr<CheckpointReader> reader;
  if (!worker.source().checkpoint_directory().empty()) {
    ASSIGN_OR_RETURN(
        reader, CheckpointReader::Open(worker.source().checkpoint_directory()));
  }
  if (!load.training()) {
    return ReadParameters(specs,
                          {worker.experts().begin(), worker.experts().end()},
                          reader.get(), worker.source().initial_seed())
        .status();
  }
  const auto make = [&](const auto& experts)
      -> absl::StatusOr<std::unique_ptr<ParameterStore>> {
    auto store = std::make_unique<ParameterStore>(
        specs, std::vector<int32_t>(experts.begin(), experts.end()),
        MakeOptimizer(AdafactorConfig()));
    RETURN_IF_ERROR(store->Load(reader.get(), worker.source().initial_seed(),
                                /*stop=*/{}, worker.source().weights_only()));
    return store;
  };
  ASSIGN_OR_RETURN(session->store, make(worker.experts()));
  if (worker.replicated_experts().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(session->replica, make(worker.replicated_experts()));
  return absl::OkStatus();
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
  RETURN_IF_ERROR(transfer_.pull(pull, expected));
  if (assign.validation()) {
    *reply->mutable_microbatch_done()->mutable_stats() =
        FakeValidationStats(model, assign.step(), assign.microbatch());
    return absl::OkStatus();
  }
  v1::TensorFrameHeader header;
  header.set_session(assign.session());
  header.set_step(assign.step());
  header.set_microbatch(assign.microbatch());
  header.set_attempt(assign.attempt());
  RETURN_IF_ERROR(transfer_.push(header, std::move(gradients)));
  *reply->mutable_microbatch_done()->mutable_stats() =
      FakeStats(model, assign.step(), assign.microbatch());
  return absl::OkStatus();
}

void FakeMember::Prepare(const v1::PrepareStep& prepare, Session* session,
                         v1::StepPrepared* prepared) {
  session->gradients =
      SummedGradients(*session->store, prepare.step(),
                      session->load.worker().microbatches_per_step());
  const std::vector<SquaredNorm> norms =
      *session->store->SquaredNorms(session->gradients);
  for (const SquaredNorm& norm : norms) {
    v1::GradientNorm* const out = prepared->add_norms();
    out->set_tensor(norm.tensor);
    out->set_squared_norm(norm.value);
  }
}

void FakeMember::Commit(const v1::CommitStep& commit, Session* session) {
  if (commit.step() == session->step) return;
  session->step = commit.step();
  if (commit.skip_update()) return;
  CHECK(session->store
            ->Update(session->gradients, commit.gradient_scale(), commit.step(),
                     commit.learning_rate())
            .ok());
  if (session->replica == nullptr) return;
  CHECK(session->replica
            ->Update(
                SummedGradients(*session->replica, commit.step(),
                                session->load.worker().microbatches_per_step()),
                commit.gradient_scale(), commit.step(), commit.learning_rate())
            .ok());
}

std::function<v1::CommandReply()> FakeMember::Begin(
    const v1::Command& command) {
  if (!command.has_write_checkpoint()) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  commands_.push_back(Text(command));
  came_.notify_all();
  const auto found = sessions_.find(SessionOf(command));
  if (found == sessions_.end()) {
    return [] { return ReplyWith(absl::NotFoundError("no such session")); };
  }
  if (command.write_checkpoint().step() != found->second.step) {
    return [] {
      return ReplyWith(
          absl::FailedPreconditionError("another step is the last committed"));
    };
  }
  auto tensors = std::make_shared<std::vector<NamedTensor>>(
      found->second.store->Snapshot());
  if (command.write_checkpoint().include_replica()) {
    for (NamedTensor& named : found->second.replica->Snapshot()) {
      tensors->push_back(std::move(named));
    }
  }
  return [this, command, tensors] {
    std::optional<v1::CommandReply> reply;
    if (intercept_) reply = intercept_(command);
    if (!reply.has_value()) {
      auto written = Write(command.write_checkpoint(), *tensors);
      reply = written.ok() ? *std::move(written) : ReplyWith(written.status());
    }
    std::lock_guard<std::mutex> lock(mutex_);
    tensors->clear();
    return *std::move(reply);
  };
}

absl::StatusOr<v1::CommandReply> FakeMember::Write(
    const v1::WriteCheckpoint& write, const std::vector<NamedTensor>& tensors) {
  v1::CommandReply reply;
  ASSIGN_OR_RETURN(
      const auto entries,
      WriteShard({write.root(), write.step(), write.shard()}, tensors));
  for (const TensorEntry& entry : entries) {
    v1::TensorEntry* const out =
        reply.mutable_checkpoint_written()->add_tensors();
    out->set_name(entry.name);
    out->set_file(entry.file);
    out->set_element_type(v1::ELEMENT_TYPE_FLOAT32);
    out->mutable_dims()->Add(entry.dims.begin(), entry.dims.end());
    out->set_sha256(entry.sha256);
  }
  return reply;
}

}  // namespace gshard
