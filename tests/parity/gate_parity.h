// The gate against the recorded results of other implementations: the same
// experts, slots and drops, weights to 1e-6, balance loss to 1e-5.

#ifndef TESTS_PARITY_GATE_PARITY_H_
#define TESTS_PARITY_GATE_PARITY_H_

#include <ostream>
#include <string>
#include <vector>

#include "services/graph/device.h"
#include "services/moe/gating.h"
#include "tests/parity/fixture.h"
#include "tests/parity/implementations.h"

namespace gshard {

inline constexpr const char* kGateFixtures[] = {
    "gate_tiny", "gate_tiny_overflow", "gate_g4", "gate_e64",
    "gate_e64_overflow"};

// An implementation on a fixture, which has its results.
struct GateCase {
  Implementation implementation;
  std::string fixture;

  std::string name() const { return implementation.name + "_on_" + fixture; }
};

inline void PrintTo(const GateCase& c, std::ostream* out) { *out << c.name(); }

std::vector<GateCase> GateCases();

// Those that draw no random numbers: a program draws its own.
std::vector<GateCase> GateProgramCases();

// What a gate is given in a case.
struct GateInputs {
  Tensor logits;  // f32[T, E]
  Tensor valid;   // u8[T], or empty
  GatingOptions options;
};
GateInputs InputsOf(const GateCase& c, const Fixture& fixture);

// Compares a routing with that recorded for the implementation `x`.
void ExpectRoutesAs(const Implementation& x, const Fixture& fixture,
                    const Routing& routing);

// Runs a case of GateProgramCases() as a program on `backend`, and on `device`
// unless that is null.
void CheckGateProgram(const GateCase& c, Backend backend, Device* device);

}  // namespace gshard

#endif  // TESTS_PARITY_GATE_PARITY_H_
