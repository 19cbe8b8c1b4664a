// Sends a server messages that never end: declares --declared_mib on each
// stream, sends all but the last byte as fast as the server takes them, and
// holds the streams open.
//
//   stalled_uploads --address 127.0.0.1:7001 --connections 20 --streams 10
//       --declared_mib 60 --seconds 5
//
// When the time is over, prints what the server took and what it ended. With
// --again, connections that the server ended are reopened with all of their
// streams.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "services/config/flags.h"
#include "tests/testing/raw_http2.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

struct UploadFlags {
  std::string address;
  std::string method = "/grpc.health.v1.Health/Check";
  std::string token = "";
  int64_t connections = 20;
  int64_t streams = 10;
  int64_t declared_mib = 60;
  int64_t seconds = 5;
  bool again = false;
};

Flags DeclareFlags(UploadFlags* values) {
  Flags flags("stalled_uploads", "Sends messages that never end.");
  flags.Text("address", &values->address, "ADDRESS",
             "1.2.3.4:port or unix:/path, without TLS");
  flags.Text("method", &values->method, "METHOD", "/package.Service/Method");
  flags.Text("token", &values->token, "TOKEN", "of the caller; empty for none");
  flags.Integer("connections", &values->connections, 1, 4096, "at a time");
  flags.Integer("streams", &values->streams, 1, 4096, "of each connection");
  flags.Integer("declared_mib", &values->declared_mib, 1, 2047,
                "MiB that each message declares");
  flags.Integer("seconds", &values->seconds, 1, 3600, "how long it goes on");
  flags.Bool("again", &values->again, "connect again when a connection ends");
  flags.Require("address");
  flags.Example("stalled_uploads --address=127.0.0.1:7001 --seconds=5");
  return flags;
}

struct Totals {
  int64_t taken = 0;  // bytes
  int64_t connections = 0;
  int64_t refused = 0;  // no connection was made
  int64_t ended = 0;
  int64_t streams_ended = 0;
};

std::unique_ptr<RawHttp2> Begin(const UploadFlags& flags, Totals& totals) {
  absl::StatusOr<std::unique_ptr<RawHttp2>> client =
      RawHttp2::Connect(flags.address);
  if (!client.ok()) {
    ++totals.refused;
    return nullptr;
  }
  ++totals.connections;
  const auto declared = static_cast<uint32_t>(flags.declared_mib << 20);
  for (int64_t i = 0; i < flags.streams; ++i) {
    (*client)->SendMessage((*client)->BeginCall(flags.method, flags.token),
                           declared, declared - 1);
  }
  return *std::move(client);
}

void End(const RawHttp2& client, Totals& totals) {
  totals.taken += client.bytes_taken();
  totals.streams_ended += client.streams_ended();
  if (client.ended()) ++totals.ended;
}

void Run(const UploadFlags& flags) {
  Totals totals;
  std::vector<std::unique_ptr<RawHttp2>> clients(
      static_cast<size_t>(flags.connections));
  for (auto& client : clients) client = Begin(flags, totals);
  const auto end = Clock::now() + std::chrono::seconds(flags.seconds);
  while (Clock::now() < end) {
    for (auto& client : clients) {
      if (client == nullptr) {
        if (flags.again) client = Begin(flags, totals);
      } else if (!client->Step()) {
        End(*client, totals);
        client = nullptr;
      }
    }
    // Connections that can send more do so in the next round.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& client : clients) {
    if (client != nullptr) End(*client, totals);
  }
  std::printf(
      "taken_mib=%.1f connections=%lld refused=%lld ended=%lld "
      "streams_ended=%lld\n",
      static_cast<double>(totals.taken) / (1 << 20),
      static_cast<long long>(totals.connections),
      static_cast<long long>(totals.refused),
      static_cast<long long>(totals.ended),
      static_cast<long long>(totals.streams_ended));
}

int Main(int argc, char** argv) {
  UploadFlags values;
  Flags flags = DeclareFlags(&values);
  if (const auto exit_code =
          flags.ParseOrExit(std::vector<std::string>(argv + 1, argv + argc))) {
    return *exit_code;
  }
  Run(values);
  return 0;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) { return gshard::Main(argc, argv); }
