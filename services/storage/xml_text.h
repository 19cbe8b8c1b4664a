// XmlText: the answers of an object store, of which only the texts of elements
// matter.

#ifndef SERVICES_STORAGE_XML_TEXT_H_
#define SERVICES_STORAGE_XML_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// The elements without elements in them, in order: their path and text, e.g.
// {"ListBucketResult/Contents/Key", "a/b"}. Attributes and namespaces are left
// out.
using XmlTexts = std::vector<std::pair<std::string, std::string>>;

// The text of the first element whose path is, or ends in a slash and, `name`;
// empty if there is none.
std::string FindXml(const XmlTexts& texts, absl::string_view name);

// Errors: DataLoss, saying what is wrong, for what is not well-formed UTF-8
// XML, has a document type (so no entities are defined), or is deeper or has
// more elements than any answer.
absl::StatusOr<XmlTexts> ParseXml(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_STORAGE_XML_TEXT_H_
