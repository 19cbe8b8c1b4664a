// A TranslationModel without a model: a word is a token, and a translation is
// the source's tokens in reverse. It can be made to wait.

#ifndef TESTS_ROUTER_FAKE_MODEL_H_
#define TESTS_ROUTER_FAKE_MODEL_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "router/translation_model.h"
#include "services/tokenizer/utf8.h"

namespace gshard {

class FakeModel final : public TranslationModel {
 public:
  static constexpr int32_t kTag = 1, kEos = 2;
  static constexpr int64_t kPositions = 12;

  explicit FakeModel(std::string id, std::string default_language = "")
      : id_(std::move(id)), default_language_(std::move(default_language)) {}

  // From now on batches wait until Release() or until they are cancelled.
  void Hold() {
    Change([this] { held_ = true; });
  }
  void Release() {
    Change([this] { held_ = false; });
  }
  // From now on batches fail.
  void Fail(absl::Status status) {
    Change([&] { failure_ = status; });
  }

  // Returns when `count` batches have begun.
  void WaitForBatches(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() >= count; });
  }
  // Returns when `count` batches are over.
  void WaitForEnds(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ends_.size() >= count; });
  }
  // First tokens behind the tags of each batch's sentences.
  std::vector<std::vector<int32_t>> batches() {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  // For each batch that is over, which of its sentences were cancelled then.
  std::vector<std::vector<bool>> ends() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ends_;
  }

  const std::string& id() const override { return id_; }
  int64_t max_positions() const override { return kPositions; }
  const std::string& default_language() const override {
    return default_language_;
  }

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view language) const override {
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

  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    return absl::StrJoin(ids, " ");
  }

  absl::StatusOr<std::vector<Hypotheses>> Translate(
      absl::Span<const SourceSentence> sentences,
      const BatchRun& run) override {
    const uint64_t registration =
        run.all_cancelled->OnCancel([this] { Change([] {}); });
    absl::Status failure;
    std::vector<Hypotheses> results;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      std::vector<int32_t> firsts;
      for (const SourceSentence& sentence : sentences) {
        firsts.push_back(sentence.ids[1]);
        Hypotheses& hypotheses = results.emplace_back();
        for (int n = 0; n < sentence.options.n_best; ++n) {
          hypotheses.push_back(
              {.ids = std::vector<int32_t>(sentence.ids.rbegin() + 1,
                                           sentence.ids.rend() - 1),
               .score = -0.5 * (n + 1),
               .token_count = sentence.options.max_length,
               .truncated = false});
        }
      }
      batches_.push_back(std::move(firsts));
      changed_.notify_all();
      changed_.wait(lock,
                    [&] { return !held_ || run.all_cancelled->cancelled(); });
      failure = failure_;
      std::vector<bool> cancelled;
      for (size_t i = 0; i < sentences.size(); ++i) {
        cancelled.push_back(run.cancelled(i));
      }
      ends_.push_back(std::move(cancelled));
      changed_.notify_all();
    }
    run.all_cancelled->Remove(registration);
    if (!failure.ok()) return failure;
    return results;
  }

 private:
  template <typename Action>
  void Change(const Action& action) {
    std::lock_guard<std::mutex> lock(mutex_);
    action();
    changed_.notify_all();
  }

  const std::string id_;
  const std::string default_language_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  absl::Status failure_;
  std::vector<std::vector<int32_t>> batches_;
  std::vector<std::vector<bool>> ends_;
};

}  // namespace gshard

#endif  // TESTS_ROUTER_FAKE_MODEL_H_
