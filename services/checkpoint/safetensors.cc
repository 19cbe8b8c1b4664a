#include "services/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/checkpoint/json_text.h"

namespace gshard {
namespace {

using nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";
constexpr size_t kLengthBytes = 8;

std::string DtypeName(ElementType type) {
  return absl::AsciiStrToUpper(ElementTypeName(type));
}

absl::StatusOr<ElementType> ParseDtype(absl::string_view name) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kInt32, ElementType::kInt64,
        ElementType::kFloat64, ElementType::kUint8, ElementType::kBFloat16}) {
    if (DtypeName(type) == name) return type;
  }
  for (const absl::string_view known : {"BOOL", "I8", "U16", "I16", "F16",
                                        "U32", "U64", "F8_E4M3", "F8_E5M2"}) {
    if (known == name) {
      return absl::UnimplementedError(absl::StrCat(
          "expected dtype F32, BF16, F64, I32, I64 or U8, got ", name));
    }
  }
  return absl::DataLossError(absl::StrCat("unknown dtype '", name, "'"));
}

// The location of each tensor if the elements start at 0.
absl::StatusOr<std::map<std::string, StoredTensor>> LayOut(
    const std::vector<TensorSpec>& specs) {
  std::map<std::string, StoredTensor> tensors;
  for (const TensorSpec& spec : specs) {
    RETURN_IF_ERROR(CheckTensorName(spec.name));
    const auto bytes = TensorBytes(spec.type, spec.dims);
    if (!bytes.ok()) return Annotate(bytes.status(), spec.name);
    const StoredTensor tensor{spec.type, spec.dims, 0, *bytes};
    if (!tensors.emplace(spec.name, tensor).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("tensor '", spec.name, "' stands twice in the list"));
    }
  }
  uint64_t end = 0;
  for (const size_t element_size : {8, 4, 2, 1}) {
    for (auto& [name, tensor] : tensors) {
      if (ElementSize(tensor.type) != element_size) continue;
      tensor.offset = end;
      end += tensor.bytes;
    }
  }
  return tensors;
}

std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return bytes;
}

// The length and the JSON, sorted by name, so that its bytes are a function of
// the arguments.
SafetensorsHeader FormatHeader(
    const std::map<std::string, StoredTensor>& tensors,
    const StringMap& metadata) {
  std::map<absl::string_view, json> members;
  if (!metadata.empty()) members[kMetadataKey] = metadata;
  for (const auto& [name, tensor] : tensors) {
    members[name] = {
        {"dtype", DtypeName(tensor.type)},
        {"shape", std::vector<int64_t>(tensor.dims.begin(), tensor.dims.end())},
        {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}};
  }
  SafetensorsHeader header;
  header.ends.push_back({kLengthBytes, "the header's length"});
  std::string text = "{";
  const auto end_part = [&](std::string name) {
    header.ends.push_back({kLengthBytes + text.size(), std::move(name)});
  };
  for (const auto& [name, member] : members) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "",
                    FormatJson(std::string(name)), ":", FormatJson(member));
    end_part(name == kMetadataKey ? "the header's metadata"
                                  : absl::StrCat("tensor '", name, "'"));
  }
  text.push_back('}');
  text.append((8 - text.size() % 8) % 8, ' ');
  end_part("the header's end");
  header.bytes = LittleEndian64(text.size()) + text;
  return header;
}

// The integers of an array, each >= 0.
absl::StatusOr<std::vector<uint64_t>> Counts(const json& object,
                                             const std::string& key) {
  const auto found = object.find(key);
  std::vector<uint64_t> counts;
  bool sound = found != object.end() && found->is_array();
  if (sound) {
    for (const json& value : *found) {
      sound &= value.is_number_unsigned() &&
               value.get<uint64_t>() < (uint64_t{1} << 62);
      if (!sound) break;
      counts.push_back(value.get<uint64_t>());
    }
  }
  if (!sound) {
    return absl::DataLossError(absl::StrCat(
        "expected '", key, "', an array of integers >= 0, got ",
        found == object.end() ? "nothing" : FormatJson(*found).substr(0, 200)));
  }
  return counts;
}

