// Parses package descriptions in the archive's i18n/Translation-xx indexes:
//
//   Package: 0ad
//   Description-md5: d943033bedada21853d2ae54a2578a7b
//   Description-de: Echtzeit-Strategiespiel
//    First line of the first paragraph
//    and its second.
//    .
//    Second paragraph.

#ifndef SERVICES_DATA_PACKAGE_DESCRIPTIONS_H_
#define SERVICES_DATA_PACKAGE_DESCRIPTIONS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/data/corpus.h"

namespace gshard {

// One description of one package in one language.
struct Description {
  std::string package;
  std::string md5;  // MD5 of the English description
  std::string title;
  std::vector<std::string> paragraphs;  // lines joined by spaces
};

// Reads a Translation-xx index. Stanzas without the three fields are skipped.
std::vector<Description> ParseTranslations(absl::string_view text,
                                           absl::string_view language);

// Pairs of titles, and of paragraphs if both sides have equally many, of the
// same package and md5. In the order of `english`.
std::vector<SentencePair> MatchDescriptions(
    const std::vector<Description>& english,
    const std::vector<Description>& translated, absl::string_view language,
    bool with_paragraphs);

}  // namespace gshard

#endif  // SERVICES_DATA_PACKAGE_DESCRIPTIONS_H_
