#include "services/decoding/routing_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/decoding/decoder_cache.h"
#include "services/model/inputs.h"

namespace gshard {
namespace {

TensorMap ByName(const Program& program, std::vector<Tensor> outputs) {
  TensorMap named;
  for (size_t i = 0; i < outputs.size(); ++i) {
    named[program.outputs[i].first] = std::move(outputs[i]);
  }
  return named;
}

// Adds the tokens of one run to the layers.
void AddRouting(const Program& program, const TensorMap& outputs,
                std::vector<LayerRouting>& layers) {
  size_t at = 0;
  for (const auto& [name, value] : program.outputs) {
    absl::string_view layer = name;
    if (!absl::ConsumePrefix(&layer, "expert/")) continue;
    if (at == layers.size()) {
      layers.push_back({.layer = std::string(layer), .tokens = {}});
    }
    const Tensor& expert = outputs.at(name);
    const Tensor& slot = outputs.at(absl::StrCat("slot/", layer));
    const Tensor& weight = outputs.at(absl::StrCat("weight/", layer));
    for (int64_t t = 0; t < expert.dim(0); ++t) {
      std::vector<ExpertVisit>& visits = layers[at].tokens.emplace_back();
      for (int64_t k = 2 * t; k < 2 * t + 2; ++k) {
        if (expert.i32()[k] < 0) continue;
        visits.push_back({.expert = expert.i32()[k],
                          .weight = weight.f32()[k],
                          .overflowed = slot.i32()[k] < 0});
      }
    }
    ++at;
  }
}

}  // namespace

RoutingTracer::RoutingTracer(Program encode, Program decode, Device* device)
    : encode_(std::move(encode), device, {"cross_"}),
      decode_(std::move(decode), device, {"key/", "value/"}) {}

absl::StatusOr<RoutingTrace> RoutingTracer::Trace(
    absl::Span<const int32_t> source, absl::Span<const int32_t> target,
    const TensorMap& parameters, SegmentRunner* segments,
    const std::function<bool()>& stopped) const {
  // A program may have no segments, whose runner could stop it.
  const RunOptions run = {.context = RunContext().With<SegmentRunner>(segments),
                          .cancelled = stopped};
  RoutingTrace trace;
  const auto Ls = static_cast<int32_t>(source.size());
  TensorMap inputs;
  AddTokenInputs("source", Tensor::Of<int32_t>({1, Ls}, source),
                 Tensor::Ints({1}, {Ls}), inputs);
  inputs["key"] = KeyInput(0);
  ASSIGN_OR_RETURN(std::vector<Tensor> encoded,
                   encode_.Run(std::move(inputs), parameters, run));
  const TensorMap memory = ByName(encode_.program(), std::move(encoded));
  AddRouting(encode_.program(), memory, trace.source);

  const int64_t Ts = PagesFor(Ls);
  const int64_t T = PagesFor(static_cast<int64_t>(target.size()));
  DecoderCache cache(decode_.program(), Ts + T, decode_.device());
  RETURN_IF_ERROR(cache.Reserve(Ts + T));
  ASSIGN_OR_RETURN(const std::vector<PageTable> sources,
                   cache.AddSources(memory, {Ls}));
  const PageTable& source_pages = sources[0];
  PageTable pages;
  for (int64_t t = 0; t < T; ++t) pages.push_back(cache.pages().Take());
  for (int32_t p = 0; p < static_cast<int32_t>(target.size()); ++p) {
    const auto slot = static_cast<int32_t>(
        pages[p / kPagePositions] * kPagePositions + p % kPagePositions);
    TensorMap step = {{"tokens", Tensor::Ints({1, 1}, {target[p]})},
                      {"positions", Tensor::Ints({1, 1}, {p})},
                      {"valid", Tensor::Ints({1, 1}, {1})},
                      {"slots", Tensor::Ints({1}, {slot})},
                      {"lengths", Tensor::Ints({1}, {p + 1})},
                      {"pages", Tensor::Ints({1, T}, pages)},
                      {"source_lengths", Tensor::Ints({1}, {Ls})},
                      {"source_pages", Tensor::Ints({1, Ts}, source_pages)},
                      {"key", KeyInput(0)}};
    cache.MoveTo(step);
    ASSIGN_OR_RETURN(std::vector<Tensor> decoded,
                     decode_.Run(std::move(step), parameters, run));
    TensorMap outputs = ByName(decode_.program(), std::move(decoded));
    AddRouting(decode_.program(), outputs, trace.target);
    for (auto& [name, tensor] : outputs) cache.TakeBack(name, tensor);
  }
  return trace;
}

}  // namespace gshard
