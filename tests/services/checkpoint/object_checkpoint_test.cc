// Tests checkpoints in a fake object store for what faults_test.cc and
// folder_claim_test.cc require of a disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_export.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/folder_claim.h"
#include "services/checkpoint/write_shard.h"
#include "services/storage/object_lease.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kRoot[] = "s3://bucket/jobs/demo";

// Simulates a writer that dies at change number `point`: it sends no requests
// from there on.
class DeadWriter : public FaultPoints {
 public:
  explicit DeadWriter(int point) : point_(point) {}
  absl::Status Reach(const DiskChange&) override {
    if (count_++ < point_) return absl::OkStatus();
    return absl::UnavailableError("the process is dead");
  }
  int count() const { return count_; }

 private:
  const int point_;
  int count_ = 0;
};

class ObjectCheckpointTest : public ::testing::Test {
 protected:
  ObjectCheckpointTest() { store_.Use(); }

  // A job's full checkpoint cycle, from the first shard to the removal of the
  // previous checkpoint.
  absl::Status WriteAndPrune(int64_t step, FaultPoints* faults = nullptr) {
    RETURN_IF_ERROR(WriteCheckpoint(kRoot, step, 2, faults).status());
    return PruneCheckpoints(kRoot, {.last = 1}, faults);
  }
  // Names of the keys in `folder` of the root, each cut at its first dot.
  std::vector<std::string> Names(const std::string& folder) const {
    std::vector<std::string> names;
    const std::string prefix = absl::StrCat("bucket/jobs/demo/", folder);
    for (const std::string& key : store_.Keys()) {
      if (!absl::StartsWith(key, prefix)) continue;
      const std::string rest = key.substr(prefix.size());
      names.push_back(rest.substr(0, rest.find('.')));
    }
    return names;
  }

  FakeObjectStore store_;
};

TEST_F(ObjectCheckpointTest, IsWrittenReadAndPruned) {
  ASSERT_OK(WriteAndPrune(10));
  ASSERT_OK_AND_ASSIGN(const auto first, LatestGoodCheckpoint(kRoot));
  EXPECT_EQ(first->manifest().step, 10);
  EXPECT_TRUE(HoldsItsStep(*first));
  EXPECT_THAT(WriteCheckpoint(kRoot, 10, 3),
              StatusIs(absl::StatusCode::kAlreadyExists, ::testing::_));
  ASSERT_OK(WriteAndPrune(20));
  ASSERT_OK_AND_ASSIGN(const auto paths, ListCheckpoints(kRoot));
  EXPECT_THAT(paths, ElementsAre(absl::StrCat(kRoot, "/step-00000020")));
  EXPECT_THAT(Names("step-00000010/"), IsEmpty());
  EXPECT_THAT(
      Names("step-00000020/"),
      ElementsAre("manifest", "router", "tokenizer", "worker-0", "worker-1"));
  EXPECT_THAT(first->Read("dense"),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  EXPECT_THAT(BestCheckpoint(kRoot),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
}

// Opening takes two requests for each shard, whatever its number of tensors,
// and shards do not wait for each other.
TEST_F(ObjectCheckpointTest, IsOpenedByFewRequests) {
  ASSERT_OK_AND_ASSIGN(const std::string path, WriteCheckpoint(kRoot, 5, 3));
  const size_t before = store_.Requests().size();
  std::atomic<int> opened = 0, alone = 0;  // of 4 shards
  store_.SetOnRequest([&](const std::string& request) {
    if (absl::StartsWith(request, "HEAD") &&
        absl::StrContains(request, ".safetensors")) {
      ++opened;
      const auto end =
          std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (opened < 4) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > end) {
          ++alone;
          break;
        }
      }
    }
    return FakeObjectStore::Fault::kNone;
  });
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_EQ(alone, 0);
  std::map<std::string, int> requests;  // by file
  const std::vector<std::string> sent = store_.Requests();
  for (size_t i = before; i < sent.size(); ++i) {
    if (absl::StrContains(sent[i], ".safetensors")) {
      ++requests[sent[i].substr(sent[i].rfind('/'))];
    }
  }
  EXPECT_EQ(requests.size(), 4u);
  for (const auto& [file, count] : requests) EXPECT_EQ(count, 2) << file;
}

