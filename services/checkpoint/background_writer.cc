#include "services/checkpoint/background_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::vector<TensorEntry>> WriteShard(
    const std::string& root, int64_t step, const std::string& shard,
    const std::vector<NamedTensor>& tensors, FaultPoints* faults) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : tensors) {
    specs.push_back({named.name, named.tensor.type(), named.tensor.dims()});
  }
  ASSIGN_OR_RETURN(const auto writer,
                   CheckpointWriter::Create(root, step, shard, specs, faults));
  for (const NamedTensor& named : tensors) {
    RETURN_IF_ERROR(writer->Write(named.name, named.tensor));
  }
  return writer->Finish();
}

BackgroundWriter::BackgroundWriter(FaultPoints* faults)
    : faults_(faults), thread_([this] { Run(); }) {}

BackgroundWriter::~BackgroundWriter() {
  Wait();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status BackgroundWriter::Start(int64_t step, const std::string& root,
                                     const std::string& shard,
                                     std::vector<NamedTensor> tensors) {
  if (busy()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", task_->step,
                     " is in flight: expected its result to be taken before "
                     "that of step ",
                     step, " begins"));
  }
  task_ = Task{step, root, shard, std::move(tensors)};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_ = false;
  }
  changed_.notify_all();
  return absl::OkStatus();
}

std::optional<BackgroundWriter::Result> BackgroundWriter::Poll() {
  return Take(/*wait=*/false);
}

std::optional<BackgroundWriter::Result> BackgroundWriter::Wait() {
  return Take(/*wait=*/true);
}

std::optional<BackgroundWriter::Result> BackgroundWriter::Take(bool wait) {
  if (!busy()) return std::nullopt;
  std::unique_lock<std::mutex> lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return idle_; });
  if (!idle_) return std::nullopt;
  Result result{task_->step, *std::move(entries_)};
  entries_.reset();
  task_.reset();
  return result;
}

void BackgroundWriter::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !idle_; });
    if (stopping_) return;
    lock.unlock();
    auto entries = WriteShard(task_->root, task_->step, task_->shard,
                              task_->tensors, faults_);
    lock.lock();
    entries_ = std::move(entries);
    idle_ = true;
    changed_.notify_all();
  }
}

}  // namespace gshard
