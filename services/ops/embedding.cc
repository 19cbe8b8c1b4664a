#include "services/ops/embedding.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/cast.h"
#include "services/ops/elementwise.h"
#include "services/ops/int8_panel.h"
#include "services/ops/panel_layout.h"

namespace gshard {

absl::Status CheckIds(const Tensor& ids, int64_t vocabulary) {
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids.i32()[i];
    if (id < 0 || id >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("id at position ", i, ": expected in [0, ", vocabulary,
                       "), got ", id));
    }
  }
  return absl::OkStatus();
}

Tensor Embedding(const Tensor& table, const Tensor& ids) {
  const int64_t vocabulary = table.dim(0), m = table.dim(1);
  const bool in_panels = table.panel_rows() > 0;
  CHECK(table.panel_rows() == (in_panels ? m : 0));
  Dims dims = ids.dims();
  dims.push_back(m);
  Tensor result(ElementType::kFloat32, dims);
  const int32_t* id = ids.i32();
  ParallelForChunks(ids.size(), ChunkSize(m), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      CHECK(id[i] >= 0 && id[i] < vocabulary);
      float* const row = result.f32() + i * m;
      if (table.type() == ElementType::kInt8) {
        ReadInt8Column(table.panels<int8_t>(), m, vocabulary, id[i], row);
      } else if (table.type() == ElementType::kBFloat16) {
        if (in_panels) {
          ReadPanelColumn(table.panels<BFloat16>(), m, vocabulary, id[i], row);
        } else {
          CastRow(table.data<BFloat16>() + id[i] * m, row, m);
        }
      } else if (in_panels) {
        ReadPanelColumn(table.panels<float>(), m, vocabulary, id[i], row);
      } else {
        std::memcpy(row, table.f32() + id[i] * m, m * sizeof(float));
      }
    }
  });
  return result;
}

Tensor EmbeddingGradient(const Tensor& dresult, const Tensor& ids,
                         int64_t vocabulary) {
  const int64_t m = dresult.dims().back();
  CHECK(dresult.size() == ids.size() * m);
  Tensor dtable = Tensor::Zeros(ElementType::kFloat32, {vocabulary, m});
  const int32_t* id = ids.i32();
  // Parallel over columns, so that the rows of an id are added in their order.
  ParallelForChunks(m, ColumnsOf(ids.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < ids.size(); ++i) {
      CHECK(id[i] >= 0 && id[i] < vocabulary);
      float* row = dtable.f32() + id[i] * m + begin;
      AddRow(row, dresult.f32() + i * m + begin, row, end - begin);
    }
  });
  return dtable;
}

}  // namespace gshard
