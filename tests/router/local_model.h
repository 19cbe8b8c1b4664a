// A TranslationModel that runs whole programs in this process, without workers
// or tokenizer. A text is a list of ids, "4 7 9"; sources start with kTag.

#ifndef TESTS_ROUTER_LOCAL_MODEL_H_
#define TESTS_ROUTER_LOCAL_MODEL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "router/models/translation_model.h"
#include "services/base/status_macros.h"
#include "services/model/transformer.h"

namespace gshard {

class LocalModel final : public TranslationModel {
 public:
  static constexpr int32_t kTag = 2;

  LocalModel(std::string id, const ModelConfig& config, TensorMap parameters,
             TargetTokens tokens)
      : id_(std::move(id)),
        max_positions_(config.max_positions),
        eos_(tokens.eos),
        parameters_(std::move(parameters)),
        translator_(config, *BuildEncodeProgram(config),
                    *BuildDecodeProgram(config), std::move(tokens)) {}

  const Translator& translator() const { return translator_; }
  const TensorMap& parameters() const { return parameters_; }

  const std::string& id() const override { return id_; }
  int64_t max_positions() const override { return max_positions_; }
  const std::vector<std::string>& languages() const override {
    return languages_;
  }
  const std::string& default_language() const override { return language_; }
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, absl::string_view) const override {
    absl::StatusOr<std::vector<int32_t>> ids = EncodeTarget(text);
    if (!ids.ok()) return Annotate(ids.status(), "text");
    ids->insert(ids->begin(), kTag);
    ids->push_back(eos_);
    return ids;
  }
  absl::StatusOr<std::vector<int32_t>> EncodeTarget(
      absl::string_view text) const override {
    std::vector<int32_t> ids;
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      if (!absl::SimpleAtoi(word, &ids.emplace_back())) {
        return absl::InvalidArgumentError("expected numbers");
      }
    }
    return ids;
  }
  int32_t CountUnknown(absl::Span<const int32_t>) const override { return 0; }
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    return absl::StrJoin(ids, " ");
  }
  int64_t CachedPositions(const SourceSentence& sentence) const override {
    return translator_.CachedPositions(sentence);
  }
  std::unique_ptr<ModelBatch> NewBatch(int64_t max_positions) override {
    return std::make_unique<Batch>(*this, max_positions);
  }

 private:
  class Batch final : public ModelBatch {
   public:
    Batch(const LocalModel& model, int64_t max_positions)
        : batch_(model.translator_, model.parameters_, max_positions) {}

    absl::Status Join(absl::Span<const JoiningSentence> joining,
                      const BatchRun&) override {
      return batch_.Join(joining, nullptr, nullptr);
    }
    absl::Status Step(const BatchRun&) override {
      return batch_.Step(nullptr, nullptr);
    }
    void Leave(uint64_t id) override { batch_.Leave(id); }
    std::vector<FinishedSentence> TakeFinished() override {
      return batch_.TakeFinished();
    }
    int64_t rows() const override { return batch_.rows(); }

   private:
    RunningBatch batch_;
  };

  const std::string id_;
  const std::string language_ = "xx";
  const std::vector<std::string> languages_ = {language_};
  const int64_t max_positions_;
  const int32_t eos_;
  const TensorMap parameters_;
  const Translator translator_;
};

}  // namespace gshard

#endif  // TESTS_ROUTER_LOCAL_MODEL_H_
