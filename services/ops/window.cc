#include "services/ops/window.h"

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// The size of the dilated and padded base; negative if more is cut off than
// there is.
int64_t PaddedBase(int64_t base, const Window& window) {
  return Dilated(base, window.base_dilation) + window.pad_low + window.pad_high;
}

absl::Status ExpectWithin(const char* name, int64_t value, int64_t low,
                          int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", name, "' must lie in [", low, ", ", high, "], got ", value));
}

}  // namespace

int64_t WindowCount(int64_t base, const Window& window) {
  const int64_t rest =
      PaddedBase(base, window) - Dilated(window.size, window.window_dilation);
  return rest < 0 ? 0 : rest / window.stride + 1;
}

absl::Status CheckWindow(int64_t base, const Window& window) {
  const struct {
    const char* name;
    int64_t value, low, high;
  } checks[] = {
      {"base", base, 0, kMaxWindowSize},
      {"window", window.size, 1, kMaxWindowSize},
      {"stride", window.stride, 1, kMaxWindowStep},
      {"pad_low", window.pad_low, -kMaxWindowSize, kMaxWindowSize},
      {"pad_high", window.pad_high, -kMaxWindowSize, kMaxWindowSize},
      {"base_dilation", window.base_dilation, 1, kMaxWindowStep},
      {"window_dilation", window.window_dilation, 1, kMaxWindowStep},
  };
  for (const auto& check : checks) {
    const absl::Status status =
        ExpectWithin(check.name, check.value, check.low, check.high);
    if (!status.ok()) return status;
  }
  return ExpectWithin("size of the result", WindowCount(base, window), 0,
                      kMaxWindowSize);
}

// y[p] reads x[j] through window element k where p * stride + k *
// window_dilation - pad_low = j * base_dilation. Solved for p * stride, with k
// counted from the end, this is a window over y that advances by base_dilation
// from one j to the next.
Window InputGradientWindow(int64_t base, const Window& window) {
  Window back = window;
  back.stride = window.base_dilation;
  back.base_dilation = window.stride;
  const int64_t extent = Dilated(window.size, window.window_dilation);
  back.pad_low = extent - 1 - window.pad_low;
  // The part of the padded base that the last of the `base` results sees.
  const int64_t seen =
      base == 0 ? extent - 1 : extent + (base - 1) * window.base_dilation;
  back.pad_high =
      seen - back.pad_low - Dilated(WindowCount(base, window), window.stride);
  return back;
}

}  // namespace gshard