// A checkpoint has the same bytes in an object store as on a disk.
TEST_F(ObjectCheckpointTest, IsThatOfADisk) {
  ScratchDirectory scratch;
  for (const std::string& root : {std::string(kRoot), scratch.path()}) {
    ASSERT_OK_AND_ASSIGN(const std::string path, WriteCheckpoint(root, 5, 2));
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
    ASSERT_OK(ExportCheckpoint(*reader, scratch / root.substr(0, 2),
                               [](const std::string&) { return true; }));
  }
  EXPECT_EQ(Slurp(scratch / "s3"),
            Slurp(scratch / scratch.path().substr(0, 2)));
  std::string shard;
  for (const std::string& key : store_.Keys()) {
    if (absl::StrContains(key, "worker-0")) shard = store_.Bytes(key);
  }
  EXPECT_EQ(shard, Slurp(scratch / "step-00000005/worker-0.safetensors"));
}

TEST_F(ObjectCheckpointTest, AProcessThatDiesAnywhereLeavesTheOldOrTheNew) {
  int points = 0;
  for (int point = 0;; ++point) {
    SCOPED_TRACE(point);
    for (const std::string& key : store_.Keys()) {
      ASSERT_OK(Storage::Of(kRoot).Remove("s3://" + key, nullptr));
    }
    ASSERT_OK(WriteAndPrune(10));
    DeadWriter dies(point);
    const absl::Status status = WriteAndPrune(20, &dies);
    ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(kRoot));
    const int64_t step = reader->manifest().step;
    EXPECT_TRUE(step == 10 || step == 20) << step;
    ASSERT_OK_AND_ASSIGN(const auto all, ListCheckpoints(kRoot));
    for (const std::string& path : all) {
      ASSERT_OK_AND_ASSIGN(const auto other, CheckpointReader::Open(path));
      EXPECT_TRUE(HoldsItsStep(*other));
    }
    // The job resumes from that checkpoint, which removes what the crash left.
    ASSERT_OK(ClearAfter(kRoot, step));
    ASSERT_OK(WriteAndPrune(step + 10));
    ASSERT_OK_AND_ASSIGN(const auto names, Storage::Of(kRoot).List(kRoot));
    EXPECT_THAT(names, ElementsAre(absl::StrCat("step-000000", step + 10)));
    ASSERT_OK_AND_ASSIGN(const auto next, CheckpointReader::Open(CheckpointPath(
                                              kRoot, step + 10)));
    EXPECT_TRUE(HoldsItsStep(*next));
    if (dies.count() <= point) {
      EXPECT_OK(status);
      break;
    }
    points = point;
  }
  // Three shards, a tokenizer, a manifest, five removals.
  EXPECT_GE(points, 9);
}

TEST_F(ObjectCheckpointTest, AStoreThatFailsNowAndThenIsNoMatter) {
  std::atomic<int> count{0};
  store_.SetOnRequest([&](const std::string&) {
    using Fault = FakeObjectStore::Fault;
    constexpr Fault kFaults[] = {Fault::kReset, Fault::kLost, Fault::kSlowDown,
                                 Fault::kTruncate};
    const int i = count++;
    return i % 3 == 0 ? kFaults[i / 3 % 4] : Fault::kNone;
  });
  ASSERT_OK(WriteAndPrune(10));
  ASSERT_OK(WriteAndPrune(20));
  ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(kRoot));
  EXPECT_EQ(reader->manifest().step, 20);
  EXPECT_TRUE(HoldsItsStep(*reader));
  EXPECT_THAT(Names("step-00000010/"), IsEmpty());
}

TEST_F(ObjectCheckpointTest, ACommitThatIsNotHeardOfIsNotTakenBack) {
  store_.SetOnRequest([](const std::string& request) {
    return absl::StartsWith(request, "PUT") &&
                   absl::EndsWith(request, "manifest.json")
               ? FakeObjectStore::Fault::kLost
               : FakeObjectStore::Fault::kNone;
  });
  // Eight lost answers make the commit seem to fail. AbandonCheckpoint() finds
  // the manifest and removes nothing.
  ASSERT_OK_AND_ASSIGN(const auto entries, WriteShards(kRoot, 10, 2));
  const auto committed =
      CommitCheckpoint(kRoot, ManifestOf(10, entries), "pieces");
  EXPECT_THAT(committed,
              StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  store_.SetOnRequest(nullptr);
  ASSERT_OK(AbandonCheckpoint(kRoot, 10));
  ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(kRoot));
  EXPECT_TRUE(HoldsItsStep(*reader));
}

