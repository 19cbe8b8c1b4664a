#include "services/decoding/translator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/model/inputs.h"

namespace gshard {
namespace {

constexpr int64_t kFirstCacheLength = 16;

// Adds what the program's MoE layers report to the statistics.
void AddLoad(const Program& program, const std::vector<Tensor>& outputs,
             DecodeStatistics* statistics) {
  if (statistics == nullptr) return;
  const auto layer = [&](absl::string_view name) -> LayerLoad& {
    for (LayerLoad& load : statistics->layers) {
      if (load.layer == name) return load;
    }
    return statistics->layers.emplace_back(
        LayerLoad{.layer = std::string(name), .expert_rows = {}});
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::string_view name = program.outputs[i].first;
    if (absl::ConsumePrefix(&name, "kept/")) {
      std::vector<int64_t>& rows = layer(name).expert_rows;
      rows.resize(outputs[i].size());
      for (int64_t e = 0; e < outputs[i].size(); ++e) {
        rows[e] += outputs[i].i32()[e];
      }
    } else if (absl::ConsumePrefix(&name, "overflow/")) {
      layer(name).overflow_first += outputs[i].i32()[0];
      layer(name).overflow_second += outputs[i].i32()[1];
    }
  }
}

// Rows `rows` of the outermost dimension of `x` [R, P, N, D], with room for
// `length` positions of which the first `used` are copied. -1: undefined row.
Tensor GatherCache(const Tensor& x, const std::vector<int64_t>& rows,
                   int64_t length, int64_t used) {
  const int64_t width = x.dim(2) * x.dim(3);
  Tensor gathered(ElementType::kFloat32,
                  {static_cast<int64_t>(rows.size()), length, x.dim(2),
                   x.dim(3)});
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] < 0) continue;
    std::memcpy(gathered.f32() + r * length * width,
                x.f32() + rows[r] * x.dim(1) * width,
                used * width * sizeof(float));
  }
  return gathered;
}

// The batch while it is being decoded: the searches that are not done, and
// the tensors that belong to them.
class DecodingBatch {
 public:
  DecodingBatch(const Executor& decode, const TargetTokens& tokens,
                absl::Span<const SourceSentence> sentences,
                const std::vector<int>& max_lengths, const Tensor& lengths,
                TensorMap memory, const TensorMap& parameters,
                SegmentRunner* segments, DecodeStatistics* statistics)
      : decode_(decode),
        tokens_(tokens),
        memory_(std::move(memory)),
        parameters_(parameters),
        segments_(segments),
        statistics_(statistics),
        results_(sentences.size()) {
    for (size_t i = 0; i < sentences.size(); ++i) {
      K_ = std::max<int64_t>(K_, sentences[i].options.beam_size);
      active_.push_back({.sentence = i,
                         .source_length = lengths.i32()[i],
                         .search = BeamSearch(sentences[i].options,
                                              max_lengths[i], tokens.eos)});
    }
    for (const Node* node : decode.program().NodesOf("input")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      if (absl::StartsWith(name, "self_")) {
        const Shape& shape = ShapeAttribute(node->attributes, "shape");
        caches_[name] = Tensor(
            ElementType::kFloat32,
            {static_cast<int64_t>(active_.size()) * K_, kFirstCacheLength,
             shape[2].size(), shape[3].size()});
      }
    }
  }

  absl::StatusOr<std::vector<std::vector<DecodedHypothesis>>> Run(
      const std::function<bool(size_t)>& cancelled) {
    for (int64_t position = 0;; ++position) {
      if (cancelled) {
        for (Active& active : active_) {
          active.dropped = active.dropped || cancelled(active.sentence);
        }
      }
      Compact(position);
      if (active_.empty()) return std::move(results_);
      RETURN_IF_ERROR(Step(position));
      for (Active& active : active_) {
        if (active.dropped || !active.search.done()) continue;
        results_[active.sentence] = active.search.Results();
        active.dropped = true;
      }
      FollowParents(position + 1);
    }
  }

 private:
  struct Active {
    size_t sentence;
    int32_t source_length;
    BeamSearch search;
    bool dropped = false;
  };

