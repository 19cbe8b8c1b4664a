// A window that slides along one dimension, as used by convolutions, slices and
// pads. Terms are those of XLA's window.
//
// The base of X elements is dilated (base_dilation - 1 zeros between
// neighbours) and padded (pad_low zeros before it, pad_high after it; negative:
// that many are cut off). The window covers `size` of the resulting elements,
// window_dilation apart, and advances by `stride` elements from one result to
// the next.

#ifndef SERVICES_OPS_WINDOW_H_
#define SERVICES_OPS_WINDOW_H_

#include <cstdint>

#include "absl/status/status.h"

namespace gshard {

struct Window {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t pad_low = 0;
  int64_t pad_high = 0;
  int64_t base_dilation = 1;
  int64_t window_dilation = 1;

  bool operator==(const Window& other) const = default;
};

// Limits within which the arithmetic cannot overflow: of sizes, and of steps
// (strides and dilations).
constexpr int64_t kMaxWindowSize = int64_t{1} << 40;
constexpr int64_t kMaxWindowStep = int64_t{1} << 20;

// The extent of `size` elements that are `dilation` apart; 0 for no elements.
constexpr int64_t Dilated(int64_t size, int64_t dilation) {
  return size == 0 ? 0 : 1 + (size - 1) * dilation;
}

// Number of results over a base of `base` elements; 0 if the window is longer
// than the padded base.
int64_t WindowCount(int64_t base, const Window& window);

// Errors: InvalidArgument unless sizes, steps and the number of results are
// within the limits above and the window has at least one element.
absl::Status CheckWindow(int64_t base, const Window& window);

// The base element that result `result` reads through window element `element`,
// or -1 for a zero of dilation or padding.
inline int64_t BaseIndex(int64_t base, const Window& window, int64_t result,
                         int64_t element) {
  const int64_t at = result * window.stride + element * window.window_dilation -
                     window.pad_low;
  if (at < 0 || at % window.base_dilation != 0) return -1;
  const int64_t index = at / window.base_dilation;
  return index < base ? index : -1;
}

// The window of the gradient: a window over the results' gradients, with its
// elements in reverse order, that gives the gradients of the `base` elements.
Window InputGradientWindow(int64_t base, const Window& window);

}  // namespace gshard

#endif  // SERVICES_OPS_WINDOW_H_
