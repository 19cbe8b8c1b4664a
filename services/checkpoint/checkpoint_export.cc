#include "services/checkpoint/checkpoint_export.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<Exported> ExportCheckpoint(
    const CheckpointReader& checkpoint, const std::string& path,
    const std::function<bool(const std::string& name)>& wanted,
    std::stop_token stop) {
  const Manifest& manifest = checkpoint.manifest();
  std::vector<TensorSpec> specs;
  for (const TensorEntry& entry : manifest.tensors) {
    if (wanted(entry.name)) {
      specs.push_back({entry.name, entry.type, entry.dims});
    }
  }
  if (specs.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", checkpoint.path(), ": none of its ",
        manifest.tensors.size(), " tensors is one of those to export"));
  }
  ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(path, specs,
                                {{"format", "pt"},
                                 {"step", absl::StrCat(manifest.step)},
                                 {"model_config", manifest.model_config}}));
  SortAsStored(
      &specs, [](const TensorSpec& spec) { return spec.type; },
      [](const TensorSpec& spec) -> const std::string& { return spec.name; });
  Exported exported;
  for (const TensorSpec& spec : specs) {
    if (stop.stop_requested()) return absl::CancelledError("told to stop");
    ASSIGN_OR_RETURN(const Tensor tensor, checkpoint.Read(spec));
    RETURN_IF_ERROR(writer->Write(spec.name, tensor));
    ++exported.tensors;
    exported.bytes += tensor.bytes();
  }
  RETURN_IF_ERROR(writer->Finish());
  return exported;
}

}  // namespace gshard
