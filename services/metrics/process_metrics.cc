#include "services/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace gshard {
namespace {

// The time when this library was loaded, within milliseconds of the process'
// start.
const double start_seconds =
    std::chrono::duration<double>(
        std::chrono::system_clock::now().time_since_epoch())
        .count();

prometheus::MetricFamily MakeGauge(const char* name, const char* help,
                                   double value) {
  prometheus::ClientMetric metric;
  metric.gauge.value = value;
  return {name, help, prometheus::MetricType::Gauge, {metric}};
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec;
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics() {
  std::vector<prometheus::MetricFamily> families;
  families.push_back(MakeGauge("process_start_time_seconds",
                               "Start of the process, seconds since 1970.",
                               start_seconds));

  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    prometheus::ClientMetric metric;
    metric.counter.value = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
    families.push_back({"process_cpu_seconds_total",
                        "CPU time spent, user and system.",
                        prometheus::MetricType::Counter,
                        {metric}});
  }

  // Pages: total, then resident.
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  if (statm >> total >> resident) {
    families.push_back(
        MakeGauge("process_resident_memory_bytes", "Memory in use.",
                  resident * static_cast<double>(sysconf(_SC_PAGESIZE))));
  }

  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error) {
    families.push_back(MakeGauge(
        "process_open_fds", "Open file descriptors.",
        static_cast<double>(std::distance(begin(files), end(files)))));
  }
  return families;
}

}  // namespace gshard