  // Takes dropped sentences out of the batch, once they are a quarter of it:
  // each removal copies what the others need.
  void Compact(int64_t used) {
    std::vector<int64_t> kept;
    for (size_t i = 0; i < active_.size(); ++i) {
      if (!active_[i].dropped) kept.push_back(i);
    }
    if (kept.size() == active_.size() ||
        (!kept.empty() && kept.size() * 4 > active_.size() * 3)) {
      return;
    }
    std::vector<Active> active;
    std::vector<int64_t> rows;
    for (const int64_t i : kept) {
      active.push_back(std::move(active_[i]));
      for (int64_t k = 0; k < K_; ++k) rows.push_back(i * K_ + k);
    }
    active_ = std::move(active);
    if (active_.empty()) return;
    for (auto& [name, cache] : caches_) {
      cache = GatherCache(cache, rows, cache.dim(1), used);
    }
    for (auto& [name, tensor] : memory_) {
      tensor = GatherCache(tensor, kept, tensor.dim(1), tensor.dim(1));
    }
  }

  absl::Status Step(int64_t position) {
    const int64_t B = static_cast<int64_t>(active_.size());
    MakeRoom(position);
    Tensor tokens(ElementType::kInt32, {B, K_});
    Tensor positions(ElementType::kInt32, {B, K_});
    Tensor lengths(ElementType::kInt32, {B * K_});
    Tensor valid(ElementType::kInt32, {B, K_});
    Tensor source_lengths(ElementType::kInt32, {B});
    for (int64_t b = 0; b < B; ++b) {
      const Active& active = active_[b];
      source_lengths.i32()[b] = active.source_length;
      for (int64_t k = 0; k < K_; ++k) {
        const bool live = !active.dropped && k < active.search.num_live();
        const int64_t row = b * K_ + k;
        tokens.i32()[row] = live && position > 0
                                ? active.search.last_token(k)
                                : tokens_.bos;
        positions.i32()[row] = static_cast<int32_t>(position);
        // A hypothesis that does not exist attends to nothing.
        lengths.i32()[row] = live ? static_cast<int32_t>(position + 1) : 0;
        valid.i32()[row] = live ? 1 : 0;
      }
    }
    TensorMap inputs = memory_;
    inputs["tokens"] = std::move(tokens);
    inputs["positions"] = std::move(positions);
    inputs["lengths"] = std::move(lengths);
    inputs["valid"] = std::move(valid);
    inputs["source_lengths"] = std::move(source_lengths);
    inputs["key"] = KeyInput(0);
    for (auto& [name, cache] : caches_) inputs[name] = std::move(cache);

    ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                     decode_.Run(std::move(inputs), parameters_,
                                 {.segments = segments_}));
    AddLoad(decode_.program(), outputs, statistics_);
    Tensor logits;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = decode_.program().outputs[i].first;
      if (name == "logits") logits = std::move(outputs[i]);
      if (auto cache = caches_.find(name); cache != caches_.end()) {
        cache->second = std::move(outputs[i]);
      }
    }
    return Advance(logits);
  }

  absl::Status Advance(const Tensor& logits) {
    const int64_t V = logits.dim(1);
    const absl::Span<const float> rows = logits.span<float>();
    if (statistics_ != nullptr) ++statistics_->steps;
    for (size_t b = 0; b < active_.size(); ++b) {
      BeamSearch& search = active_[b].search;
      if (active_[b].dropped) continue;
      std::vector<std::vector<TokenScore>> candidates;
      for (int k = 0; k < search.num_live(); ++k) {
        candidates.push_back(TopTokens(rows.subspan((b * K_ + k) * V, V),
                                       search.candidates_wanted(),
                                       tokens_.never));
        if (candidates.back().empty()) {
          return absl::InternalError("the model's logits are not numbers");
        }
      }
      if (statistics_ != nullptr) {
        statistics_->decoded_tokens += search.num_live();
      }
      search.Advance(candidates);
    }
    return absl::OkStatus();
  }

  // Puts each hypothesis's cache where the hypothesis is now.
  void FollowParents(int64_t used) {
    std::vector<int64_t> rows(active_.size() * K_, -1);
    bool moved = false;
    for (size_t b = 0; b < active_.size(); ++b) {
      if (active_[b].dropped) continue;
      for (int k = 0; k < active_[b].search.num_live(); ++k) {
        const int parent = active_[b].search.parent(k);
        rows[b * K_ + k] = b * K_ + parent;
        moved = moved || parent != k;
      }
    }
    if (!moved) return;
    for (auto& [name, cache] : caches_) {
      cache = GatherCache(cache, rows, cache.dim(1), used);
    }
  }

  // Doubles the caches when position `position` does not fit.
  void MakeRoom(int64_t position) {
    for (auto& [name, cache] : caches_) {
      if (position < cache.dim(1)) continue;
      std::vector<int64_t> rows(cache.dim(0));
      for (size_t r = 0; r < rows.size(); ++r) rows[r] = r;
      cache = GatherCache(cache, rows, cache.dim(1) * 2, cache.dim(1));
    }
  }

  const Executor& decode_;
  const TargetTokens& tokens_;
  TensorMap memory_;  // cross keys and values [B, Ls, N, D]
  const TensorMap& parameters_;
  SegmentRunner* const segments_;
  DecodeStatistics* const statistics_;
  int64_t K_ = 1;
  std::vector<Active> active_;
  TensorMap caches_;  // self keys and values [B*K, P, N, D]
  std::vector<std::vector<DecodedHypothesis>> results_;
};

}  // namespace

