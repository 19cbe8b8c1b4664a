// Shares a beam among hypotheses that have met different parts of their
// constraints: dynamic beam allocation (Post and Vilar, arXiv:1804.06609).
//
// A bank holds the candidates with the same progress. Each bank has an equal
// share of the beam; shares that a bank cannot fill go to the others, most
// progress first. Otherwise likely candidates, which postpone required phrases,
// would take the whole beam.

#ifndef SERVICES_DECODING_BEAM_BANKS_H_
#define SERVICES_DECODING_BEAM_BANKS_H_

#include <vector>

namespace gshard {

// progress[i] in [0, banks) of candidate i, best candidate first. Returns the
// indices of at most `beam` candidates, ascending: the best of each bank.
std::vector<int> ShareBeam(const std::vector<int>& progress, int banks,
                           int beam);

}  // namespace gshard

#endif  // SERVICES_DECODING_BEAM_BANKS_H_
