// GlooMeeting: processes, on one machine or several, that come together over
// TCP with the gloo library and share no folder.
//
// An address is a port that waits for one connection, until Join() or the end
// of the meeting. What connects there is not authenticated: members need a
// network that nobody else can reach.

#ifndef SERVICES_COLLECTIVES_GLOO_MEETING_H_
#define SERVICES_COLLECTIVES_GLOO_MEETING_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "services/collectives/meeting.h"

namespace gshard {

struct GlooMeetingOptions {
  int rank = 0;
  int size = 1;
  // Where to listen; see GlooOptions.
  std::string network_interface;
  std::string host = "127.0.0.1";
  // Of each exchange. Join() waits five times as long.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

class GlooCommunicator;

class GlooMeeting : public Meeting {
 public:
  // Errors: InvalidArgument for a rank outside [0, size), a timeout that is not
  // positive, or a host or interface that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<GlooMeeting>> Create(
      const GlooMeetingOptions& options);

  ~GlooMeeting() override;

  const std::vector<std::string>& addresses() const override {
    return addresses_;
  }
  absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) override;
  void Abort() override;

 private:
  class Ends;  // of connections, which wait for the others'

  GlooMeeting();

  std::vector<std::string> addresses_;
  std::mutex mutex_;
  bool aborted_ = false;                     // guarded by mutex_
  std::unique_ptr<Ends> owned_ends_;         // until Join() is over
  Ends* ends_ = nullptr;                     // guarded by mutex_
  std::unique_ptr<GlooCommunicator> group_;  // set under mutex_
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_GLOO_MEETING_H_
