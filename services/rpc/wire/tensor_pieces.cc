#include "services/rpc/wire/tensor_pieces.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

// Elements [begin, end) of a tensor as one dimension, sharing its memory.
Tensor Elements(const Tensor& tensor, int64_t begin, int64_t end) {
  return tensor.Reshaped({tensor.size()}).Rows(begin, end);
}

absl::Status Unexpected(const std::string& name, absl::string_view expected,
                        absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor \"", name, "\": expected ", expected, ", got ", got));
}

std::string ToString(const ExpectedTensor& spec) {
  return absl::StrCat(ElementTypeName(spec.type), DimsToString(spec.dims));
}

}  // namespace

std::vector<TensorFrame> SplitTensors(const NamedTensors& tensors,
                                      const v1::TensorFrameHeader& header,
                                      size_t max_payload_bytes) {
  CHECK(max_payload_bytes >= kPayloadAlignment);
  // Maximum tensors, and so headers, of one frame; well below every
  // FrameLimits.
  constexpr size_t kMaxTensors = 1024;

  std::vector<TensorFrame> frames;
  TensorFrame frame{header, {}};
  const auto finish_frame = [&] {
    frames.push_back(std::exchange(frame, TensorFrame{header, {}}));
  };
  for (const auto& [name, tensor] : tensors) {
    if (tensor.bytes() <= max_payload_bytes) {
      const size_t used = PayloadBytes(frame.tensors);
      if (frame.tensors.size() == kMaxTensors ||
          used + kPayloadAlignment + tensor.bytes() > max_payload_bytes) {
        if (!frame.tensors.empty()) finish_frame();
      }
      frame.Add(name, tensor);
      continue;
    }
    if (!frame.tensors.empty()) finish_frame();
    const int64_t step =
        static_cast<int64_t>(max_payload_bytes / ElementSize(tensor.type()));
    for (int64_t begin = 0; begin < tensor.size(); begin += step) {
      v1::TensorPiece& piece = *frame.header.mutable_piece();
      for (const int64_t dim : tensor.dims()) piece.add_dims(dim);
      piece.set_offset(begin);
      frame.Add(name,
                Elements(tensor, begin, std::min(begin + step, tensor.size())));
      finish_frame();
    }
  }
  if (!frame.tensors.empty() || frames.empty()) finish_frame();
  return frames;
}

TensorCollector::TensorCollector(std::map<std::string, ExpectedTensor> expected)
    : expected_(std::move(expected)) {}

absl::Status TensorCollector::Add(TensorFrame frame) {
  if (frame.header.has_piece()) {
    if (frame.tensors.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame with a piece must have 1 tensor, got ",
                       frame.tensors.size()));
    }
    return AddPiece(frame.header.tensors(0).name(), frame.header.piece(),
                    frame.tensors[0]);
  }
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    RETURN_IF_ERROR(AddWhole(frame.header.tensors(static_cast<int>(i)).name(),
                             std::move(frame.tensors[i])));
  }
  return absl::OkStatus();
}

absl::Status TensorCollector::AddWhole(const std::string& name, Tensor tensor) {
  const auto spec = expected_.find(name);
  if (spec == expected_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\" is not known"));
  }
  if (tensor.type() != spec->second.type ||
      tensor.dims() != spec->second.dims) {
    return Unexpected(name, ToString(spec->second), tensor.TypeString());
  }
  if (!partial_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", name, "\" came before the rest of \"", partial_, "\""));
  }
  if (!tensors_.emplace(name, std::move(tensor)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\" came twice"));
  }
  return absl::OkStatus();
}

absl::Status TensorCollector::AddPiece(const std::string& name,
                                       const v1::TensorPiece& piece,
                                       const Tensor& elements) {
  const auto spec = expected_.find(name);
  if (spec == expected_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\" is not known"));
  }
  const Dims dims(piece.dims().begin(), piece.dims().end());
  if (elements.type() != spec->second.type || dims != spec->second.dims) {
    return Unexpected(
        name, ToString(spec->second),
        absl::StrCat("a piece of ", ElementTypeName(elements.type()),
                     DimsToString(dims)));
  }
  if (elements.rank() != 1 || elements.size() == 0) {
    return Unexpected(name, "a piece of one dimension, not empty",
                      elements.TypeString());
  }
  if (partial_.empty()) {
    if (tensors_.count(name) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\" came twice"));
    }
    partial_elements_ = 0;
  } else if (partial_ != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of tensor \"", name,
                     "\" came before the rest of \"", partial_, "\""));
  }
  const int64_t total = NumElements(dims);
  if (piece.offset() != partial_elements_ ||
      elements.size() > total - partial_elements_) {
    return Unexpected(
        name,
        absl::StrCat("a piece from element ", partial_elements_, " of ", total),
        absl::StrCat(elements.size(), " elements from ", piece.offset()));
  }
  if (partial_elements_ == 0) {
    ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                     TryAllocateBuffer(total * ElementSize(spec->second.type)));
    tensors_[name] = Tensor::Wrap(spec->second.type, spec->second.dims,
                                  memory.get(), memory);
  }
  std::memcpy(
      tensors_[name].raw() + partial_elements_ * ElementSize(elements.type()),
      elements.raw(), elements.bytes());
  partial_elements_ += elements.size();
  partial_ = partial_elements_ == total ? "" : name;
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> TensorCollector::Take() {
  if (!partial_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", partial_, "\" is incomplete: ", partial_elements_,
        " elements came"));
  }
  for (const auto& [name, spec] : expected_) {
    if (tensors_.count(name) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\" is missing"));
    }
  }
  return std::move(tensors_);
}

}  // namespace gshard
