// Sharding: how a tensor of a program is laid out on the devices of a role.
//
// A dimension of size N that is split along axes with n parts in total has
// parts of ceil(N / n), part i on the devices with index i along these axes;
// the last parts may be short, followed by arbitrary data (GShard, arXiv
// 2006.16668, section 3.3.3). Axes that split no dimension hold copies. Sizes
// that are symbols must divide evenly when the program runs.
//
// Rows of a ragged batch, sorted by expert and then by token, can be split in
// two ways: by expert (`axes`: a device holds the rows of its experts) and by
// token (`token_axes`: a device holds its tokens' rows).

#ifndef SERVICES_SHARDING_SHARDING_H_
#define SERVICES_SHARDING_SHARDING_H_

#include <string>
#include <vector>

#include "services/graph/dim.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

struct DimSharding {
  Axes axes;
  Axes token_axes;  // ragged rows only

  bool empty() const { return axes.empty() && token_axes.empty(); }
  bool operator==(const DimSharding& other) const = default;
};

struct Sharding {
  std::vector<DimSharding> dims;
  // The value is the sum over the devices along these axes.
  Axes partial;

  static Sharding Replicated(size_t rank) {
    return {.dims = std::vector<DimSharding>(rank), .partial = {}};
  }

  // Neither split nor partial.
  bool IsReplicated() const;
  // Whether an axis splits a dimension or is partial.
  bool Uses(int axis) const;
  // All axes for which Uses() is true.
  Axes UsedAxes() const;
  bool operator==(const Sharding& other) const = default;

  // "[router, -, model]", with " partial router" and "rows by token" noted:
  // "[expert|router]" is by expert along expert and by token along router.
  std::string ToString(const DeviceMesh& mesh) const;
};

// ceil(dim / parts). A symbolic size becomes another symbol, with its first
// factor split: "B_by_router * L". Unchanged for one part.
Dim LocalDim(const Dim& dim, const DimSharding& sharding,
             const DeviceMesh& mesh);
Shape LocalShape(const Shape& shape, const Sharding& sharding,
                 const DeviceMesh& mesh);

// Whether parts of `dim` along the axes may be short: a static size that is not
// divisible by the number of parts.
bool IsUneven(const Dim& dim, const Axes& axes, const DeviceMesh& mesh);

}  // namespace gshard

#endif  // SERVICES_SHARDING_SHARDING_H_
