// The contract of every storage, on a disk and in an object store, and what
// only an object store does.

#include "services/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/storage/object_upload.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::string_view kMarker = "whole.json";

// A place for a test, on a disk or in an object store.
class StorageTest : public ::testing::TestWithParam<bool> {
 protected:
  StorageTest() {
    if (GetParam()) store_.Use();
  }

  std::string Path(const std::string& name) const {
    return GetParam() ? absl::StrCat("s3://bucket/a b/", name)
                      : scratch_ / name;
  }
  const Storage& storage() const { return Storage::Of(Path("")); }

  absl::Status Put(const std::string& name, const std::string& bytes) const {
    RETURN_IF_ERROR(storage().MakeFolder(Path("."), nullptr));
    return storage().Write(Path(name), bytes, nullptr);
  }
  // A folder with a file in it, not yet committed.
  absl::Status Draft(const std::string& name) const {
    const std::string draft = storage().DraftOf(Path(name));
    RETURN_IF_ERROR(storage().MakeFolder(draft, nullptr));
    return storage().Write(draft + "/shard", "123", nullptr);
  }
  absl::Status Commit(const std::string& name) const {
    return storage().Commit(Path(name), kMarker, "{}", nullptr);
  }
  // "name suffix" of each folder.
  std::vector<std::string> Folders() const {
    std::vector<std::string> names;
    const auto folders = storage().ListFolders(Path("root"), "", kMarker);
    EXPECT_OK(folders);
    for (const StoredFolder& folder : *folders) {
      names.push_back(folder.name + folder.suffix);
    }
    return names;
  }
  StoredFolder Folder(const std::string& name) const {
    const auto folders = storage().ListFolders(Path("root"), "", kMarker);
    EXPECT_OK(folders);
    for (const StoredFolder& folder : *folders) {
      if (folder.name == name) return folder;
    }
    ADD_FAILURE() << name;
    return {};
  }

  ScratchDirectory scratch_;
  FakeObjectStore store_;
};

INSTANTIATE_TEST_SUITE_P(OfADisk, StorageTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(OfObjects, StorageTest, ::testing::Values(true));

TEST_P(StorageTest, ReadsWhatWasWritten) {
  ASSERT_OK(storage().Write(Path("a"), "hello", nullptr));
  ASSERT_OK(storage().Write(Path("a"), "hello world", nullptr));
  ASSERT_OK_AND_ASSIGN(const auto file, InputFile::Open(Path("a")));
  EXPECT_EQ(file->size(), 11u);
  std::string part(5, ' ');
  ASSERT_OK(file->ReadAt(6, part.data(), part.size()));
  EXPECT_EQ(part, "world");
  EXPECT_THAT(file->ReadAt(7, part.data(), part.size()),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::_));
  ASSERT_OK(file->ReadAt(11, part.data(), 0));
  ASSERT_OK(storage().Write(Path("empty"), "", nullptr));
  ASSERT_OK_AND_ASSIGN(const std::string none, ReadFile(Path("empty"), 0));
  EXPECT_EQ(none, "");
  EXPECT_THAT(ReadFile(Path("a"), 10),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
  EXPECT_THAT(InputFile::Open(Path("b")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("b")));
}

TEST_P(StorageTest, ANewFileIsThereOnceItIsFinished) {
  for (const size_t size : {0u, 5u, 40u << 20}) {
    const std::string name = absl::StrCat("file-", size);
    std::string bytes(size, ' ');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i >> 7);
    ASSERT_OK_AND_ASSIGN(auto file,
                         storage().Create(Path(name), size, nullptr));
    const size_t half = size / 2 + size % 2;
    ASSERT_OK(file->WriteAt(0, bytes.substr(0, half)));
    ASSERT_OK(file->WriteAt(half, bytes.substr(half)));
    EXPECT_THAT(InputFile::Open(Path(name)),
                StatusIs(absl::StatusCode::kNotFound, ::testing::_));
    ASSERT_OK(file->Finish());
    ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Path(name), size));
    EXPECT_TRUE(read == bytes) << size;
    ASSERT_OK_AND_ASSIGN(file, storage().Create(Path("other"), size, nullptr));
    ASSERT_OK(file->WriteAt(0, bytes.substr(0, half)));
    file = nullptr;
    EXPECT_THAT(InputFile::Open(Path("other")),
                StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  }
  EXPECT_EQ(store_.OpenUploads(), 0u);
}

