// SentencePiece, loaded into a linker namespace of its own.
//
// Debian's libsentencepiece.so.0 brings its own protobuf 3.14 and exports its
// symbols; in one namespace with libprotobuf 3.21, which gRPC needs, either of
// them ends the process. dlmopen(LM_ID_NEWLM) gives it a namespace with its own
// libc and libstdc++, and no symbol of one side is seen by the other. What
// crosses is the C interface of sentencepiece_shim.h: bytes in, bytes out.

#ifndef SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_
#define SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_

#include "absl/status/statusor.h"
#include "services/tokenizer/sentencepiece_shim.h"

namespace gshard {

// The functions of gshard_sentencepiece.so, looked for in the folder of the
// running program, in ../lib and ../lib/gshard beside it, and where this build
// put it. Loaded once, never unloaded. Thread-safe.
//
// Errors: FailedPrecondition naming each place and what was wrong there.
absl::StatusOr<const gshard_sp_functions*> LoadSentencePiece();

}  // namespace gshard

#endif  // SERVICES_TOKENIZER_ISOLATED_LIBRARY_H_
