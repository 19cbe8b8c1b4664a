// SentencePiece, loaded into a linker namespace of its own.
//
// Debian's libsentencepiece.so.0 contains protobuf 3.14 and exports its
// symbols; in one namespace with libprotobuf 3.21, which gRPC needs, either
// aborts the process. dlmopen(LM_ID_NEWLM) gives it a namespace with its own
// libc and libstdc++, in which neither side sees the other's symbols. Only the
// C interface of sentencepiece_shim.h crosses the border: bytes in, bytes out.

#ifndef SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_
#define SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_

#include "absl/status/statusor.h"
#include "services/tokenizer/sentencepiece_shim.h"

namespace gshard {

// The functions of gshard_sentencepiece.so, searched for in the folder of the
// running program, in ../lib and ../lib/gshard relative to it, and in the build
// folder. Loaded once, never unloaded. Thread-safe.
//
// Errors: FailedPrecondition with each place and its error.
absl::StatusOr<const gshard_sp_functions*> LoadSentencePiece();

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_
