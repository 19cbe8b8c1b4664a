#include "services/storage/object_path.h"

#include <gtest/gtest.h>

#include "services/storage/canonical_path.h"
#include "services/storage/file.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

TEST(ObjectPathTest, HasOneSpelling) {
  for (const char* path : {"s3://bucket/a/b", "s3://bucket/a/b/"}) {
    ASSERT_OK_AND_ASSIGN(const ObjectPath object, ParseObjectPath(path));
    EXPECT_EQ(object.bucket, "bucket");
    EXPECT_EQ(object.key, "a/b");
    ASSERT_OK_AND_ASSIGN(const std::string canonical, CanonicalPath(path));
    EXPECT_EQ(canonical, "s3://bucket/a/b");
  }
  ASSERT_OK_AND_ASSIGN(const ObjectPath bucket, ParseObjectPath("s3://bucket"));
  EXPECT_EQ(bucket.key, "");
  EXPECT_EQ(bucket.Text(), "s3://bucket");
}

TEST(ObjectPathTest, NothingLeadsOutOfAFolder) {
  for (const char* path :
       {"s3://bucket/team-a/../team-b", "s3://bucket/team-a//x",
        "s3://bucket/./x", "s3://../x", "s3://", "s3://ab", "s3://bucket/\x80",
        "s3:///bucket/x"}) {
    EXPECT_THAT(CanonicalPath(path),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_))
        << path;
  }
  EXPECT_TRUE(IsWithin("s3://bucket/team-a/x", "s3://bucket/team-a"));
  EXPECT_TRUE(IsWithin("s3://bucket/team-a", "s3://bucket"));
  EXPECT_FALSE(IsWithin("s3://bucket/team-abc", "s3://bucket/team-a"));
  EXPECT_FALSE(IsWithin("s3://bucket2/x", "s3://bucket"));
  EXPECT_FALSE(IsWithin("s3://bucket/x", "/"));
}

TEST(ObjectPathTest, NoFolderOfADiskIsMadeForIt) {
  EXPECT_THAT(MakeDirectories("s3://bucket/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
  EXPECT_THAT(OutputFile::Create("s3://bucket/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
  EXPECT_THAT(WriteFileAtomically("s3://bucket/x", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

}  // namespace
}  // namespace gshard
