// Manual regions: a part of a program written per device, entered and left
// explicitly (GShard, arXiv 2006.16668, section A.3).
//
//   Sharding by_group = ...;                        // [G, S, M] along "d"
//   ValueId local = EnterManual(b, x, by_group, mesh);   // [G/n, S, M]
//   ... operators on what this device has ...
//   ValueId y = LeaveManual(b, local, {G, S, M}, by_group, mesh);
//
// Values inside have the shape of one device's part, padding included, and are
// never communicated. All values that a region reads must enter it, whole
// tensors with a sharding that splits nothing; except constants. A value that
// leaves must be the same on all devices along the axes that its sharding does
// not use. Gradients pass both ways.
//
// A program with manual regions is specific to its mesh. It runs without being
// partitioned only if the mesh has one device.

#ifndef SERVICES_SHARDING_MANUAL_H_
#define SERVICES_SHARDING_MANUAL_H_

#include "services/graph/builder.h"
#include "services/sharding/device_mesh.h"
#include "services/sharding/sharding.h"

namespace gshard {

// x as each device has it, with LocalShape of its shape.
//
// Errors, via the builder: InvalidArgument for a sharding of another rank.
ValueId EnterManual(Builder& builder, ValueId x, const Sharding& sharding,
                    const DeviceMesh& mesh);

// The tensor of shape `shape` whose parts are the devices' x.
//
// Errors, via the builder: InvalidArgument unless x has LocalShape of `shape`.
ValueId LeaveManual(Builder& builder, ValueId x, const Shape& shape,
                    const Sharding& sharding, const DeviceMesh& mesh);

// Registers both operators; further calls have no effect.
void RegisterManualOps();

}  // namespace gshard

#endif  // SERVICES_SHARDING_MANUAL_H_
