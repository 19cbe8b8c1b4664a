#include "services/collectives/exchange_check.h"

#include "absl/strings/str_cat.h"

namespace gshard {

absl::Status CheckExchange(int rank, int size, absl::Span<const SendBytes> send,
                           absl::Span<const ReceiveBytes> receive) {
  const size_t members = size;
  if (send.size() != members || receive.size() != members) {
    return absl::InvalidArgumentError(absl::StrCat(
        "exchange: expected ", members, " entries to send and to receive, got ",
        send.size(), " and ", receive.size()));
  }
  if (send[rank].size != receive[rank].size) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: rank ", rank, " expected ", receive[rank].size,
                     " bytes from itself and sends ", send[rank].size));
  }
  return absl::OkStatus();
}

}  // namespace gshard
