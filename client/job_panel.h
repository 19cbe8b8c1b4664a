// JobPanel: a training job on a terminal, redrawn in place.
//
//   titles  running, attempt 2
//   [##################----------------------]  45.2%  step 904/2000
//   ETA 00:06:12  elapsed 00:05:07  12,345 tok/s
//   loss  4.8312  ▇▆▅▅▄▄▃▃▃▂▂▂▁▁
//   balance 1.084  overflow 2.1%  busiest expert 1.3x  gradient 0.83  ...
//   checkpoint of step 900: checkpoints/step-00000900

#ifndef CLIENT_JOB_PANEL_H_
#define CLIENT_JOB_PANEL_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"

namespace gshard {

// Not thread-safe. The returned texts are for a terminal with ANSI sequences,
// which truncates lines that are too long.
class JobPanel {
 public:
  // Draws `progress` over the previous drawing. Important events, such as a
  // lost worker or a loss that is not finite, stay as lines above.
  std::string Draw(const v1::JobProgress& progress);

  // Removes the panel.
  std::string Clear();

  // The panel's lines, without ANSI sequences.
  static std::vector<std::string> Lines(const v1::JobProgress& progress,
                                        const std::deque<double>& losses);

 private:
  size_t drawn_ = 0;  // lines
  std::string noted_;
  int64_t last_step_ = -1;
  std::deque<double> losses_;  // losses of the last lines, at most kMaxLosses
};

// One of eight block characters per value, scaled between the lowest and the
// highest; values that are not finite are '?'.
std::string Sparkline(const std::deque<double>& values);

}  // namespace gshard

#endif  // CLIENT_JOB_PANEL_H_
