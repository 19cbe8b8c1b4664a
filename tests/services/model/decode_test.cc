// Tests incremental decoding against teacher forcing, and that no result
// depends on the rest of the batch.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/model/transformer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

constexpr int64_t kPage = 2;  // positions

// Decodes given hypotheses step by step.
class StepByStep {
 public:
  StepByStep(const ModelConfig& config, const TensorMap& parameters)
      : config_(config),
        parameters_(parameters),
        encode_(*BuildEncodeProgram(config)),
        decode_(*BuildDecodeProgram(config)) {}

  // Logits [B*K, V] of each step. hypotheses[b * K + k] are the tokens fed to
  // hypothesis k of sentence b, which is ignored after its end. Sources and
  // hypotheses have pages for `source_length` (0: the longest) and `room`
  // positions, from `first_page` on.
  std::vector<Tensor> Run(const std::vector<Sentence>& sources, int64_t K,
                          const std::vector<Sentence>& hypotheses, int64_t room,
                          int64_t source_length = 0, int64_t first_page = 0) {
    const int64_t B = sources.size(), R = B * K;
    TensorMap inputs;
    AddSentences("source", sources, source_length, inputs);
    inputs["key"] = KeyInput(0);
    auto encoded = encode_.Run(inputs, parameters_);
    CHECK(encoded.ok());
    const TensorMap memory = NamedOutputs(encode_.program(), *encoded);
    const int64_t Ls = inputs.at("source").dim(1);
    const int64_t Ts = (Ls + kPage - 1) / kPage;
    const int64_t T = (room + kPage - 1) / kPage;
    TensorMap caches = Caches(memory, first_page, first_page + B * Ts + R * T);
    std::vector<int32_t> source_lengths, source_pages, pages;
    for (int64_t r = 0; r < R; ++r) {
      source_lengths.push_back(inputs.at("source_lengths").i32()[r / K]);
      for (int64_t t = 0; t < Ts; ++t) {
        source_pages.push_back(first_page + r / K * Ts + t);
      }
      for (int64_t t = 0; t < T; ++t) {
        pages.push_back(first_page + B * Ts + r * T + t);
      }
    }
    size_t steps = 0;
    for (const Sentence& h : hypotheses) steps = std::max(steps, h.size());
    std::vector<Tensor> logits;
    for (size_t step = 0; step < steps; ++step) {
      std::vector<int32_t> tokens, positions, lengths, valid, slots;
      for (int64_t r = 0; r < R; ++r) {
        const Sentence& h = hypotheses[r];
        const bool alive = step < h.size();
        tokens.push_back(alive ? h[step] : 0);
        positions.push_back(step);
        lengths.push_back(step + 1);
        valid.push_back(alive);
        slots.push_back(pages[r * T + step / kPage] * kPage + step % kPage);
      }
      TensorMap step_inputs = std::move(caches);
      caches = TensorMap();
      step_inputs["tokens"] = Tensor::Ints({R, 1}, tokens);
      step_inputs["positions"] = Tensor::Ints({R, 1}, positions);
      step_inputs["valid"] = Tensor::Ints({R, 1}, valid);
      step_inputs["slots"] = Tensor::Ints({R}, slots);
      step_inputs["lengths"] = Tensor::Ints({R}, lengths);
      step_inputs["pages"] = Tensor::Ints({R, T}, pages);
      step_inputs["source_lengths"] = Tensor::Ints({R}, source_lengths);
      step_inputs["source_pages"] = Tensor::Ints({R, Ts}, source_pages);
      step_inputs["key"] = KeyInput(0);
      const std::byte* cache = step_inputs.at("key/0").raw();
      auto outputs = decode_.Run(std::move(step_inputs), parameters_);
      CHECK(outputs.ok());
      TensorMap named = NamedOutputs(decode_.program(), *outputs);
      outputs->clear();
      // Caches are moved in and written in place.
      EXPECT_EQ(named.at("key/0").raw(), cache);
      for (int64_t i = 0; i < config_.decoder_layers; ++i) {
        for (const char* prefix : {"key/", "value/"}) {
          const std::string name = absl::StrCat(prefix, i);
          caches[name] = std::move(named.at(name));
        }
      }
      logits.push_back(named.at("logits"));
    }
    return logits;
  }

 private:
  // Caches with the sources' keys and values from page `first` on. The rest is
  // NaN, since nothing may be read before it is written.
  TensorMap Caches(const TensorMap& memory, int64_t first, int64_t pages) {
    TensorMap caches;
    for (int64_t i = 0; i < config_.decoder_layers; ++i) {
      for (const char* name : {"key/", "value/"}) {
        Tensor cache(ElementType::kFloat32,
                     {pages, kPage, config_.heads, config_.head_width});
        std::fill_n(cache.f32(), cache.size(), NAN);
        const Tensor& source = memory.at(absl::StrCat("cross_", name, i));
        const int64_t width = config_.heads * config_.head_width;
        const int64_t Ls = source.dim(1);
        const int64_t stride = (Ls + kPage - 1) / kPage * kPage;
        for (int64_t b = 0; b < source.dim(0); ++b) {
          std::copy_n(source.f32() + b * Ls * width, Ls * width,
                      cache.f32() + (first * kPage + b * stride) * width);
        }
        caches[absl::StrCat(name, i)] = std::move(cache);
      }
    }
    return caches;
  }

  const ModelConfig config_;
  const TensorMap parameters_;
  const Executor encode_;
  const Executor decode_;
};

