// The C interface of the library gshard_sentencepiece.so, the only code that
// uses libsentencepiece. See isolated_library.h for why it is isolated.
//
// No exceptions and no memory ownership cross it: results are passed to `sink`,
// which copies them, before a function returns. Functions return 0, or 1 after
// passing an error message to `sink`.

#ifndef SERVICES_TOKENIZER_SENTENCEPIECE_SHIM_H_
#define SERVICES_TOKENIZER_SENTENCEPIECE_SHIM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// `data` is `size` bytes of text, of int32 ids, or of an error message, valid
// only during the call.
typedef void (*gshard_sp_sink)(void* context, const void* data, size_t size);

// Raised when a signature changes.
enum { kGshardSpVersion = 1 };

struct gshard_sp_functions {
  uint32_t version;

  // Makes a processor from the bytes of a model file.
  int (*load)(const char* model, size_t size, void** processor, void* context,
              gshard_sp_sink sink);

  // Frees a processor.
  void (*unload)(void* processor);

  // Gives `sink` the ids of `text`. Thread-safe.
  int (*encode)(const void* processor, const char* text, size_t size,
                void* context, gshard_sp_sink sink);

  // Gives `sink` the text of `ids`. Thread-safe.
  int (*decode)(const void* processor, const int32_t* ids, size_t count,
                void* context, gshard_sp_sink sink);
};

// The one exported symbol.
const struct gshard_sp_functions* gshard_sp_get_functions(void);

#ifdef __cplusplus
}
#endif

#endif  // SERVICES_TOKENIZER_SENTENCEPIECE_SHIM_H_
