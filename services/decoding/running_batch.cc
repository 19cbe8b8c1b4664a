#include "services/decoding/running_batch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/model/inputs.h"

namespace gshard {

RunningBatch::RunningBatch(const Translator& translator,
                           const TensorMap& parameters, int64_t max_positions)
    : translator_(translator),
      parameters_(parameters),
      cache_(translator.decode().program(), max_positions / kPagePositions,
             translator.decode().device()) {}

absl::Status RunningBatch::Join(absl::Span<const JoiningSentence> joining,
                                SegmentRunner* segments,
                                DecodeStatistics* statistics) {
  if (joining.empty()) return absl::OkStatus();
  int64_t wanted = 0;
  for (const JoiningSentence& one : joining) {
    RETURN_IF_ERROR(translator_.Check(*one.sentence));
    for (const Active& active : active_) {
      if (active.id == one.id) {
        return absl::InvalidArgumentError(
            absl::StrCat("sentence ", one.id, " is in the batch"));
      }
    }
    wanted += translator_.CachedPositions(*one.sentence) / kPagePositions;
  }
  if (reserved_ + wanted > cache_.pages().max_pages()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected sentences of at most ",
                     (cache_.pages().max_pages() - reserved_) * kPagePositions,
                     " cached positions, got ", wanted * kPagePositions));
  }
  std::vector<ChoiceCount> choices(joining.size());
  ASSIGN_OR_RETURN(const TensorMap memory,
                   Encode(joining, segments, statistics, &choices));
  RETURN_IF_ERROR(cache_.Reserve(reserved_ + wanted));
  std::vector<int64_t> lengths;
  for (const JoiningSentence& one : joining) {
    lengths.push_back(static_cast<int64_t>(one.sentence->ids.size()));
  }
  ASSIGN_OR_RETURN(std::vector<PageTable> sources,
                   cache_.AddSources(memory, lengths));
  for (size_t b = 0; b < joining.size(); ++b) {
    const SourceSentence& sentence = *joining[b].sentence;
    const auto length = static_cast<int64_t>(sentence.ids.size());
    const int64_t reserved =
        translator_.CachedPositions(sentence) / kPagePositions;
    reserved_ += reserved;
    active_.push_back({.id = joining[b].id,
                       .reserved = reserved,
                       .source_length = length,
                       .source = std::move(sources[b]),
                       .search = translator_.Search(sentence),
                       .allow_unknown = sentence.options.allow_unknown,
                       .pages = std::vector<PageTable>(1),
                       .position = 0,
                       .choices = choices[b],
                       .require_full = sentence.options.require_full});
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorMap> RunningBatch::Encode(
    absl::Span<const JoiningSentence> joining, SegmentRunner* segments,
    DecodeStatistics* statistics, std::vector<ChoiceCount>* choices) {
  const auto B = static_cast<int64_t>(joining.size());
  int64_t Ls = 0;
  for (const JoiningSentence& one : joining) {
    Ls = std::max(Ls, static_cast<int64_t>(one.sentence->ids.size()));
  }
  Tensor source = Tensor::Zeros(ElementType::kInt32, {B, Ls});
  Tensor lengths(ElementType::kInt32, {B});
  for (int64_t b = 0; b < B; ++b) {
    const std::vector<int32_t>& ids = joining[b].sentence->ids;
    std::copy(ids.begin(), ids.end(), source.i32() + b * Ls);
    lengths.i32()[b] = static_cast<int32_t>(ids.size());
  }
  TensorMap inputs;
  AddTokenInputs("source", source, lengths, inputs);
  inputs["key"] = KeyInput(0);
  const DeviceExecutor& encode = translator_.encode();
  ASSIGN_OR_RETURN(
      std::vector<Tensor> outputs,
      encode.Run(std::move(inputs), parameters_,
                 {.context = RunContext().With<SegmentRunner>(segments)}));
  AddLayerLoads(encode.program(), outputs, statistics);
  std::vector<int32_t> sentence_of_token(B * Ls, -1);
  for (int64_t b = 0; b < B; ++b) {
    std::fill_n(sentence_of_token.begin() + b * Ls, lengths.i32()[b],
                static_cast<int32_t>(b));
  }
  AddChoices(encode.program(), outputs, sentence_of_token,
             absl::MakeSpan(*choices));
  TensorMap memory;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = encode.program().outputs[i].first;
    if (absl::StartsWith(name, "cross_")) memory[name] = std::move(outputs[i]);
  }
  return memory;
}

