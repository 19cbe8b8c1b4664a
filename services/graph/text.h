// The text form of a program: printed for humans, parsed by workers.
//
//   program "ffn" {
//     %0 = input() {name="x", shape=[B, 8], type="f32"} : f32[B, 8]
//     %1 = parameter() {name="wi", shape=[8, 16]} : f32[8, 16]
//     %2 = einsum(%0, %1) {equation="bm,mh->bh"} : f32[B, 16]
//     %3 = relu(%2) : f32[B, 16] @"split(1, model)"
//     output "h" = %3
//   }
//
// One node per line, with its results numbered in order. The result types
// follow the colon, each with its sharding annotation if it has one. Attribute
// values are integers, numbers (with a point or an exponent), strings, lists of
// integers <1, 2> and shapes [B, 8] of at most 16 dimensions. Strings have the
// escapes \", \\ and \n.

#ifndef SERVICES_GRAPH_TEXT_H_
#define SERVICES_GRAPH_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/graph/program.h"

namespace gshard {

std::string ProgramToText(const Program& program);

// Parses and checks a program; the text is untrusted. Types are inferred again
// and must equal the given ones. ParseProgram(ProgramToText(p)) equals p.
//
// Errors: InvalidArgument with the line and what was expected;
// ResourceExhausted for a text over 64 MiB.
absl::StatusOr<Program> ParseProgram(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_GRAPH_TEXT_H_
