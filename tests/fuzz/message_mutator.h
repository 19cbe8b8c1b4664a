// Changes to a protobuf message that leave it a message: what a fuzzer's
// mutations of bytes rarely do, so that checks behind the parser are reached.
// Debian 12 has no libprotobuf-mutator.
//
// A fuzzer whose inputs are messages defines LLVMFuzzerCustomMutator by one of
// these; libFuzzer then calls it, and so do the tests (replay_main.cc).

#ifndef TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <random>

namespace gshard {

using FuzzRandom = std::minstd_rand;

// Sets, clears, adds, removes, copies or swaps a field of `message`, or of one
// inside of it, to a value that code often gets wrong.
void MutateMessage(FuzzRandom& random, google::protobuf::Message* message);

// For inputs that are messages as text: parses the input of `size` bytes into
// `message`, changes it and writes it back, `max_size` bytes at most. What is
// no such text is changed as bytes. Returns the new size.
size_t MutateMessageText(uint8_t* data, size_t size, size_t max_size,
                         unsigned seed, google::protobuf::Message* message);

// As libFuzzer without us; outside of it a byte is changed.
size_t MutateBytes(FuzzRandom& random, uint8_t* data, size_t size,
                   size_t max_size);

}  // namespace gshard

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed);

#endif  // TESTS_FUZZ_MESSAGE_MUTATOR_H_
