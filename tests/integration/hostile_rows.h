// A table of bad requests: field, value and expected status code.

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
  // The request as text, or as bytes.
  std::string text = {};
  std::string bytes = {};
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  // Text that an INVALID_ARGUMENT contains; empty: the last part of `field`.
  std::string says = {};
};

// Rows for TranslationService, on a router that serves the model "names@1",
// which knows "de", has 64 positions and no default language.
std::vector<HostileRow> TranslateRows();
std::vector<HostileRow> TranslateStreamRows();
std::vector<HostileRow> ExplainRoutingRows();

// Rows for CoordinatorService, with one worker. The job "names" has ended; its
// checkpoint `checkpoint` is served as "names@1", the first of this name.
std::vector<HostileRow> CoordinatorRows(const std::string& checkpoint);

// One or more rows for each field of `job`, a valid job under an unused name.
// Boolean fields have none, because both of their values are valid.
std::vector<HostileRow> SubmitJobRows(const TrainingJob& job);

// Byte strings that parse as no message.
std::vector<std::string> MalformedMessages();

}  // namespace gshard

#endif  // TESTS_INTEGRATION_HOSTILE_ROWS_H_
