// ModelTable: the model that a name stands for, and when a model is released.

#include "router/models/model_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelTableTest : public ::testing::Test {
 protected:
  ModelTableTest() { table_.Expect({}); }

  void Add(const std::string& id) {
    ASSERT_OK(table_.Add(std::make_shared<FakeModel>(id)));
  }
  std::string FindId(const std::string& name) {
    const auto model = table_.Find(name);
    return model.ok() ? (*model)->id() : model.status().ToString();
  }

  ModelTable table_;
};

TEST_F(ModelTableTest, NewestVersionAnswersForItsName) {
  Add("a@1");
  EXPECT_EQ(FindId("a"), "a@1");
  Add("a@2");
  EXPECT_EQ(FindId("a"), "a@2");
  EXPECT_EQ(FindId("a@1"), "a@1");
  EXPECT_EQ(FindId(""), "a@2");
  table_.Remove("a@2", /*wait=*/true);
  EXPECT_EQ(FindId("a"), "a@1");
  EXPECT_THAT(table_.Add(std::make_shared<FakeModel>("a@1")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("a@1")));
}

TEST_F(ModelTableTest, AStandbyHasNoNameUntilItIsCurrent) {
  Add("a@2");
  ASSERT_OK(table_.Add(std::make_shared<FakeModel>("a@1"), /*standby=*/true));
  EXPECT_EQ(FindId("a"), "a@2");
  EXPECT_EQ(FindId(""), "a@2");
  EXPECT_EQ(FindId("a@1"), "a@1");
  EXPECT_TRUE(table_.HasName("a@2"));
  EXPECT_FALSE(table_.HasName("a@1"));
  EXPECT_FALSE(table_.HasName("a@3"));
  table_.MakeCurrent("a@2");  // already current
  table_.MakeCurrent("a@3");  // not in the table
  EXPECT_EQ(FindId("a"), "a@2");
  table_.MakeCurrent("a@1");
  EXPECT_TRUE(table_.HasName("a@1"));
  EXPECT_TRUE(table_.HasName("a@2"));  // to be released next
  EXPECT_EQ(FindId("a"), "a@1");
  EXPECT_EQ(FindId(""), "a@1");
  // A model that lost the name does not take it back.
  table_.MakeCurrent("a@2");
  EXPECT_EQ(FindId("a"), "a@1");
}

TEST_F(ModelTableTest, WithStandbysOnlyNothingHasAName) {
  ASSERT_OK(table_.Add(std::make_shared<FakeModel>("a@1"), /*standby=*/true));
  EXPECT_THAT(table_.Find(""),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no model")));
  EXPECT_THAT(table_.Find("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model")));
}

