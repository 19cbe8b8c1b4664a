// Manual regions: a part of a program written for one device of many, entered
// and left explicitly (GShard, arXiv 2006.16668, section A.3).
//
//   Sharding by_group = ...;                        // [G, S, M] along "d"
//   ValueId local = EnterManual(b, x, by_group, mesh);   // [G/n, S, M]
//   ... operators on what this device has ...
//   ValueId y = LeaveManual(b, local, {G, S, M}, by_group, mesh);
//
// Values inside have the shape of one device's part, padding included, and
// nothing is exchanged for them. What a region reads must enter it, whole
// tensors too, with a sharding that splits nothing; constants need not. A
// value that leaves must be the same on all devices along the axes that its
// sharding does not use. Gradients go through both ways.
//
// A program with manual regions is one for its mesh. It can be run without
// being partitioned only if the mesh has one device.

#ifndef SERVICES_SHARDING_MANUAL_H_
#define SERVICES_SHARDING_MANUAL_H_

#include "services/graph/builder.h"
#include "services/sharding/device_mesh.h"
#include "services/sharding/sharding.h"

namespace gshard {

// x as each device has it: LocalShape of its shape.
//
// Errors, of the builder: InvalidArgument for a sharding of another rank.
ValueId EnterManual(Builder& builder, ValueId x, const Sharding& sharding,
                    const DeviceMesh& mesh);

// The tensor of shape `shape` whose parts the devices' x are.
//
// Errors, of the builder: InvalidArgument unless x has LocalShape of `shape`.
ValueId LeaveManual(Builder& builder, ValueId x, const Shape& shape,
                    const Sharding& sharding, const DeviceMesh& mesh);

// Adds both operators to the registry; adding them again does nothing.
void RegisterManualOps();

}  // namespace gshard

#endif  // SERVICES_SHARDING_MANUAL_H_