// One member of the header, with offsets relative to the start of the elements.
absl::StatusOr<StoredTensor> ParseTensor(const json& member) {
  if (!member.is_object() || member.size() != 3) {
    return absl::DataLossError(
        "expected an object of dtype, shape and data_offsets");
  }
  StoredTensor tensor;
  ASSIGN_OR_RETURN(const std::string dtype, JsonString(member, "dtype"));
  ASSIGN_OR_RETURN(tensor.type, ParseDtype(dtype));
  ASSIGN_OR_RETURN(const auto shape, Counts(member, "shape"));
  ASSIGN_OR_RETURN(const auto offsets, Counts(member, "data_offsets"));
  tensor.dims.assign(shape.begin(), shape.end());
  const auto bytes = TensorBytes(tensor.type, tensor.dims);
  if (!bytes.ok()) return absl::DataLossError(bytes.status().message());
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      offsets[1] - offsets[0] != *bytes) {
    return absl::DataLossError(
        absl::StrCat("expected data_offsets of ", *bytes, " bytes for ",
                     TypeString(tensor.type, tensor.dims), ", got ",
                     FormatJson(member["data_offsets"])));
  }
  tensor.offset = offsets[0];
  tensor.bytes = *bytes;
  return tensor;
}

// Checks that the tensors fill [0, data_bytes) without hole or overlap.
absl::Status CheckLayout(const std::map<std::string, StoredTensor>& tensors,
                         uint64_t data_bytes) {
  std::vector<std::pair<const std::string*, const StoredTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.push_back({&name, &tensor});
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) <
           std::pair(b.second->offset, b.second->bytes);
  });
  uint64_t end = 0;
  for (const auto& [name, tensor] : order) {
    if (tensor->offset != end) {
      return absl::DataLossError(
          absl::StrCat("expected tensor '", *name, "' at byte ", end,
                       " of the elements, got ", tensor->offset));
    }
    end += tensor->bytes;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("expected ", end, " bytes of elements, got ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status ParseHeader(absl::string_view text, uint64_t data_bytes,
                         std::map<std::string, StoredTensor>& tensors,
                         StringMap& metadata) {
  // A tensor of d dimensions takes d + 6 values and over 4 times as many bytes.
  const int64_t max_values = 16 + static_cast<int64_t>(text.size()) / 4;
  ASSIGN_OR_RETURN(
      const json header,
      ParseJsonObject(text, {.max_depth = 3, .max_values = max_values}));
  for (const auto& [name, member] : header.items()) {
    if (name == kMetadataKey) {
      if (!member.is_object()) {
        return absl::DataLossError("expected __metadata__ to be an object");
      }
      for (const auto& [key, value] : member.items()) {
        if (!value.is_string()) {
          return absl::DataLossError(
              absl::StrCat("expected a string for '", key,
                           "' of __metadata__, got ", value.type_name()));
        }
        metadata[key] = value.get<std::string>();
      }
      continue;
    }
    if (const absl::Status status = CheckTensorName(name); !status.ok()) {
      return absl::DataLossError(status.message());
    }
    const auto tensor = ParseTensor(member);
    if (!tensor.ok()) {
      return Annotate(tensor.status(), absl::StrCat("tensor '", name, "'"));
    }
    tensors[name] = *tensor;
  }
  return CheckLayout(tensors, data_bytes);
}

}  // namespace

std::string SafetensorsHeader::PartAt(size_t offset) const {
  for (const auto& [end, part] : ends) {
    if (offset < end) return part;
  }
  return "what follows the header";
}

