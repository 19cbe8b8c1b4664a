#include "services/base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace gshard {
namespace {

TEST(Utf8Test, ReadsWhatItWrites) {
  for (const char32_t c : {U'a', U'\x7F', U'\x80', U'\u07FF', U'\u0800',
                           U'\uFFFD', U'\U00010000', U'\U0010FFFF'}) {
    std::string text;
    AppendUtf8(c, &text);
    size_t position = 0;
    char32_t read = 0;
    ASSERT_TRUE(NextCharacter(text, &position, &read)) << text;
    EXPECT_EQ(read, c);
    EXPECT_EQ(position, text.size());
    EXPECT_EQ(CountCharacters(text), 1u);
  }
}

TEST(Utf8Test, RefusesMalformedBytes) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("Grüße 東京 🙂"));
  EXPECT_TRUE(IsUtf8("\uFFFF\U0010FFFF"));
  for (const char* bad :
       {"\x80", "\xC3", "\xC0\x80", "\xC0\xAF", "\xE0\x80\x80", "\xE0\x80\xAF",
        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80",
        "\xFF", "\xE2\x82", "\xE2\x28\xA1", "\xC3("}) {
    EXPECT_EQ(FirstMalformedByte(bad), 0u) << bad;
    EXPECT_EQ(FirstMalformedByte(std::string("ab") + bad), 2u) << bad;
  }
}

TEST(Utf8Test, KnowsWhatDoesNotShow) {
  for (const char* blank : {"", " \t\r\n", "\u00A0", "\u3000 \u200B\uFEFF"}) {
    EXPECT_TRUE(IsBlank(blank)) << blank;
  }
  for (const char* text : {"a", "\u3000.", "\u00AD", "\u6771", "\xA0"}) {
    EXPECT_FALSE(IsBlank(text)) << text;
  }
}

TEST(Utf8Test, TellsWordsFromWhatIsBetweenThem) {
  constexpr std::u32string_view kOfWords =
      U"aZ9\u00AA\u00B5\u00BA\u00B2\u00E4\u00DF\u0301\u03C9"
      U"\u0416\u0663\u4F7F\u3005\u30FC\u200D\u00AD\uFF21\uAC00";
  for (const char32_t c : kOfWords) {
    EXPECT_TRUE(IsWordCharacter(c)) << std::hex << uint32_t{c};
  }
  constexpr std::u32string_view kBetween =
      U" _-+\n\u00A0\u00AB\u00BB\u00BF\u00AE\u00D7\u00F7\u037E\u060C\u0964"
      U"\u2013\u2014\u2018\u2019\u201C\u201E\u2026\u202F\u20AC\u2122\u2192"
      U"\u3000\u3002\u300C\u30FB\uFE0F\uFF01\uFF0C\uFF1F\uFF5E\U0001F389";
  for (const char32_t c : kBetween) {
    EXPECT_FALSE(IsWordCharacter(c)) << std::hex << uint32_t{c};
  }
}

TEST(Utf8Test, LowercasesWithoutALocale) {
  EXPECT_EQ(Lowercase("ÀÉÞß×Ž Ĺĺ ŸŐ ΑΩΣ ЖЁЯ 東 Zz"),
            "àéþß×ž ĺĺ ÿő αωσ жёя 東 zz");
}

}  // namespace
}  // namespace gshard
