// A GShard Transformer of a few hundred weights, and batches for it.

#ifndef TESTS_TESTING_TINY_MODEL_H_
#define TESTS_TESTING_TINY_MODEL_H_

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "services/config/model_config.h"
#include "services/graph/executor.h"
#include "services/model/inputs.h"
#include "services/model/parameters.h"
#include "services/model/transformer.h"
#include "tests/testing/panels.h"
#include "tests/testing/tensors.h"

namespace gshard {

// Two layers in each stack, the first with an MoE of four experts. No dropout,
// no capacity limit, always both experts: differentiable except where choices
// change.
inline ModelConfig TinyConfig() {
  ModelConfig config;
  config.name = "tiny";
  config.encoder_layers = 2;
  config.decoder_layers = 2;
  config.model_width = 8;
  config.ffn_width = 12;
  config.expert_width = 6;
  config.heads = 2;
  config.head_width = 4;
  config.experts = 4;
  config.source_vocabulary_size = 11;
  config.target_vocabulary_size = 13;
  config.max_positions = 32;
  config.dropout = {
      .input = 0.0, .residual = 0.0, .attention = 0.0, .ffn = 0.0, .moe = 0.0};
  config.gate.training_policy = SecondExpertPolicy::kAll;
  config.gate.training_capacity_factor = 0.0;
  return config;
}

// Initial values of all parameters. Constant ones get small random numbers
// added, so that a mistake with a scale or bias shows.
inline TensorMap TinyParameters(const ModelConfig& config, uint64_t seed) {
  std::vector<int32_t> experts(config.experts);
  std::iota(experts.begin(), experts.end(), 0);
  TensorMap parameters;
  for (const ParameterSpec& spec : ModelParameters(config)) {
    auto value = InitialValue(spec, seed, experts);
    CHECK(value.ok());
    const InitializerKind kind = spec.initializer.kind;
    if (kind == InitializerKind::kZeros || kind == InitializerKind::kOnes) {
      for (int64_t i = 0; i < value->size(); ++i) {
        value->f32()[i] += 0.2f * RandomUniform(FoldIn(seed, spec.name), i);
      }
    }
    parameters[spec.name] = *std::move(value);
  }
  return parameters;
}

// `parameters` as a serving session holds them.
inline TensorMap AsServed(const WeightForms& weights, TensorMap parameters) {
  CastToBf16(weights, parameters);
  for (const auto& [name, form] : weights) {
    if (!form.in_panels()) continue;
    Tensor& tensor = parameters.at(name);
    if (form.type == ElementType::kInt8) {
      tensor = *RoundToInt8(tensor, form);
      continue;
    }
    tensor = InPanels(tensor, form.MatricesOf(tensor.dims()),
                      form.RowsOf(tensor.dims()), form.transposed);
  }
  return parameters;
}

using Sentence = std::vector<int32_t>;
struct SentencePair {
  Sentence source;
  Sentence target;  // decoder input, from which labels are made
};

// The label at each position of a target, an arbitrary function of it.
inline Sentence LabelsOf(const Sentence& target, int64_t vocabulary) {
  Sentence labels;
  for (size_t i = 0; i < target.size(); ++i) {
    labels.push_back(i + 1 < target.size() ? target[i + 1]
                                           : (target[0] + 1) % vocabulary);
  }
  return labels;
}

// i32[B, length], rows padded with `padding`.
inline Tensor PaddedIds(const std::vector<Sentence>& sentences, int64_t length,
                        int32_t padding) {
  std::vector<int32_t> ids;
  for (const Sentence& sentence : sentences) {
    ids.insert(ids.end(), sentence.begin(), sentence.end());
    ids.insert(ids.end(), length - sentence.size(), padding);
  }
  return Tensor::Ints({static_cast<int64_t>(sentences.size()), length}, ids);
}

// Inputs `side`, `side`_positions, `side`_lengths and `side`_valid, padded to
// `length` or, if that is 0, to the longest.
inline void AddSentences(const std::string& side,
                         const std::vector<Sentence>& sentences, int64_t length,
                         TensorMap& inputs) {
  std::vector<int32_t> lengths;
  int64_t longest = length;
  for (const Sentence& sentence : sentences) {
    lengths.push_back(sentence.size());
    longest = std::max<int64_t>(longest, sentence.size());
  }
  const int64_t B = sentences.size();
  AddTokenInputs(side, PaddedIds(sentences, longest, 0),
                 Tensor::Ints({B}, lengths), inputs);
}

// Inputs of the training program. Empty sentences become rows of padding.
inline TensorMap TrainInputs(const ModelConfig& config,
                             const std::vector<SentencePair>& pairs,
                             int64_t key = 1, int64_t source_length = 0,
                             int64_t target_length = 0) {
  std::vector<Sentence> sources, targets, labels;
  float tokens = 0;
  for (const SentencePair& pair : pairs) {
    sources.push_back(pair.source);
    targets.push_back(pair.target);
    labels.push_back(LabelsOf(pair.target, config.target_vocabulary_size));
    tokens += static_cast<float>(pair.target.size());
  }
  TensorMap inputs;
  AddSentences("source", sources, source_length, inputs);
  AddSentences("target", targets, target_length, inputs);
  inputs["labels"] = PaddedIds(labels, inputs["target"].dim(1), -1);
  inputs["target_tokens"] = Tensor::Scalar(tokens);
  inputs["key"] = KeyInput(key);
  return inputs;
}

// Three pairs of different lengths.
inline std::vector<SentencePair> TinyPairs() {
  return {{{1, 4, 9, 2}, {0, 3, 12}},
          {{5, 2}, {0, 7, 7, 2, 5}},
          {{3, 3, 8}, {0, 11}}};
}

// Outputs by name.
inline TensorMap NamedOutputs(const Program& program,
                              const std::vector<Tensor>& outputs) {
  TensorMap named;
  for (size_t i = 0; i < outputs.size(); ++i) {
    named[program.outputs[i].first] = outputs[i];
  }
  return named;
}

}  // namespace gshard

#endif  // TESTS_TESTING_TINY_MODEL_H_