TEST_F(ObjectCheckpointTest, WhatIsAbandonedIsGone) {
  ASSERT_OK(WriteShards(kRoot, 10, 2));
  EXPECT_THAT(LatestCheckpoint(kRoot),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
  ASSERT_OK(AbandonCheckpoint(kRoot, 10));
  EXPECT_THAT(store_.Keys(), IsEmpty());
}

// A late shard of an abandoned attempt does not change a committed checkpoint.
TEST_F(ObjectCheckpointTest, ALateWriterChangesNothing) {
  ASSERT_OK_AND_ASSIGN(
      const auto late,
      CheckpointWriter::Create(kRoot, 10, "router", {DenseSpec()}));
  ASSERT_OK(late->Write("dense", DenseWeight(77)));
  ASSERT_OK(WriteCheckpoint(kRoot, 10, 2));
  ASSERT_OK(late->Finish());
  ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(kRoot));
  EXPECT_TRUE(HoldsItsStep(*reader));
  ASSERT_OK(WriteAndPrune(20));
  EXPECT_THAT(Names("step-00000010/"), IsEmpty());
}

TEST_F(ObjectCheckpointTest, ADamagedOneIsPassedOverAndSetAside) {
  ASSERT_OK(WriteCheckpoint(kRoot, 10, 2));
  ASSERT_OK(WriteCheckpoint(kRoot, 20, 2));
  for (const std::string& key : store_.Keys()) {
    if (!absl::StrContains(key, "step-00000020/worker-1")) continue;
    std::string bytes = store_.Bytes(key);
    bytes.back() ^= 1;
    store_.Set(key, bytes);
  }
  ASSERT_OK_AND_ASSIGN(const auto reader, LatestGoodCheckpoint(kRoot));
  EXPECT_EQ(reader->manifest().step, 10);
  ASSERT_OK(ClearAfter(kRoot, 10));
  ASSERT_OK_AND_ASSIGN(auto paths, ListCheckpoints(kRoot));
  EXPECT_THAT(paths, ElementsAre(CheckpointPath(kRoot, 10)));
  EXPECT_EQ(Names("step-00000020/worker-1").size(), 1u);
  ASSERT_OK(WriteAndPrune(20));
  ASSERT_OK_AND_ASSIGN(const auto again, LatestGoodCheckpoint(kRoot));
  EXPECT_TRUE(HoldsItsStep(*again));
  EXPECT_EQ(again->manifest().step, 20);
  EXPECT_EQ(Names("step-00000020/manifest").size(), 1u);
}

// Its owner goes on with its folder.
TEST_F(ObjectCheckpointTest, TheNewestIsFoundThoughTheOneThatWasIsPruned) {
  ASSERT_OK(WriteAndPrune(10));
  std::atomic<bool> is_first = true;
  store_.SetOnRequest([&](const std::string& request) {
    if (absl::StrContains(request, "step-00000010/manifest.json") &&
        absl::StartsWith(request, "HEAD") && is_first.exchange(false)) {
      EXPECT_OK(WriteAndPrune(20));
    }
    return FakeObjectStore::Fault::kNone;
  });
  ::testing::internal::CaptureStderr();
  const auto newest = OpenLatestCheckpoint(kRoot);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(newest);
  EXPECT_EQ((*newest)->manifest().step, 20);
  EXPECT_THAT(log, Not(HasSubstr("DAMAGED")));
}

// Claims.

constexpr auto kInUse = absl::StatusCode::kFailedPrecondition;

TEST_F(ObjectCheckpointTest, AFolderHasOneOwner) {
  EXPECT_OK(FolderClaim::CheckFree(kRoot));
  ASSERT_OK_AND_ASSIGN(auto claim, FolderClaim::Take(kRoot, "a"));
  EXPECT_OK(claim->Check());
  EXPECT_THAT(FolderClaim::Take(kRoot, "b"),
              StatusIs(kInUse, HasSubstr("in use by job 'a' (epoch 1")));
  const std::string tag = claim->tag();
  claim = nullptr;
  ASSERT_OK_AND_ASSIGN(claim, FolderClaim::Take(kRoot, "b"));
  ASSERT_OK_AND_ASSIGN(const auto owner, ReadOwner(kRoot));
  ASSERT_TRUE(owner.has_value());
  EXPECT_EQ(owner->job, "b");
  EXPECT_EQ(owner->epoch, 2);
  EXPECT_NE(claim->tag(), tag);
}

