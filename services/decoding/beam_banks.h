// Sharing a beam among hypotheses that have met different parts of their
// constraints: dynamic beam allocation (Post and Vilar, arXiv:1804.06609).
//
// A bank holds the candidates with the same progress. Each bank has an even
// share of the beam; what a bank cannot fill goes to the others, those with the
// most progress first. Without it, the likely candidates, which put off what
// they must contain, would take the whole beam.

#ifndef SERVICES_DECODING_BEAM_BANKS_H_
#define SERVICES_DECODING_BEAM_BANKS_H_

#include <vector>

namespace gshard {

// progress[i] in [0, banks) of candidate i, the best candidate first. Returns
// the indices of at most `beam` candidates, ascending: of each bank its best.
std::vector<int> ShareBeam(const std::vector<int>& progress, int banks,
                           int beam);

}  // namespace gshard

#endif  // SERVICES_DECODING_BEAM_BANKS_H_
