#include "tests/parity/fixture.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"

namespace gshard {
namespace {

absl::StatusOr<ElementType> TypeOf(const std::string& dtype) {
  if (dtype == "F32") return ElementType::kFloat32;
  if (dtype == "F64") return ElementType::kFloat64;
  if (dtype == "I32") return ElementType::kInt32;
  if (dtype == "U8" || dtype == "BOOL") return ElementType::kUint8;
  return absl::InvalidArgumentError("fixture: unknown dtype " + dtype);
}

}  // namespace

absl::StatusOr<Fixture> Fixture::Read(const std::string& name) {
  const std::string path =
      absl::StrCat("tests/parity/data/", name, ".safetensors");
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const absl::Status cut_short = absl::DataLossError(path + " is cut short");
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) return cut_short;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const size_t data = sizeof(header_size) + header_size;
  if (bytes.size() < data) return cut_short;
  const auto header = nlohmann::json::parse(
      bytes.substr(sizeof(header_size), header_size), nullptr,
      /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::DataLossError(path + ": no header");

  Fixture fixture;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      fixture.metadata_ = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    const auto type = TypeOf(entry["dtype"].get<std::string>());
    if (!type.ok()) return type.status();
    const auto shape = entry["shape"].get<std::vector<int64_t>>();
    const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
    Tensor tensor(*type, Dims(shape.begin(), shape.end()));
    if (offsets[1] - offsets[0] != tensor.bytes() ||
        data + offsets[1] > bytes.size()) {
      return cut_short;
    }
    std::memcpy(tensor.raw(), bytes.data() + data + offsets[0], tensor.bytes());
    fixture.tensors_.emplace(key, std::move(tensor));
  }
  return fixture;
}

const Tensor& Fixture::Get(const std::string& name) const {
  CHECK(Has(name));
  return tensors_.at(name);
}

Tensor Fixture::GetFloats(const std::string& name, Dims dims) const {
  const Tensor& from = Get(name);
  Tensor to(ElementType::kFloat32, std::move(dims));
  CHECK(from.size() == to.size());
  std::transform(from.data<double>(), from.data<double>() + from.size(),
                 to.f32(), [](double v) { return static_cast<float>(v); });
  return to;
}

double Fixture::Number(const std::string& name) const {
  double number = 0.0;
  CHECK(absl::SimpleAtod(Text(name), &number));
  return number;
}

std::string Fixture::Text(const std::string& name) const {
  CHECK(metadata_.count(name) > 0);
  return metadata_.at(name);
}

std::vector<std::string> Fixture::Implementations() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (name.size() > 3 && name.substr(name.size() - 3) == ".e1") {
      names.push_back(name.substr(0, name.size() - 3));
    }
  }
  return names;
}

Tensor MakeLogits(uint64_t seed, int64_t tokens, int64_t experts, double scale,
                  double skew) {
  Tensor logits(ElementType::kFloat32, {tokens, experts});
  for (int64_t i = 0; i < logits.size(); ++i) {
    const uint64_t h = RandomBits(seed, i);
    constexpr uint64_t kField = (1u << 21) - 1;
    const int64_t sum = static_cast<int64_t>(
        (h & kField) + ((h >> 21) & kField) + ((h >> 42) & kField));
    const double normal = static_cast<double>(sum - 3 * (1 << 20)) * 0x1p-20;
    const int64_t rank = (experts - 1 - i % experts) % 16;
    logits.f32()[i] = static_cast<float>(normal * scale) +
                      static_cast<float>(skew * static_cast<double>(rank) / 8);
  }
  return logits;
}

Tensor MakeUniforms(uint64_t seed, int64_t tokens) {
  Tensor uniforms(ElementType::kFloat32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) {
    uniforms.f32()[t] = RandomUniform(seed, t);
  }
  return uniforms;
}

}  // namespace gshard
