// Builds real parallel text on any Debian machine: the translated descriptions
// of its packages, into English.
//
// The archive's i18n/Translation-xx indexes have a title and paragraphs per
// package and description checksum; apt fetches them like any other list, here
// into a private folder, so the machine's own lists are not touched. Titles of
// the same package and checksum are pairs. The text carries the packages'
// licences (mostly GPL, LGPL and permissive): build it where it is used, do not
// distribute it.
//
// Reading and matching (package_descriptions.h) and cleaning and splitting
// (cleaning.h) are pure functions; this file has the side effects.

#ifndef SERVICES_DATA_DEBIAN_CORPUS_H_
#define SERVICES_DATA_DEBIAN_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

struct DebianCorpusOptions {
  std::vector<std::string> languages;  // "de", "pt_BR", ...
  std::string out;                     // folder, made if missing
  bool paragraphs = false;             // in addition to titles
};

struct DebianCorpusReport {
  struct Line {
    std::string language;
    int64_t train = 0;
    int64_t dev = 0;
    int64_t test = 0;
  };
  std::vector<Line> lines;  // in the order of options.languages
  std::vector<std::string> warnings;

  // Aligned columns, a line per language and the total.
  std::string Table() const;
};

// Fetches the indexes (with progress on standard error; downloads of an earlier
// run are kept and resumed) and writes train.tsv, dev.tsv and test.tsv into
// options.out, each pair as language, source, English, scattered so that the
// first lines of a file are a fair sample of it. Works as root and as a user.
//
// Errors: InvalidArgument for no or malformed languages, or if options.out is
// no path of a disk; FailedPrecondition if this machine has no apt; Unavailable
// if the archive cannot be reached; NotFound if it has none of the languages;
// ResourceExhausted if the disk is full; others of services/storage/file.h.
absl::StatusOr<DebianCorpusReport> BuildDebianCorpus(
    const DebianCorpusOptions& options);

}  // namespace gshard

#endif  // SERVICES_DATA_DEBIAN_CORPUS_H_
