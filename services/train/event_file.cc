#include "services/train/event_file.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/base/status_macros.h"
#include "services/train/crc32c.h"

namespace gshard {
namespace {

// Protobuf's wire format: a key made of field number and wire type, then the
// value.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendFixed(uint64_t value, int num_bytes, std::string& out) {
  for (int i = 0; i < num_bytes; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
}

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
}

void AppendKey(int field, WireType type, std::string& out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | type, out);
}

void AppendBytes(int field, absl::string_view bytes, std::string& out) {
  AppendKey(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  out.append(bytes.data(), bytes.size());
}

void AppendWallTime(double wall_time, std::string& out) {
  uint64_t bits;
  std::memcpy(&bits, &wall_time, sizeof(bits));
  AppendKey(1, kFixed64, out);
  AppendFixed(bits, 8, out);
}

}  // namespace

std::string EncodeVersionEvent(double wall_time) {
  std::string event;
  AppendWallTime(wall_time, event);
  AppendBytes(3, "brain.Event:2", event);
  return event;
}

std::string EncodeScalarEvent(double wall_time, int64_t step,
                              absl::Span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    uint32_t bits;
    std::memcpy(&bits, &scalar.value, sizeof(bits));
    std::string value;
    AppendBytes(1, scalar.tag, value);
    AppendKey(2, kFixed32, value);
    AppendFixed(bits, 4, value);
    AppendBytes(1, value, summary);
  }
  std::string event;
  AppendWallTime(wall_time, event);
  AppendKey(2, kVarint, event);
  AppendVarint(static_cast<uint64_t>(step), event);
  AppendBytes(5, summary, event);
  return event;
}

std::string EncodeRecord(absl::string_view payload) {
  std::string record;
  AppendFixed(payload.size(), 8, record);
  AppendFixed(MaskedCrc32c(record), 4, record);
  record.append(payload.data(), payload.size());
  AppendFixed(MaskedCrc32c(payload), 4, record);
  return record;
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(
    const std::string& directory, const std::string& suffix, double wall_time) {
  RETURN_IF_ERROR(MakeDirectories(directory));
  const std::string path =
      absl::StrFormat("%s/events.out.tfevents.%010d.%s", directory,
                      static_cast<int64_t>(std::floor(wall_time)), suffix);
  ASSIGN_OR_RETURN(auto file, OutputFile::Create(path));
  RETURN_IF_ERROR(file->Append(EncodeRecord(EncodeVersionEvent(wall_time))));
  return std::unique_ptr<EventFile>(new EventFile(std::move(file)));
}

absl::Status EventFile::Add(double wall_time, int64_t step,
                            absl::Span<const Scalar> scalars) {
  return file_->Append(
      EncodeRecord(EncodeScalarEvent(wall_time, step, scalars)));
}

}  // namespace gshard