TEST_F(ObjectCheckpointTest, OfRivalsAtOneMomentOneOwnsTheFolder) {
  std::vector<std::thread> rivals;
  std::atomic<int> owners{0};
  std::promise<void> all_tried;
  std::atomic<int> tried{0};
  const std::shared_future<void> end = all_tried.get_future().share();
  for (int i = 0; i < 8; ++i) {
    rivals.emplace_back([&, i] {
      const auto claim = FolderClaim::Take(kRoot, absl::StrCat(i));
      owners += claim.ok();
      EXPECT_TRUE(claim.ok() || claim.status().code() == kInUse)
          << claim.status();
      if (++tried == 8) all_tried.set_value();
      end.wait();
    });
  }
  for (std::thread& rival : rivals) rival.join();
  EXPECT_EQ(owners, 1);
}

TEST_F(ObjectCheckpointTest, WhoIsSilentIsReplacedAndChangesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto a, FolderClaim::Take(kRoot, "a"));
  ASSERT_OK(WriteAndPrune(10, a.get()));
  ASSERT_OK(WriteShards(kRoot, 20, 2, a.get()));
  store_.Advance(kLeaseLasts - absl::Seconds(1));
  EXPECT_THAT(FolderClaim::Take(kRoot, "b"), StatusIs(kInUse, ::testing::_));
  store_.Advance(absl::Seconds(1));
  ASSERT_OK_AND_ASSIGN(const auto b, FolderClaim::Take(kRoot, "b"));
  const auto before = store_.Keys();
  const auto lost =
      StatusIs(kInUse, AllOf(HasSubstr("no longer that of job 'a' (epoch 1"),
                             HasSubstr("taken over by job 'b' (epoch 2")));
  EXPECT_THAT(a->Check(), lost);
  EXPECT_THAT(WriteAndPrune(20, a.get()), lost);
  EXPECT_THAT(AbandonCheckpoint(kRoot, 20, a.get()), lost);
  EXPECT_THAT(ClearAfter(kRoot, -1, a.get()), lost);
  EXPECT_THAT(RemoveLeftovers(kRoot, 100, a.get()), lost);
  EXPECT_EQ(store_.Keys(), before);
  EXPECT_OK(b->Check());
  ASSERT_OK(Storage::Of(kRoot).Remove(OwnerPath(kRoot), nullptr));
  EXPECT_THAT(b->Check(), StatusIs(kInUse, HasSubstr("was removed")));
}

// Takes over the folder at the owner's change number `point`, before the
// owner's check.
class ObjectRival : public FaultPoints {
 public:
  ObjectRival(FakeObjectStore& store, FolderClaim& owner, int point)
      : store_(store), owner_(owner), point_(point) {}

  absl::Status Reach(const DiskChange& change) override {
    if (point_-- == 0) {
      store_.Advance(kLeaseLasts);
      claim_ = *FolderClaim::Take(kRoot, "b");
      EXPECT_OK(ClearAfter(kRoot, 10, claim_.get()));
      EXPECT_OK(WriteShards(kRoot, 20, 3, claim_.get()));
      found_ = store_.Keys();
    }
    return owner_.Reach(change);
  }
  bool began() const { return claim_ != nullptr; }
  FaultPoints* claim() { return claim_.get(); }
  const std::vector<std::string>& found() const { return found_; }

 private:
  FakeObjectStore& store_;
  FolderClaim& owner_;
  int point_;
  std::shared_ptr<FolderClaim> claim_;
  std::vector<std::string> found_;
};

TEST_F(ObjectCheckpointTest, WhoeverIsReplacedWheneverDeletesNothing) {
  int points = 0;
  for (int point = 0;; ++point) {
    SCOPED_TRACE(point);
    for (const std::string& key : store_.Keys()) {
      ASSERT_OK(Storage::Of(kRoot).Remove("s3://" + key, nullptr));
    }
    ASSERT_OK_AND_ASSIGN(const auto a, FolderClaim::Take(kRoot, "a"));
    ASSERT_OK(WriteAndPrune(10, a.get()));
    ObjectRival rival(store_, *a, point);
    // The takeover comes at the commit or later: members write shards without
    // the claim.
    ASSERT_OK_AND_ASSIGN(const auto entries, WriteShards(kRoot, 20, 2));
    absl::Status status =
        CommitCheckpoint(kRoot, ManifestOf(20, entries), "pieces", "", &rival)
            .status();
    if (status.ok()) status = PruneCheckpoints(kRoot, {.last = 1}, &rival);
    if (!rival.began()) {
      EXPECT_OK(status);
      points = point;
      break;
    }
    EXPECT_TRUE(status.ok() || status.code() == kInUse) << status;
    EXPECT_EQ(store_.Keys(), rival.found());
  }
  EXPECT_GE(points, 6);
}

}  // namespace
}  // namespace gshard
