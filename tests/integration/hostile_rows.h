// The table of bad requests: a field, a value, and the code that it must get.

#ifndef TESTS_INTEGRATION_HOSTILE_ROWS_H_
#define TESTS_INTEGRATION_HOSTILE_ROWS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/config/training_job.h"

namespace gshard {

struct HostileRow {
  std::string method;  // "TranslationService.Translate"
  std::string field;   // "sentences.text"; "" for none
  // The request as text, or its bytes.
  std::string text = {};
  std::string bytes = {};
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  // What an INVALID_ARGUMENT must speak of; empty: the last part of `field`.
  std::string says = {};
};

// Of TranslationService. A router serves the model "names@1", which knows "de",
// has 64 positions and no default language.
std::vector<HostileRow> TranslateRows();
std::vector<HostileRow> TranslateStreamRows();
std::vector<HostileRow> ExplainRoutingRows();

// Of CoordinatorService, with one worker. The job "names" is over, its
// checkpoint at `checkpoint` served as "names@1", the first that had this name.
std::vector<HostileRow> CoordinatorRows(const std::string& checkpoint);

// One or more for each field of `job`, a valid one of a name that is free, but
// for Boolean fields: both of their values are good.
std::vector<HostileRow> SubmitJobRows(const TrainingJob& job);

// Bytes that are no message of any kind.
std::vector<std::string> MalformedMessages();

}  // namespace gshard

#endif  // TESTS_INTEGRATION_HOSTILE_ROWS_H_
