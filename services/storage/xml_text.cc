#include "services/storage/xml_text.h"

#include <expat.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gshard {
namespace {

constexpr size_t kMaxDepth = 16;
// A list of 1000 objects has 7 elements each.
constexpr size_t kMaxElements = 64 << 10;
constexpr size_t kMaxPathBytes = 1024;

struct Reading {
  XML_Parser parser = nullptr;
  XmlTexts texts;
  std::string path;
  std::vector<size_t> parents;  // bytes of their paths
  std::string text;             // text of the innermost element
  bool is_leaf = false;
  size_t elements = 0;
  std::string problem;

  void Stop(std::string why) {
    if (problem.empty()) problem = std::move(why);
    XML_StopParser(parser, XML_FALSE);
  }
};

void OnStart(void* data, const XML_Char* name, const XML_Char**) {
  Reading& reading = *static_cast<Reading*>(data);
  if (reading.parents.size() == kMaxDepth ||
      ++reading.elements > kMaxElements ||
      reading.path.size() + absl::string_view(name).size() > kMaxPathBytes) {
    return reading.Stop("more elements than expected");
  }
  reading.parents.push_back(reading.path.size());
  absl::StrAppend(&reading.path, reading.path.empty() ? "" : "/", name);
  reading.text.clear();
  reading.is_leaf = true;
}

void OnEnd(void* data, const XML_Char*) {
  Reading& reading = *static_cast<Reading*>(data);
  // The end of an empty element is reported even after its start has stopped
  // parsing.
  if (!reading.problem.empty()) return;
  if (reading.is_leaf) {
    reading.texts.emplace_back(reading.path, std::move(reading.text));
  }
  reading.text.clear();
  reading.is_leaf = false;
  reading.path.resize(reading.parents.back());
  reading.parents.pop_back();
}

void OnText(void* data, const XML_Char* text, int size) {
  static_cast<Reading*>(data)->text.append(text, size);
}

void OnDocumentType(void* data, const XML_Char*, const XML_Char*,
                    const XML_Char*, int) {
  static_cast<Reading*>(data)->Stop("a document type");
}

}  // namespace

std::string FindXml(const XmlTexts& texts, absl::string_view name) {
  for (const auto& [path, text] : texts) {
    if (path == name || absl::EndsWith(path, absl::StrCat("/", name))) {
      return text;
    }
  }
  return "";
}

absl::StatusOr<XmlTexts> ParseXml(absl::string_view text) {
  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(
      XML_ParserCreate("UTF-8"), XML_ParserFree);
  if (parser == nullptr) return absl::ResourceExhaustedError("no memory");
  Reading reading;
  reading.parser = parser.get();
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(parser.get(), OnStart, OnEnd);
  XML_SetCharacterDataHandler(parser.get(), OnText);
  XML_SetStartDoctypeDeclHandler(parser.get(), OnDocumentType);
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()),
                /*isFinal=*/1) == XML_STATUS_OK) {
    return std::move(reading.texts);
  }
  return absl::DataLossError(absl::StrCat(
      "expected XML, got ",
      reading.problem.empty() ? XML_ErrorString(XML_GetErrorCode(parser.get()))
                              : reading.problem.c_str(),
      " in line ", XML_GetCurrentLineNumber(parser.get())));
}

}  // namespace gshard
