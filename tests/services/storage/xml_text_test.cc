#include "services/storage/xml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(XmlTextTest, HasTheTextsOfElements) {
  ASSERT_OK_AND_ASSIGN(
      const XmlTexts texts,
      ParseXml("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a xmlns='n'>\n"
               "<b x='1'>1 &lt; &#252;</b><c><b/></c></a>"));
  EXPECT_THAT(texts, ElementsAre(Pair("a/b", "1 < ü"), Pair("a/c/b", "")));
  EXPECT_EQ(FindXml(texts, "b"), "1 < ü");
  EXPECT_EQ(FindXml(texts, "c/b"), "");
  EXPECT_EQ(FindXml(texts, "d"), "");
}

TEST(XmlTextTest, RefusesWhatNoAnswerIs) {
  std::string deep, wide = "<a>";
  for (int i = 0; i < 20; ++i) deep += "<a>";
  for (int i = 0; i < 100'000; ++i) wide += "<b/>";
  for (int i = 0; i < 20; ++i) deep += "</a>";
  for (const std::string& text :
       {std::string(), std::string("<a>"), std::string("<a></b>"),
        std::string("no XML"), std::string("<a>\x80</a>"), deep,
        wide + "</a>"}) {
    EXPECT_THAT(ParseXml(text), StatusIs(absl::StatusCode::kDataLoss,
                                         HasSubstr("expected XML")));
  }
  EXPECT_THAT(
      ParseXml("<!DOCTYPE a [<!ENTITY e 'eeee'>]><a>&e;</a>"),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a document type")));
}

TEST(XmlTextTest, APartOfAnAnswerIsNone) {
  const std::string answer =
      "<?xml version=\"1.0\"?><a><!-- c --><b>ü<![CDATA[<]]></b><?p i?></a>";
  ASSERT_OK_AND_ASSIGN(const XmlTexts texts, ParseXml(answer));
  EXPECT_THAT(texts, ElementsAre(Pair("a/b", "ü<")));
  for (size_t size = 0; size < answer.size(); ++size) {
    EXPECT_THAT(ParseXml(answer.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line")));
  }
}

TEST(XmlTextTest, RefusesWhatOnlyLooksLikeText) {
  const std::string name(2000, 'n');
  for (const std::string& text :
       {std::string("<a>&#0;</a>"), std::string("<a>\0</a>", 8),
        std::string("<a>&#xD800;</a>"), std::string("<a>&e;</a>"),
        std::string("<a>\x1b[2J</a>"), std::string("<a/><b/>"),
        "<" + name + "/>"}) {
    EXPECT_THAT(ParseXml(text), StatusIs(absl::StatusCode::kDataLoss,
                                         HasSubstr("expected XML")))
        << text;
  }
}

}  // namespace
}  // namespace gshard