TEST_F(ModelTableTest, WhatTheRouterWasNotToldYetMayBeThereLater) {
  ModelTable table;
  EXPECT_THAT(table.Find("a"), StatusIs(absl::StatusCode::kUnavailable,
                                        HasSubstr("has not been told yet")));
  table.Expect({"a"});
  for (const char* name : {"a", "a@1"}) {
    EXPECT_THAT(table.Find(name), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("is being loaded")));
  }
  EXPECT_THAT(table.Find("b"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model 'b'")));
  // Once added, it is like any other model.
  ASSERT_OK(table.Add(std::make_shared<FakeModel>("a@1")));
  EXPECT_OK(table.Find("a"));
  EXPECT_THAT(table.Find("a@2"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a@2'")));
  // An expected model may also be removed instead of added.
  table.Expect({"c", "d"});
  table.Remove("c@1", /*wait=*/true);
  EXPECT_THAT(table.Find("c"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model 'c'")));
  EXPECT_THAT(table.Find("d"), StatusIs(absl::StatusCode::kUnavailable,
                                        HasSubstr("is being loaded")));
}

// A router that was away is told all names again, also of what it serves.
TEST_F(ModelTableTest, AnotherVersionOfAModelThatIsThereIsNotAwaited) {
  Add("a@2");
  ASSERT_OK(table_.Add(std::make_shared<FakeModel>("b@1"), /*standby=*/true));
  table_.Expect({"a", "b"});
  EXPECT_EQ(FindId("a"), "a@2");
  EXPECT_THAT(table_.Find("a@1"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a@1'")));
  // A standby is not what its name stands for.
  for (const char* name : {"b", "b@2"}) {
    EXPECT_THAT(table_.Find(name), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("is being loaded")));
  }
}

TEST_F(ModelTableTest, UnknownNamesAreToldWhatThereIs) {
  EXPECT_THAT(table_.Find(""),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no model")));
  Add("a@1");
  Add("b@7");
  EXPECT_THAT(table_.Find("c"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'c'"), HasSubstr("a@1, b@7"))));
  EXPECT_THAT(table_.Find("a@2"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a@2'")));
  EXPECT_THAT(table_.Find(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("a@1, b@7")));
}

TEST_F(ModelTableTest, ListsEveryVersionAndWhichIsCurrent) {
  EXPECT_THAT(ModelTable().List(), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("not been told yet")));
  Add("b@7");
  Add("a@2");
  Add("a@1");
  ASSERT_OK(table_.Add(std::make_shared<FakeModel>("a@3"), /*standby=*/true));
  ASSERT_OK(table_.Add(std::make_shared<FakeModel>("c@1"), /*standby=*/true));
  auto listed = table_.List();
  ASSERT_OK(listed);
  std::vector<std::string> ids;
  for (const auto& [model, current] : *listed) {
    ids.push_back(model->id() + (current ? " current" : ""));
  }
  EXPECT_THAT(ids,
              ElementsAre("a@1 current", "a@2", "a@3", "b@7 current", "c@1"));
  // Removal waits for who has the list.
  std::promise<void> released;
  auto removed = std::async(std::launch::async, [&] {
    table_.Remove("a@1", /*wait=*/true);
    return released.get_future().wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  });
  while (FindId("a@1") == "a@1") std::this_thread::yield();
  released.set_value();
  listed->clear();
  EXPECT_TRUE(removed.get());
}

TEST_F(ModelTableTest, RemovalWaitsForThoseWhoUseTheModel) {
  Add("a@1");
  auto held = table_.Find("a");
  ASSERT_OK(held);
  std::promise<void> released;
  std::future<bool> removed = std::async(std::launch::async, [&] {
    table_.Remove("a@1", /*wait=*/true);
    return released.get_future().wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  });
  // Waits until the model is no longer found.
  while (table_.Find("a").ok()) {
  }
  released.set_value();
  *held = nullptr;
  EXPECT_TRUE(removed.get());
}

TEST_F(ModelTableTest, ARemovalThatIsStoppedLeavesAStandby) {
  Add("a@1");
  ASSERT_OK_AND_ASSIGN(auto held, table_.Find("a"));
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    std::stop_source stop;
    if (before) stop.request_stop();
    std::future<bool> removed = std::async(std::launch::async, [&] {
      return table_.Remove("a@1", /*wait=*/true, stop.get_token());
    });
    if (!before) {
      while (table_.Find("a").ok()) {
      }
      stop.request_stop();
    }
    EXPECT_FALSE(removed.get());
    EXPECT_FALSE(table_.HasName("a@1"));
    EXPECT_EQ(FindId("a@1"), "a@1");
    // It may be wanted again.
    table_.MakeCurrent("a@1");
    EXPECT_EQ(FindId("a"), "a@1");
  }
  held = nullptr;
  EXPECT_TRUE(table_.Remove("a@1", /*wait=*/true));
  EXPECT_THAT(table_.Find(""),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no model")));
}

TEST_F(ModelTableTest, AModelEndsWithWhoRemovesIt) {
  auto model = std::make_shared<FakeModel>("a@1");
  ASSERT_OK(table_.Add(model));
  ASSERT_OK_AND_ASSIGN(auto held, table_.Find("a"));
  const std::weak_ptr<TranslationModel> watched = held;
  held = nullptr;
  table_.Remove("a@1", /*wait=*/true);
  EXPECT_EQ(model.use_count(), 1);
}

}  // namespace
}  // namespace gshard
