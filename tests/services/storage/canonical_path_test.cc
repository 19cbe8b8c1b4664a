#include "services/storage/canonical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

namespace fs = std::filesystem;

// A root with a folder "in", which contains a file, and a folder "out".
class CanonicalPathTest : public ::testing::Test {
 protected:
  CanonicalPathTest() : root_(fs::canonical(scratch_.path())) {
    fs::create_directories(root_ / "in/deep");
    fs::create_directories(root_ / "out");
    std::ofstream(root_ / "in/file") << "text";
  }

  std::string At(const std::string& path) const {
    return absl::StrCat(root_.string(), "/", path);
  }
  std::string Canonical(const std::string& path) const {
    return CanonicalPath(At(path)).value();
  }

  const ScratchDirectory scratch_;
  const fs::path root_;
};

TEST_F(CanonicalPathTest, OneFolderHasOneName) {
  fs::create_directory_symlink(root_ / "in", root_ / "link");
  for (const char* path :
       {"in", "in/", "in//", "in/.", "./in", "out/../in", "in/deep/..", "link",
        "link/", "link/deep/..", "absent/../in", "absent/../link/"}) {
    EXPECT_EQ(Canonical(path), At("in")) << path;
  }
  EXPECT_EQ(CanonicalPath("/").value(), "/");
  EXPECT_EQ(CanonicalPath("//").value(), "/");
  EXPECT_EQ(CanonicalPath("/../..").value(), "/");
  EXPECT_EQ(CanonicalPath("absent").value(),
            (fs::canonical(fs::current_path()) / "absent").string());
}

TEST_F(CanonicalPathTest, WhatIsNotThereIsJudgedByWhatIs) {
  fs::create_directory_symlink(root_ / "out", root_ / "in/exit");
  EXPECT_EQ(Canonical("in/new/run/"), At("in/new/run"));
  EXPECT_EQ(Canonical("in/exit/new"), At("out/new"));
  EXPECT_EQ(Canonical("in/exit/../new"), At("new"));
  EXPECT_EQ(Canonical("in/new/../../out/x"), At("out/x"));
  EXPECT_EQ(Canonical("in/new/../exit/x"), At("out/x"));
  EXPECT_EQ(Canonical("in/file/x"), At("in/file/x"));
}

// A dangling link has no canonical path, since a file created through it would
// lie elsewhere; nor has a loop.
TEST_F(CanonicalPathTest, LinksToNothingLeadNowhere) {
  fs::create_symlink(root_ / "out/later", root_ / "in/dangling");
  fs::create_symlink("loop", root_ / "in/loop");
  for (const char* path :
       {"in/dangling", "in/dangling/x", "in/n/../dangling"}) {
    EXPECT_THAT(CanonicalPath(At(path)),
                StatusIs(absl::StatusCode::kNotFound, ::testing::_))
        << path;
  }
  EXPECT_FALSE(CanonicalPath(At("in/loop")).ok());
  EXPECT_FALSE(CanonicalPath(At("in/loop/x")).ok());
}

TEST_F(CanonicalPathTest, RefusesWhatIsNoPath) {
  for (const std::string& path :
       {std::string(), std::string("/a\0b", 4), std::string(4097, '/')}) {
    EXPECT_THAT(CanonicalPath(path),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("without NUL")));
  }
  EXPECT_THAT(CanonicalPath(At(std::string(300, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

TEST(IsWithinTest, FoldersEndWithTheirNames) {
  EXPECT_TRUE(IsWithin("/data/team-a", "/data/team-a"));
  EXPECT_TRUE(IsWithin("/data/team-a/run", "/data/team-a"));
  EXPECT_TRUE(IsWithin("/data", "/"));
  EXPECT_TRUE(IsWithin("/", "/"));
  EXPECT_FALSE(IsWithin("/data/team-ab", "/data/team-a"));
  EXPECT_FALSE(IsWithin("/data", "/data/team-a"));
  EXPECT_FALSE(IsWithin("", "/"));
}

}  // namespace
}  // namespace gshard
