#include "router/admission/shedding.h"

#include <utility>

namespace gshard {

std::set<uint64_t> RequestsToShed(
    const std::vector<WaitingSentence>& sentences) {
  // By age; ids increase with arrival.
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>> requests;
  for (const WaitingSentence& sentence : sentences) {
    requests.emplace(sentence.arrival, sentence.request);
  }
  std::set<uint64_t> shed;
  auto youngest = requests.rbegin();
  while (2 * shed.size() < requests.size()) shed.insert((youngest++)->second);
  return shed;
}

}  // namespace gshard
