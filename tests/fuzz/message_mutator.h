// Mutates a protobuf message so that it stays a message, which mutations of
// bytes rarely do, to reach the checks behind the parser. Debian 12 has no
// libprotobuf-mutator.
//
// A fuzzer whose inputs are messages defines LLVMFuzzerCustomMutator by one of
// these functions; libFuzzer calls it, and so do the tests (replay_main.cc).

#ifndef TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <random>

namespace gshard {

using FuzzRandom = std::minstd_rand;

// Sets, clears, adds, removes, copies or swaps a field of `message` or of a
// nested message, favouring values that code often gets wrong.
void MutateMessage(FuzzRandom& random, google::protobuf::Message* message);

// For inputs that are messages as text: parses the input of `size` bytes into
// `message`, mutates it and writes it back, at most `max_size` bytes. Mutates
// an input that does not parse as bytes. Returns the new size.
size_t MutateMessageText(uint8_t* data, size_t size, size_t max_size,
                         unsigned seed, google::protobuf::Message* message);

// Mutates as libFuzzer does by itself; without libFuzzer, changes one byte.
size_t MutateBytes(FuzzRandom& random, uint8_t* data, size_t size,
                   size_t max_size);

}  // namespace gshard

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed);

#endif  // TESTS_FUZZ_MESSAGE_MUTATOR_H_