TEST_P(StorageTest, ReadsRangesOfOneVersion) {
  std::string bytes(300'000, ' ');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(i % 251);
  ASSERT_OK(storage().Write(Path("text"), bytes, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto file, InputFile::Open(Path("text")));
  const std::vector<FileRange> ranges = {
      {0, 10},      {10, 90},      {50'000, 7},  {200'000, 10},
      {199'999, 2}, {299'990, 20}, {400'000, 5}, {7, 0}};
  ASSERT_OK_AND_ASSIGN(const auto parts, file->ReadRanges(ranges));
  ASSERT_EQ(parts.size(), ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(parts[i], ranges[i].offset > bytes.size()
                            ? ""
                            : bytes.substr(ranges[i].offset, ranges[i].size))
        << i;
  }
  std::string rest(100, ' ');
  ASSERT_OK_AND_ASSIGN(const size_t count,
                       file->ReadSome(299'950, rest.data(), rest.size()));
  EXPECT_EQ(rest.substr(0, count), bytes.substr(299'950));
  ASSERT_OK_AND_ASSIGN(const FileVersion before, file->Version());
  EXPECT_EQ(before.bytes, bytes.size());
  bytes[5] ^= 1;
  ASSERT_OK(storage().Write(Path("text"), bytes, nullptr));
  ASSERT_OK_AND_ASSIGN(const auto again, InputFile::Open(Path("text")));
  ASSERT_OK_AND_ASSIGN(const FileVersion after, again->Version());
  EXPECT_FALSE(after == before);
}

TEST_P(StorageTest, ListsAndRemoves) {
  EXPECT_THAT(storage().List(Path("x")),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  for (const char* folder : {"x", "x/y", "xx"}) {
    ASSERT_OK(storage().MakeFolder(Path(folder), nullptr));
  }
  for (const char* name :
       {"x/5", "x/4", "x/3", "x/2", "x/1", "x/y/1", "x/y/2", "xx/1"}) {
    ASSERT_OK(storage().Write(Path(name), name, nullptr));
  }
  ASSERT_OK_AND_ASSIGN(const auto names, storage().List(Path("x")));
  EXPECT_THAT(names, ElementsAre("1", "2", "3", "4", "5", "y"));
  ASSERT_OK(storage().Remove(Path("x/1"), nullptr));
  ASSERT_OK(storage().Remove(Path("x/1"), nullptr));
  EXPECT_THAT(InputFile::Open(Path("x/1")),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  ASSERT_OK(storage().Remove(Path("x"), nullptr));
  EXPECT_THAT(storage().List(Path("x")),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  EXPECT_OK(InputFile::Open(Path("xx/1")));
}

TEST_P(StorageTest, AFolderIsThereOnceItIsCommitted) {
  ASSERT_OK(Draft("root/one"));
  ASSERT_OK(Draft("root/two"));
  EXPECT_THAT(Folders(), ElementsAre("one.partial", "two.partial"));
  ASSERT_OK_AND_ASSIGN(bool is_there,
                       storage().IsCommitted(Path("root/one"), kMarker));
  EXPECT_FALSE(is_there);
  ASSERT_OK(Commit("root/one"));
  EXPECT_THAT(Folders(), ElementsAre("one", "two.partial"));
  ASSERT_OK_AND_ASSIGN(is_there,
                       storage().IsCommitted(Path("root/one"), kMarker));
  EXPECT_TRUE(is_there);
  ASSERT_OK_AND_ASSIGN(const auto names, storage().List(Path("root/one")));
  EXPECT_THAT(names, ElementsAre("shard", "whole.json"));
  ASSERT_OK(storage().RemoveDraft(Path("root/one"), kMarker, nullptr));
  ASSERT_OK(storage().RemoveDraft(Path("root/two"), kMarker, nullptr));
  EXPECT_THAT(Folders(), ElementsAre("one"));
  EXPECT_OK(InputFile::Open(Path("root/one/shard")));
}

TEST_P(StorageTest, ListsFoldersByTheBeginOfTheirNames) {
  for (const char* name : {"root/a-1", "root/a-2", "root/b", "a-3"}) {
    ASSERT_OK(Draft(name));
    ASSERT_OK(Commit(name));
  }
  ASSERT_OK_AND_ASSIGN(const auto folders,
                       storage().ListFolders(Path("root"), "a-", kMarker));
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(folders[0].name, "a-1");
  EXPECT_EQ(folders[1].path, Path("root/a-2"));
}

TEST_P(StorageTest, AFolderIsCommittedOnce) {
  ASSERT_OK(Draft("root/one"));
  ASSERT_OK(Commit("root/one"));
  ASSERT_OK(Draft("root/one"));
  EXPECT_THAT(Commit("root/one"),
              StatusIs(absl::StatusCode::kAlreadyExists, ::testing::_));
}

TEST_P(StorageTest, WhatIsSetAsideIsOutOfSight) {
  for (const char* name : {"root/bad", "root/old", "root/half"}) {
    ASSERT_OK(Draft(name));
  }
  ASSERT_OK(Commit("root/bad"));
  ASSERT_OK(Commit("root/old"));
  for (const auto& [name, suffix] :
       {std::pair("bad", ".damaged"), std::pair("old", ".removed"),
        std::pair("half", ".removed")}) {
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         storage().SetAside(Path("root"), Folder(name), suffix,
                                            kMarker, nullptr));
    EXPECT_OK(InputFile::Open(path + "/shard"));
    if (std::string(suffix) == ".removed") {
      ASSERT_OK(storage().Remove(path, nullptr));
    }
  }
  EXPECT_THAT(Folders(), ElementsAre("bad.damaged"));
  ASSERT_OK_AND_ASSIGN(const bool is_there,
                       storage().IsCommitted(Path("root/bad"), kMarker));
  EXPECT_FALSE(is_there);
}

// A folder that cannot be looked at is not taken for none, so that a job does
// not go on from an older checkpoint.
TEST(FolderStorageTest, WhatCannotBeLookedAtIsNotAbsent) {
  const ScratchDirectory scratch;
  const Storage& storage = Storage::Of(scratch.path());
  for (const auto& [name, target] :
       {std::pair("a-dangling", "nothing"), std::pair("b-loop", "b-loop")}) {
    std::filesystem::create_symlink(target, scratch / name);
    EXPECT_THAT(storage.IsCommitted(scratch / name, kMarker),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(name)));
    EXPECT_THAT(storage.ListFolders(scratch.path(),
                                    std::string(name).substr(0, 2), kMarker),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(name)));
  }
  // Links of other names are nobody's business.
  std::filesystem::create_directory(scratch / "c-folder");
  std::filesystem::create_symlink("c-folder", scratch / "c-link");
  Spill(scratch / "c-file", "");
  ASSERT_OK_AND_ASSIGN(const auto folders,
                       storage.ListFolders(scratch.path(), "c-", kMarker));
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(folders[0].name, "c-folder");
  EXPECT_EQ(folders[1].name, "c-link");
  for (const char* name : {"c-file", "c-none", "none/c"}) {
    ASSERT_OK_AND_ASSIGN(const bool is_there,
                         storage.IsCommitted(scratch / name, kMarker));
    EXPECT_FALSE(is_there) << name;
  }
}

// Tests of object stores only.

class ObjectStorageTest : public ::testing::Test {
 protected:
  ObjectStorageTest() { store_.Use(); }
  const Storage& storage() const { return Storage::Of("s3://bucket"); }
  FakeObjectStore store_;
};

TEST_F(ObjectStorageTest, LargeObjectsTravelInParts) {
  const std::string bytes(40 << 20, 'x');
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      storage().Create("s3://bucket/large", bytes.size(), nullptr));
  ASSERT_OK(file->WriteAt(0, bytes));
  ASSERT_OK(file->Finish());
  ASSERT_OK_AND_ASSIGN(const auto read, ReadFile("s3://bucket/large", 1 << 30));
  EXPECT_TRUE(read == bytes);
  int parts = 0, ranges = 0;
  for (const std::string& request : store_.Requests()) {
    parts += absl::StrContains(request, "partNumber=");
    ranges += absl::StartsWith(request, "GET bucket/large");
  }
  EXPECT_EQ(parts, 3);
  EXPECT_EQ(ranges, 10);
  EXPECT_EQ(UploadPartBytes(100, 16), 16u);
  EXPECT_EQ(UploadPartBytes(1'000'001, 16), 101u);
}

TEST_F(ObjectStorageTest, WhatIsGivenUpLeavesNoParts) {
  ASSERT_OK_AND_ASSIGN(
      auto file, storage().Create("s3://bucket/large", 40 << 20, nullptr));
  ASSERT_OK(file->WriteAt(0, std::string(20 << 20, 'x')));
  EXPECT_EQ(store_.OpenUploads(), 1u);
  EXPECT_THAT(file->WriteAt(0, "again"),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::_));
  EXPECT_THAT(file->Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::_));
  file = nullptr;
  EXPECT_EQ(store_.OpenUploads(), 0u);
  EXPECT_THAT(store_.Keys(), IsEmpty());
}

TEST_F(ObjectStorageTest, APartThatIsRefusedEndsTheUpload) {
  store_.SetOnRequest([](const std::string& request) {
    return absl::StrContains(request, "partNumber=2")
               ? FakeObjectStore::Fault::kRefused
               : FakeObjectStore::Fault::kNone;
  });
  {
    ASSERT_OK_AND_ASSIGN(
        auto file, storage().Create("s3://bucket/large", 40 << 20, nullptr));
    absl::Status status = file->WriteAt(0, std::string(40 << 20, 'x'));
    if (status.ok()) status = file->Finish();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied,
                                 HasSubstr("part 2")));
  }
  EXPECT_EQ(store_.OpenUploads(), 0u);
  EXPECT_THAT(store_.Keys(), IsEmpty());
}

TEST_F(ObjectStorageTest, AnObjectThatChangesWhileItIsReadIsAnError) {
  store_.Set("bucket/a", "before");
  ASSERT_OK_AND_ASSIGN(const auto file, InputFile::Open("s3://bucket/a"));
  store_.Set("bucket/a", "behind");
  char byte;
  EXPECT_THAT(file->ReadAt(0, &byte, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has changed")));
}

TEST_F(ObjectStorageTest, NamesInADraftAreNobodyElses) {
  const std::string name = storage().NameInDraft("3-dense.safetensors");
  EXPECT_TRUE(absl::StartsWith(name, "3-dense.")) << name;
  EXPECT_TRUE(absl::EndsWith(name, ".safetensors")) << name;
  EXPECT_NE(name, storage().NameInDraft("3-dense.safetensors"));
}

TEST_F(ObjectStorageTest, TakesPathsThatAreSoundOnly) {
  for (const char* path : {"s3://", "s3://x", "s3://Bucket/a", "s3://bucket//a",
                           "s3://bucket/../a", "s3://bucket/a\n"}) {
    EXPECT_THAT(InputFile::Open(path),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_))
        << path;
  }
  EXPECT_THAT(storage().Remove("s3://bucket", nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

}  // namespace
}  // namespace gshard