absl::Status RunningBatch::MakeRoom() {
  std::vector<PageCopy> copies;
  for (Active& active : active_) {
    const int64_t used = active.position % kPagePositions;
    for (PageTable& table : active.pages) {
      if (used == 0) {
        table.push_back(cache_.pages().Take());
      } else if (cache_.pages().shared(table.back())) {
        const int32_t page = cache_.pages().Take();
        copies.push_back({table.back(), page, used});
        // Somebody else still holds it.
        cache_.pages().Release(table.back());
        table.back() = page;
      }
    }
  }
  return cache_.CopyPages(copies);
}

int64_t RunningBatch::rows() const {
  int64_t rows = 0;
  for (const Active& active : active_) rows += active.search.num_live();
  return rows;
}

TensorMap RunningBatch::DecoderInputs() {
  const int64_t R = rows();
  size_t T = 1, Ts = 1;
  for (const Active& active : active_) {
    T = std::max(T, active.pages[0].size());
    Ts = std::max(Ts, active.source.size());
  }
  const auto ints = [](Dims dims) {
    return Tensor::Zeros(ElementType::kInt32, std::move(dims));
  };
  Tensor tokens = ints({R, 1}), positions = ints({R, 1}), valid = ints({R, 1});
  Tensor slots = ints({R}), lengths = ints({R}), source_lengths = ints({R});
  Tensor pages = ints({R, static_cast<int64_t>(T)});
  Tensor source_pages = ints({R, static_cast<int64_t>(Ts)});
  int64_t row = 0;
  for (const Active& active : active_) {
    const auto position = static_cast<int32_t>(active.position);
    for (int k = 0; k < active.search.num_live(); ++k, ++row) {
      const PageTable& table = active.pages[k];
      tokens.i32()[row] =
          position > 0 ? active.search.last_token(k) : translator_.tokens().bos;
      positions.i32()[row] = position;
      valid.i32()[row] = 1;
      slots.i32()[row] = static_cast<int32_t>(table.back() * kPagePositions +
                                              position % kPagePositions);
      lengths.i32()[row] = position + 1;
      std::copy(table.begin(), table.end(), pages.i32() + row * T);
      source_lengths.i32()[row] = static_cast<int32_t>(active.source_length);
      std::copy(active.source.begin(), active.source.end(),
                source_pages.i32() + row * Ts);
    }
  }
  TensorMap inputs = {{"tokens", tokens},
                      {"positions", positions},
                      {"valid", valid},
                      {"slots", slots},
                      {"lengths", lengths},
                      {"pages", pages},
                      {"source_lengths", source_lengths},
                      {"source_pages", source_pages},
                      {"key", KeyInput(0)}};
  cache_.MoveTo(inputs);
  return inputs;
}