Translator::Translator(const ModelConfig& config, Program encode,
                       Program decode, TargetTokens tokens)
    : config_(config),
      encode_(std::move(encode)),
      decode_(std::move(decode)),
      tokens_(std::move(tokens)) {}

void Translator::RoundParameters(TensorMap& parameters) const {
  encode_.RoundParameters(parameters);
  decode_.RoundParameters(parameters);
}

absl::StatusOr<std::vector<std::vector<DecodedHypothesis>>>
Translator::Translate(absl::Span<const SourceSentence> sentences,
                      const TensorMap& parameters, SegmentRunner* segments,
                      const std::function<bool(size_t)>& cancelled,
                      DecodeStatistics* statistics) const {
  const int64_t B = static_cast<int64_t>(sentences.size());
  if (B == 0) return std::vector<std::vector<DecodedHypothesis>>();
  int64_t Ls = 0;
  std::vector<int> max_lengths;
  for (int64_t i = 0; i < B; ++i) {
    const SourceSentence& sentence = sentences[i];
    const int64_t length = static_cast<int64_t>(sentence.ids.size());
    if (length < 1 || length > config_.max_positions) {
      return absl::InvalidArgumentError(
          absl::StrCat("sentence ", i, " must have 1 to ",
                       config_.max_positions, " tokens, got ", length));
    }
    Ls = std::max(Ls, length);
    const int64_t wanted = sentence.options.max_length > 0
                               ? sentence.options.max_length
                               : 2 * length + 10;
    max_lengths.push_back(
        static_cast<int>(std::min(wanted, config_.max_positions)));
  }
  Tensor source = Tensor::Zeros(ElementType::kInt32, {B, Ls});
  Tensor lengths(ElementType::kInt32, {B});
  for (int64_t i = 0; i < B; ++i) {
    const std::vector<int32_t>& ids = sentences[i].ids;
    std::copy(ids.begin(), ids.end(), source.i32() + i * Ls);
    lengths.i32()[i] = static_cast<int32_t>(ids.size());
  }
  TensorMap inputs;
  AddTokenInputs("source", source, lengths, inputs);
  inputs["key"] = KeyInput(0);
  ASSIGN_OR_RETURN(
      std::vector<Tensor> outputs,
      encode_.Run(std::move(inputs), parameters, {.segments = segments}));
  AddLoad(encode_.program(), outputs, statistics);
  TensorMap memory;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = encode_.program().outputs[i].first;
    if (absl::StartsWith(name, "cross_")) memory[name] = std::move(outputs[i]);
  }
  DecodingBatch batch(decode_, tokens_, sentences, max_lengths, lengths,
                      std::move(memory), parameters, segments, statistics);
  return batch.Run(cancelled);
}

}  // namespace gshard
