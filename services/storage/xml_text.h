// XmlText: parses responses of an object store, of which only the texts of
// elements matter.

#ifndef SERVICES_STORAGE_XML_TEXT_H_
#define SERVICES_STORAGE_XML_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// The leaf elements, in order: their path and text, e.g.
// {"ListBucketResult/Contents/Key", "a/b"}. Attributes and namespaces are
// ignored.
using XmlTexts = std::vector<std::pair<std::string, std::string>>;

// The text of the first element whose path is `name` or ends in "/" and `name`;
// empty if there is none.
std::string FindXml(const XmlTexts& texts, absl::string_view name);

// Errors: DataLoss, saying what is wrong, for text that is not well-formed
// UTF-8 XML, has a document type (so no entities are defined), or exceeds the
// depth or number of elements of any response.
absl::StatusOr<XmlTexts> ParseXml(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_STORAGE_XML_TEXT_H_