absl::StatusOr<SafetensorsHeader> MakeSafetensorsHeader(
    const std::vector<TensorSpec>& specs, const StringMap& metadata) {
  ASSIGN_OR_RETURN(const auto tensors, LayOut(specs));
  return FormatHeader(tensors, metadata);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& specs,
    const StringMap& metadata, FaultPoints* faults) {
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return absl::InvalidArgumentError("metadata must be UTF-8");
    }
  }
  ASSIGN_OR_RETURN(auto tensors, LayOut(specs));
  const std::string header = FormatHeader(tensors, metadata).bytes;
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected names and shapes of at most ", kMaxSafetensorsHeaderBytes,
        " bytes in one file, got ", header.size()));
  }
  uint64_t bytes = header.size();
  for (auto& [name, tensor] : tensors) {
    tensor.offset += header.size();
    bytes += tensor.bytes;
  }
  ASSIGN_OR_RETURN(auto file, Storage::Of(path).Create(path, bytes, faults));
  RETURN_IF_ERROR(file->WriteAt(0, header));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(path, std::move(file), std::move(tensors)));
}

absl::Status SafetensorsWriter::Write(const std::string& name,
                                      const Tensor& tensor) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor '", name, "' was not announced to ", path_));
  }
  const StoredTensor& stored = found->second;
  if (written_[name]) {
    return absl::AlreadyExistsError(
        absl::StrCat("tensor '", name, "' was written before"));
  }
  if (tensor.empty() || tensor.type() != stored.type ||
      tensor.dims() != stored.dims) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", name, "': expected ", TypeString(stored.type, stored.dims),
        ", got ", tensor.empty() ? "an absent tensor" : tensor.TypeString()));
  }
  RETURN_IF_ERROR(file_->WriteAt(
      stored.offset,
      absl::string_view(reinterpret_cast<const char*>(tensor.raw()),
                        tensor.bytes())));
  written_[name] = true;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  for (const auto& [name, stored] : tensors_) {
    if (!written_[name]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor '", name, "' was announced to ", path_, " and not written"));
    }
  }
  return file_->Finish();
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path, uint64_t header_bytes) {
  ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
  const uint64_t size = file->size();
  std::unique_ptr<SafetensorsReader> reader(
      new SafetensorsReader(std::move(file)));
  if (size < kLengthBytes) {
    return absl::DataLossError(absl::StrCat(
        path, ": expected at least ", kLengthBytes, " bytes, got ", size));
  }
  std::string& header = reader->header_;
  header.resize(std::min(
      size, std::clamp<uint64_t>(header_bytes, kLengthBytes,
                                 kLengthBytes + kMaxSafetensorsHeaderBytes)));
  RETURN_IF_ERROR(reader->file_->ReadAt(0, header.data(), header.size()));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<unsigned char>(header[i])} << (8 * i);
  }
  const uint64_t limit =
      std::min(size - kLengthBytes, kMaxSafetensorsHeaderBytes);
  if (length > limit) {
    return absl::DataLossError(absl::StrCat(path,
                                            ": expected a header of at most ",
                                            limit, " bytes, got ", length));
  }
  const uint64_t start = kLengthBytes + length;
  const size_t there = header.size();
  header.resize(start);
  if (there < start) {
    RETURN_IF_ERROR(
        reader->file_->ReadAt(there, header.data() + there, start - there));
  }
  RETURN_IF_ERROR(
      Annotate(ParseHeader(absl::string_view(header).substr(kLengthBytes),
                           size - start, reader->tensors_, reader->metadata_),
               path));
  for (auto& [name, tensor] : reader->tensors_) tensor.offset += start;
  return reader;
}

absl::StatusOr<Tensor> SafetensorsReader::Read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no tensor '", name, "' in ", file_->path()));
  }
  const StoredTensor& stored = found->second;
  ASSIGN_OR_RETURN(Tensor tensor, AllocateTensor(stored.type, stored.dims));
  RETURN_IF_ERROR(file_->ReadAt(stored.offset, tensor.raw(), stored.bytes));
  return tensor;
}

}  // namespace gshard
