// Built without the project's other libraries and without sanitizers: it is
// loaded into a linker namespace that lacks their run-time libraries.

#include "services/tokenizer/sentencepiece_shim.h"

#include <sentencepiece_processor.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

using sentencepiece::SentencePieceProcessor;

int Fail(const char* message, void* context, gshard_sp_sink sink) {
  sink(context, message, std::strlen(message));
  return 1;
}

// Runs `body`, which returns a status, and passes any error to `sink`.
template <typename Body>
int Guard(void* context, gshard_sp_sink sink, const Body& body) noexcept {
  try {
    const sentencepiece::util::Status status = body();
    return status.ok() ? 0 : Fail(status.error_message(), context, sink);
  } catch (const std::exception& e) {
    return Fail(e.what(), context, sink);
  } catch (...) {
    return Fail("unknown exception", context, sink);
  }
}

int Load(const char* model, size_t size, void** processor, void* context,
         gshard_sp_sink sink) {
  return Guard(context, sink, [&] {
    auto loaded = std::make_unique<SentencePieceProcessor>();
    const auto status = loaded->LoadFromSerializedProto({model, size});
    if (status.ok()) *processor = loaded.release();
    return status;
  });
}

void Unload(void* processor) {
  delete static_cast<SentencePieceProcessor*>(processor);
}

int Encode(const void* processor, const char* text, size_t size, void* context,
           gshard_sp_sink sink) {
  return Guard(context, sink, [&] {
    std::vector<int> ids;
    const auto status =
        static_cast<const SentencePieceProcessor*>(processor)->Encode(
            {text, size}, &ids);
    if (status.ok()) sink(context, ids.data(), ids.size() * sizeof(int));
    return status;
  });
}

int Decode(const void* processor, const int32_t* ids, size_t count,
           void* context, gshard_sp_sink sink) {
  return Guard(context, sink, [&] {
    std::string text;
    const auto status =
        static_cast<const SentencePieceProcessor*>(processor)->Decode(
            std::vector<int>(ids, ids + count), &text);
    if (status.ok()) sink(context, text.data(), text.size());
    return status;
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const gshard_sp_functions*
gshard_sp_get_functions(void) {
  static const gshard_sp_functions functions = {kGshardSpVersion, Load, Unload,
                                                Encode, Decode};
  return &functions;
}