absl::Status RunningBatch::Step(SegmentRunner* segments,
                                DecodeStatistics* statistics) {
  if (active_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(MakeRoom());
  const DeviceExecutor& decode = translator_.decode();
  std::unique_ptr<DeviceRun> run;
  if (decode.device() != nullptr) {
    ASSIGN_OR_RETURN(run, decode.device()->BeginRun());
  }
  ASSIGN_OR_RETURN(
      std::vector<Tensor> outputs,
      decode.RunIn(run.get(), DecoderInputs(), parameters_,
                   {.context = RunContext().With<SegmentRunner>(segments)}));
  Tensor logits;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = decode.program().outputs[i].first;
    if (name == "logits") {
      logits = std::move(outputs[i]);
    } else {
      cache_.TakeBack(name, outputs[i]);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::vector<TokenScore>> candidates,
                   Candidates(run.get(), logits));
  AddLayerLoads(decode.program(), outputs, statistics);
  if (statistics != nullptr) {
    ++statistics->steps;
    statistics->decoded_tokens += rows();
  }
  std::vector<int32_t> sentence_of_row;
  for (size_t i = 0; i < active_.size(); ++i) {
    sentence_of_row.insert(sentence_of_row.end(), active_[i].search.num_live(),
                           static_cast<int32_t>(i));
  }
  std::vector<ChoiceCount> choices(active_.size());
  AddChoices(decode.program(), outputs, sentence_of_row,
             absl::MakeSpan(choices));
  for (size_t i = 0; i < active_.size(); ++i) {
    active_[i].choices.made += choices[i].made;
    active_[i].choices.lost += choices[i].lost;
    active_[i].choices.cost += choices[i].cost;
  }
  Advance(candidates);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<TokenScore>>> RunningBatch::Candidates(
    DeviceRun* run, const Tensor& logits) const {
  std::vector<std::vector<int32_t>> also;  // of each row
  std::vector<TokensWanted> wanted;
  for (const Active& active : active_) {
    for (int k = 0; k < active.search.num_live(); ++k) {
      also.push_back(active.search.tokens_wanted(k));
      wanted.push_back({.count = active.search.candidates_wanted(),
                        .never = translator_.never(active.allow_unknown)});
    }
  }
  for (size_t row = 0; row < also.size(); ++row) wanted[row].also = also[row];
  if (run == nullptr) return TopTokensOfRows(logits, wanted);
  return run->TopTokensOfRows(logits, wanted);
}

void RunningBatch::Advance(
    absl::Span<const std::vector<TokenScore>> candidates) {
  std::vector<Active> running;
  for (Active& active : active_) {
    const auto of_rows = candidates.subspan(0, active.search.num_live());
    candidates.remove_prefix(of_rows.size());
    if (std::any_of(of_rows.begin(), of_rows.end(),
                    [](const auto& of_row) { return of_row.empty(); })) {
      Release(active);
      finished_.push_back({.id = active.id,
                           .hypotheses = absl::InternalError(
                               "the model's logits are not numbers")});
      continue;
    }
    active.search.Advance(of_rows);
    ++active.position;
    if (active.require_full && active.choices.lost > 0) {
      GiveUp(active);
    } else if (active.search.done()) {
      Release(active);
      std::vector<DecodedHypothesis> hypotheses = active.search.Results();
      for (DecodedHypothesis& hypothesis : hypotheses) {
        hypothesis.lost_share = active.choices.lost_share();
      }
      finished_.push_back({.id = active.id,
                           .hypotheses = std::move(hypotheses),
                           .steps = active.position,
                           .row_cost = active.choices.mean_cost()});
    } else {
      FollowParents(active, cache_.pages());
      running.push_back(std::move(active));
    }
  }
  active_ = std::move(running);
}

void RunningBatch::GiveUp(Active& active) {
  Release(active);
  DecodedHypothesis nothing;
  nothing.lost_share = active.choices.lost_share();
  finished_.push_back(
      {.id = active.id,
       .hypotheses = std::vector<DecodedHypothesis>{std::move(nothing)}});
}

void RunningBatch::FollowParents(Active& active, PagePool& pages) {
  std::vector<PageTable> tables;
  for (int k = 0; k < active.search.num_live(); ++k) {
    tables.push_back(active.pages[active.search.parent(k)]);
    for (const int32_t page : tables.back()) pages.Share(page);
  }
  for (const PageTable& table : active.pages) {
    for (const int32_t page : table) pages.Release(page);
  }
  active.pages = std::move(tables);
}

void RunningBatch::Release(Active& active) {
  for (const int32_t page : active.source) cache_.pages().Release(page);
  for (const PageTable& table : active.pages) {
    for (const int32_t page : table) cache_.pages().Release(page);
  }
  active.source.clear();
  active.pages.clear();
  reserved_ -= active.reserved;
}

void RunningBatch::Leave(uint64_t id) {
  const auto found =
      std::find_if(active_.begin(), active_.end(),
                   [id](const Active& active) { return active.id == id; });
  if (found == active_.end()) return;
  Release(*found);
  active_.erase(found);
}

std::vector<FinishedSentence> RunningBatch::TakeFinished() {
  return std::exchange(finished_, {});
}

}  // namespace gshard
