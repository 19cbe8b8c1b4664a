#include "services/sharding/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DeviceMesh TwoByThree() {
  return *DeviceMesh::Create({{"row", 2, "device"}, {"column", 3, "device"}});
}

TEST(DeviceMeshTest, NumbersDevicesWithTheLastAxisFastest) {
  const DeviceMesh mesh = TwoByThree();
  EXPECT_EQ(mesh.NumDevices(), 6);
  for (int64_t device = 0; device < 6; ++device) {
    EXPECT_EQ(mesh.Index(device, {0}), device / 3);
    EXPECT_EQ(mesh.Index(device, {1}), device % 3);
    EXPECT_EQ(mesh.Index(device, {0, 1}), device);
    EXPECT_EQ(mesh.Index(device, {1, 0}), device % 3 * 2 + device / 3);
    EXPECT_EQ(mesh.Index(device, {}), 0);
  }
}

TEST(DeviceMeshTest, GroupsDifferAlongTheirAxesOnly) {
  const DeviceMesh mesh = TwoByThree();
  EXPECT_THAT(mesh.Group(4, {0}), ElementsAre(1, 4));
  EXPECT_THAT(mesh.Group(4, {1}), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.Group(4, {}), ElementsAre(4));
  // In the order of Index, which differs from that of the devices.
  EXPECT_THAT(mesh.Group(4, {1, 0}), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(DeviceMeshTest, RolesAreNumberedApart) {
  const DeviceMesh mesh = *DeviceMesh::Create(
      {{"router", 4, "router"}, {"expert", kElastic, "worker", "Elocal"}});
  EXPECT_THAT(mesh.roles(), ElementsAre("router", "worker"));
  EXPECT_EQ(mesh.RoleOf(1), 1);
  EXPECT_THAT(mesh.AxesOfRole(1), ElementsAre(1));
  EXPECT_EQ(mesh.NumDevices(0), 4);
  EXPECT_TRUE(mesh.IsElastic({1}));
  EXPECT_EQ(mesh.Parts({1}), kElastic);
  EXPECT_EQ(mesh.Parts({}), 1);
}

TEST(DeviceMeshTest, FindsAxesByName) {
  const DeviceMesh mesh = TwoByThree();
  ASSERT_OK_AND_ASSIGN(const Axes axes, mesh.FindAll("column,row"));
  EXPECT_THAT(axes, ElementsAre(1, 0));
  EXPECT_EQ(mesh.Names(axes), "column,row");
  EXPECT_THAT(mesh.Find("expert"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("column")));
}

TEST(DeviceMeshTest, RejectsMeshesThatAreNone) {
  const std::vector<std::vector<MeshAxis>> wrong = {
      {},
      {{"", 2, ""}},
      {{"a b", 2, ""}},
      {{"a", 2, ""}, {"a", 2, ""}},
      {{"a", -1, ""}},
      {{"a", kElastic, ""}},
      {{"a", 1 << 20, ""}, {"b", 2, ""}},
  };
  for (const std::vector<MeshAxis>& axes : wrong) {
    EXPECT_THAT(DeviceMesh::Create(axes).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  }
}

}  // namespace
}  // namespace gshard
