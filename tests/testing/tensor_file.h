// Passes named tensors from one process of a test to another in a file.

#ifndef TESTS_TESTING_TENSOR_FILE_H_
#define TESTS_TESTING_TENSOR_FILE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/safetensors.h"
#include "services/graph/executor.h"

namespace gshard {

struct TensorFile {
  TensorMap tensors;
  StringMap texts;
};

inline absl::Status WriteTensorFile(const std::string& path,
                                    const TensorFile& file) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : file.tensors) {
    specs.push_back({name, tensor.type(), tensor.dims()});
  }
  ASSIGN_OR_RETURN(const auto writer,
                   SafetensorsWriter::Create(path, specs, file.texts));
  for (const auto& [name, tensor] : file.tensors) {
    RETURN_IF_ERROR(writer->Write(name, tensor));
  }
  return writer->Finish();
}

inline absl::StatusOr<TensorFile> ReadTensorFile(const std::string& path) {
  ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::Open(path));
  TensorFile file;
  file.texts = reader->metadata();
  for (const auto& [name, stored] : reader->tensors()) {
    ASSIGN_OR_RETURN(file.tensors[name], reader->Read(name));
  }
  return file;
}

}  // namespace gshard

#endif  // TESTS_TESTING_TENSOR_FILE_H_
