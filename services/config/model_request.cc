#include "services/config/model_request.h"

#include "absl/strings/str_cat.h"

namespace gshard {

absl::StatusOr<ModelRequest> ParseModelRequest(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected NAME=CHECKPOINT, got \"", text, "\""));
  }
  return ModelRequest{.name = std::string(text.substr(0, equals)),
                      .checkpoint = std::string(text.substr(equals + 1))};
}

}  // namespace gshard
