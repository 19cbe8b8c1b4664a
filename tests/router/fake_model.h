// A TranslationModel without a model: a word is a token, and a translation is
// the source's tokens in reverse, done after a set number of steps. Tests can
// hold steps and Encode().

#ifndef TESTS_ROUTER_FAKE_MODEL_H_
#define TESTS_ROUTER_FAKE_MODEL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "router/models/translation_model.h"
#include "services/base/check.h"
#include "services/base/utf8.h"

namespace gshard {

class FakeModel final : public TranslationModel {
 public:
  static constexpr int32_t kTag = 1, kEos = 2;
  static constexpr int64_t kPositions = 12;

  explicit FakeModel(std::string id, std::string default_language = "")
      : id_(std::move(id)), default_language_(std::move(default_language)) {}

  // Later steps wait until Release() or until they are cancelled.
  void Hold() {
    Change([this] { held_ = true; });
  }
  void Release() {
    Change([this] { held_ = false; });
  }
  // Lets one step of a held model proceed.
  void ReleaseStep() {
    Change([this] { ++released_; });
  }
  // Later calls of Encode() wait until ReleaseEncoding().
  void HoldEncoding() {
    Change([this] { encoding_held_ = true; });
  }
  void ReleaseEncoding() {
    Change([this] { encoding_held_ = false; });
  }
  // Returns once `count` calls of Encode() have begun.
  void WaitForEncodings(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return encodings_ >= count; });
  }
  size_t encodings() {
    std::lock_guard<std::mutex> lock(mutex_);
    return encodings_;
  }
  // The number of calls of EncodeTarget() so far.
  int target_encodings() const { return target_encodings_; }
  // Later steps return `status`.
  void Fail(absl::Status status) {
    Change([&] { failure_ = status; });
  }
  // Later calls of Join() return `status`.
  void FailJoin(absl::Status status) {
    Change([&] { join_failure_ = status; });
  }
  // Sentences with this first token end with `status`.
  void FailSentence(int32_t first, absl::Status status) {
    Change([&] { sentence_failure_[first] = status; });
  }
  // Later steps with more sentences fail, like those of workers without room.
  void SetRoom(size_t sentences) {
    Change([&] { room_ = sentences; });
  }
  // Sets the steps per translation, initially 1.
  void SetSteps(int64_t steps) {
    Change([&] { steps_needed_ = steps; });
  }

  // Later steps give up sentences that require all experts.
  void LoseExperts() {
    Change([this] { lost_experts_ = true; });
  }

  // Sets the row cost that finished sentences report, initially 1.
  void SetRowCost(double cost) {
    Change([&] { row_cost_ = cost; });
  }

  // These return once `count` steps have begun, or have ended.
  void WaitForSteps(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return steps_.size() >= count; });
  }
  void WaitForEnds(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ends_ >= count; });
  }
  // For each step, the first token after the tag of each sentence, in the order
  // in which they joined.
  std::vector<std::vector<int32_t>> steps() {
    std::lock_guard<std::mutex> lock(mutex_);
    return steps_;
  }

  const std::string& id() const override { return id_; }
  int64_t max_positions() const override { return kPositions; }
  const std::vector<std::string>& languages() const override {
    return languages_;
  }
  const std::string& default_language() const override {
    return default_language_;
  }
  bool full() const override { return full_; }
  void SetFull(bool full) { full_ = full; }

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view language) const override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++encodings_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !encoding_held_; });
    }
    if (language != "de" && language != "fr") {
      return absl::InvalidArgumentError(absl::StrCat(
          "source_language: expected one of de, fr, got \"", language, "\""));
    }
    if (!IsUtf8(text)) return absl::InvalidArgumentError("text: not UTF-8");
    std::vector<int32_t> ids = {kTag};
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      ids.push_back(10 + static_cast<int32_t>(word.size()));
    }
    ids.push_back(kEos);
    return ids;
  }

  // "?" can be neither encoded nor decoded.
  absl::StatusOr<std::vector<int32_t>> EncodeTarget(
      absl::string_view text) const override {
    ++target_encodings_;
    std::vector<int32_t> ids;
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      if (word == "?") return absl::InvalidArgumentError("cannot write");
      ids.push_back(10 + static_cast<int32_t>(word.size()));
    }
    return ids;
  }
  int32_t CountUnknown(absl::Span<const int32_t>) const override { return 0; }

  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    return absl::StrJoin(ids, " ");
  }

  int64_t CachedPositions(const SourceSentence& sentence) const override {
    return static_cast<int64_t>(sentence.ids.size()) +
           sentence.options.beam_size * sentence.options.max_length;
  }
  std::unique_ptr<ModelBatch> NewBatch(int64_t max_positions) override {
    return std::make_unique<Batch>(*this, max_positions);
  }

  // Reports one layer, "fake", where every token chooses experts 0 and 1; only
  // "w0" holds expert 0. Counts as a step.
  absl::StatusOr<RoutingReport> ExplainRouting(
      const std::vector<int32_t>& source, const std::vector<int32_t>& target,
      const BatchRun& run) override {
    const uint64_t registration =
        run.all_cancelled->OnCancel([this] { Change([] {}); });
    std::vector<Batch::Active> nobody;
    const absl::Status status = MakeStep(nobody, run);
    run.all_cancelled->Remove(registration);
    if (!status.ok()) return status;
    RoutingReport report;
    const auto add = [](const std::vector<int32_t>& ids,
                        std::vector<LayerRouting>& layers,
                        std::vector<std::string>& pieces) {
      if (ids.empty()) return;
      layers.push_back({.layer = "fake", .tokens = {}});
      for (const int32_t id : ids) {
        pieces.push_back(absl::StrCat("<", id, ">"));
        layers[0].tokens.push_back(
            {{.expert = 0, .weight = 0.75f},
             {.expert = 1, .weight = 0.0f, .overflowed = true}});
      }
    };
    add(source, report.trace.source, report.source);
    add(target, report.trace.target, report.target);
    report.hosts = {{"w0"}, {}};
    return report;
  }

 private:
  class Batch final : public ModelBatch {
   public:
    Batch(FakeModel& model, int64_t max_positions)
        : model_(model), max_positions_(max_positions) {}

    absl::Status Join(absl::Span<const JoiningSentence> joining,
                      const BatchRun&) override {
      const absl::Status failure = model_.join_failure();
      if (!failure.ok()) return failure;
      for (const JoiningSentence& one : joining) {
        positions_ += model_.CachedPositions(*one.sentence);
        active_.push_back({one.id, *one.sentence, 0});
      }
      CHECK(positions_ <= max_positions_);
      return absl::OkStatus();
    }

    absl::Status Step(const BatchRun& run) override {
      const uint64_t registration =
          run.all_cancelled->OnCancel([this] { model_.Change([] {}); });
      const absl::Status status = model_.MakeStep(active_, run);
      run.all_cancelled->Remove(registration);
      return status;
    }

    void Leave(uint64_t id) override {
      std::erase_if(active_, [&](const Active& active) {
        if (active.id != id) return false;
        positions_ -= model_.CachedPositions(active.sentence);
        return true;
      });
    }

    std::vector<FinishedSentence> TakeFinished() override {
      std::vector<FinishedSentence> finished;
      for (const Active& active : active_) {
        if (active.given_up) {
          DecodedHypothesis nothing;
          nothing.lost_share = 0.5;
          finished.push_back(
              {.id = active.id, .hypotheses = std::vector{nothing}});
          continue;
        }
        if (active.steps < active.needed) continue;
        finished.push_back({.id = active.id,
                            .hypotheses = model_.Result(active.sentence),
                            .steps = active.steps,
                            .row_cost = model_.row_cost()});
      }
      for (const FinishedSentence& one : finished) Leave(one.id);
      return finished;
    }

    int64_t rows() const override {
      return static_cast<int64_t>(active_.size());
    }

   private:
    friend class FakeModel;
    struct Active {
      uint64_t id;
      SourceSentence sentence;
      int64_t steps;
      int64_t needed = 1;
      bool given_up = false;
    };

    static std::vector<DecodedHypothesis> Reversed(
        const SourceSentence& sentence) {
      std::vector<DecodedHypothesis> hypotheses;
      for (int n = 0; n < sentence.options.n_best; ++n) {
        hypotheses.push_back(
            {.ids = std::vector<int32_t>(sentence.ids.rbegin() + 1,
                                         sentence.ids.rend() - 1),
             .score = -0.5 * (n + 1),
             .token_count = sentence.options.max_length,
             .truncated = false});
      }
      return hypotheses;
    }

    FakeModel& model_;
    const int64_t max_positions_;
    int64_t positions_ = 0;
    std::vector<Active> active_;
  };

  absl::Status MakeStep(std::vector<Batch::Active>& active,
                        const BatchRun& run) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::vector<int32_t> firsts;
    for (const Batch::Active& one : active) {
      firsts.push_back(one.sentence.ids[1]);
    }
    steps_.push_back(std::move(firsts));
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return !held_ || released_ > 0 || run.all_cancelled->cancelled();
    });
    ++ends_;
    changed_.notify_all();
    if (run.all_cancelled->cancelled()) return absl::CancelledError("stopped");
    if (held_) --released_;
    for (Batch::Active& one : active) {
      one.needed = steps_needed_;
      one.given_up = lost_experts_ && one.sentence.options.require_full;
      ++one.steps;
    }
    if (active.size() > room_) return absl::ResourceExhaustedError("full");
    return failure_;
  }

  absl::StatusOr<Hypotheses> Result(const SourceSentence& sentence) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto failure = sentence_failure_.find(sentence.ids[1]);
    if (failure != sentence_failure_.end()) return failure->second;
    return Batch::Reversed(sentence);
  }

  absl::Status join_failure() {
    std::lock_guard<std::mutex> lock(mutex_);
    return join_failure_;
  }

  double row_cost() {
    std::lock_guard<std::mutex> lock(mutex_);
    return row_cost_;
  }

  template <typename Action>
  void Change(const Action& action) {
    std::lock_guard<std::mutex> lock(mutex_);
    action();
    changed_.notify_all();
  }

  const std::string id_;
  const std::string default_language_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::atomic<int> target_encodings_ = 0;
  const std::vector<std::string> languages_ = {"de", "fr"};
  std::atomic<bool> full_ = true;
  // All below are guarded by mutex_.
  bool encoding_held_ = false;
  mutable size_t encodings_ = 0;
  bool held_ = false;
  bool lost_experts_ = false;
  int released_ = 0;
  int64_t steps_needed_ = 1;
  double row_cost_ = 1;
  size_t room_ = SIZE_MAX;
  absl::Status failure_;
  absl::Status join_failure_;
  std::map<int32_t, absl::Status> sentence_failure_;  // by first token
  std::vector<std::vector<int32_t>> steps_;
  size_t ends_ = 0;
};

}  // namespace gshard

#endif  // TESTS_ROUTER_FAKE_MODEL_H_
