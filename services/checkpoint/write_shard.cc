#include "services/checkpoint/write_shard.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::vector<TensorEntry>> WriteShard(
    const ShardTarget& target, const std::vector<NamedTensor>& tensors,
    const std::function<bool()>& abandoned, FaultPoints* faults) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& named : tensors) {
    specs.push_back({named.name, named.tensor.type(), named.tensor.dims()});
  }
  const auto check = [&] {
    if (!abandoned || !abandoned()) return absl::OkStatus();
    return absl::CancelledError(absl::StrCat("shard '", target.shard,
                                             "' of step ", target.step,
                                             " is no longer wanted"));
  };
  RETURN_IF_ERROR(check());
  ASSIGN_OR_RETURN(const auto writer,
                   CheckpointWriter::Create(target.root, target.step,
                                            target.shard, specs, faults));
  std::vector<const NamedTensor*> in_order;
  for (const NamedTensor& named : tensors) in_order.push_back(&named);
  SortAsStored(
      &in_order, [](const NamedTensor* t) { return t->tensor.type(); },
      [](const NamedTensor* t) -> const std::string& { return t->name; });
  for (const NamedTensor* named : in_order) {
    RETURN_IF_ERROR(check());
    RETURN_IF_ERROR(writer->Write(named->name, named->tensor));
  }
  RETURN_IF_ERROR(check());
  return writer->Finish();
}

}  // namespace gshard