// -log softmax(row)[label].
double CrossEntropyOf(const Tensor& row, int32_t label) {
  double sum = 0.0;
  for (const float x : row.span<float>()) sum += std::exp(double{x});
  return std::log(sum) - row.f32()[label];
}

std::vector<ModelConfig> Configs() {
  ModelConfig plain = TinyConfig();
  ModelConfig other = TinyConfig();
  other.moe_period = 1;
  other.expert_bias = true;
  other.positions = Positions::kLearned;
  other.tie_output = false;
  ModelConfig unscaled = TinyConfig();
  unscaled.scale_tied_logits = false;
  unscaled.shared_vocabulary = true;
  unscaled.source_vocabulary_size = unscaled.target_vocabulary_size;
  ModelConfig low = other;
  low.compute_type = low.wire_type = ComputeType::kBFloat16;
  low.tie_output = true;
  return {plain, other, unscaled, low};
}

TEST(DecodeTest, GivesTheLogitsOfTeacherForcing) {
  for (const ModelConfig& config : Configs()) {
    const TensorMap parameters = TinyParameters(config, 7);
    ASSERT_OK_AND_ASSIGN(
        const Program program,
        BuildTrainProgram(config, {.label_smoothing = 0.0, .z_loss = 0.0}));
    const Executor train(program);
    StepByStep decoder(config, parameters);
    for (const SentencePair& pair : TinyPairs()) {
      const std::vector<Tensor> logits =
          decoder.Run({pair.source}, 1, {pair.target}, 8);
      TensorMap inputs = TrainInputs(config, {pair});
      const Sentence labels =
          LabelsOf(pair.target, config.target_vocabulary_size);
      for (size_t t = 0; t < labels.size(); ++t) {
        // The loss of this position alone.
        Sentence one(labels.size(), -1);
        one[t] = labels[t];
        inputs["labels"] = PaddedIds({one}, labels.size(), -1);
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> outputs,
                             train.Run(inputs, parameters));
        const TensorMap named = NamedOutputs(program, outputs);
        EXPECT_NEAR(CrossEntropyOf(logits[t], labels[t]),
                    *named.at("loss").f32(), 2e-5)
            << "position " << t;
      }
    }
  }
}

// int8 changes a token's loss by at most 5%: rounding is off by at most a 254th
// of the largest number of a row or column.
TEST(DecodeTest, Int8StaysNearFloat32) {
  for (ModelConfig config : Configs()) {
    config.compute_type = config.wire_type = ComputeType::kFloat32;
    const TensorMap parameters = TinyParameters(config, 7);
    StepByStep exact(config, parameters);
    config.compute_type = ComputeType::kInt8;
    StepByStep rounded(config, parameters);
    for (const SentencePair& pair : TinyPairs()) {
      const std::vector<Tensor> expected =
          exact.Run({pair.source}, 1, {pair.target}, 8);
      const std::vector<Tensor> logits =
          rounded.Run({pair.source}, 1, {pair.target}, 8);
      const Sentence labels =
          LabelsOf(pair.target, config.target_vocabulary_size);
      for (size_t t = 0; t < labels.size(); ++t) {
        const double loss = CrossEntropyOf(expected[t], labels[t]);
        EXPECT_NEAR(CrossEntropyOf(logits[t], labels[t]), loss, 0.05 * loss)
            << "position " << t;
        EXPECT_FALSE(TensorEqual(logits[t], expected[t]));  // it does round
      }
    }
  }
}

TEST(DecodeTest, ASentenceDoesNotSeeItsBatch) {
  for (const ModelConfig& config : Configs()) {
    StepByStep decoder(config, TinyParameters(config, 7));
    std::vector<Sentence> sources, targets;
    for (const SentencePair& pair : TinyPairs()) {
      sources.push_back(pair.source);
      targets.push_back(pair.target);
    }
    const std::vector<Tensor> together =
        decoder.Run(sources, 1, targets, 12, /*source_length=*/9,
                    /*first_page=*/3);
    for (size_t b = 0; b < sources.size(); ++b) {
      const std::vector<Tensor> alone =
          decoder.Run({sources[b]}, 1, {targets[b]}, 6);
      for (size_t t = 0; t < alone.size(); ++t) {
        EXPECT_TRUE(TensorEqual(together[t].Rows(b, b + 1), alone[t]))
            << "sentence " << b << ", position " << t;
      }
    }
  }
}

TEST(DecodeTest, AHypothesisDoesNotSeeTheOthers) {
  for (const ModelConfig& config : Configs()) {
    StepByStep decoder(config, TinyParameters(config, 7));
    const std::vector<Sentence> sources = {{1, 4, 9, 2}, {5, 2}};
    const std::vector<Sentence> hypotheses = {
        {0, 3, 12}, {0, 3, 3, 1}, {0},          {0, 9, 1, 2, 5},
        {0, 7},     {0, 7, 7},    {0, 1, 2, 3}, {0, 0, 0, 0, 0, 4}};
    const std::vector<Tensor> together = decoder.Run(sources, 4, hypotheses, 7);
    for (size_t h = 0; h < hypotheses.size(); ++h) {
      const std::vector<Tensor> alone =
          decoder.Run({sources[h / 4]}, 1, {hypotheses[h]}, 6);
      for (size_t t = 0; t < alone.size(); ++t) {
        EXPECT_TRUE(TensorEqual(together[t].Rows(h, h + 1), alone[t]))
            << "hypothesis " << h << ", position " << t;
      }
    }
  }
}

}  // namespace
}  // namespace gshard
