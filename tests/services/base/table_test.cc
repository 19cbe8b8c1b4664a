#include "services/base/table.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(TableTest, AlignsColumnsByCharacters) {
  Table table({"name", "count", "text"}, {1});
  EXPECT_TRUE(table.empty());
  table.AddRow({"übung", "7", "a"});
  table.AddRow({"b", "1234567", ""});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.ToText(),
            "name     count  text\n"
            "übung        7  a\n"
            "b      1234567\n");
}

}  // namespace
}  // namespace gshard
