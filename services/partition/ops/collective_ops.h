// The operators of partitioned programs: collectives, and the local ones that
// depend on which device they run on. services/partition/reshard.h and the
// lowerings write them; models do not.
//
// "axes" are names of mesh axes, "router" or "router,model"; n is the number
// of devices along them, attribute "parts". They run along the axes, on every
// device, in the program's order. Results with symbolic sizes have attributes
// "shape" (the whole result) or "rows" (the rows of a ragged result).
//
//   all_reduce(x)          axes, parts, reduction (collectives.h)
//   reduce_scatter(x)      axes, parts, dim, shape
//   all_gather(x)          axes, parts, dim, shape
//   all_to_all(x)          axes, parts, split_dim, concat_dim, shape
//   permute(x)             axes, parts, source [n]
//   shift(x)               axes, parts, by: what the device `by` places before
//                          has; zeros where there is none
//   ragged_all_to_all(rows, sizes)             axes, parts, rows
//       -> rows, sizes i32[ceil(E/n)], counts i32[n, ceil(E/n)]
//   ragged_all_to_all_back(rows, counts, sizes) axes, parts, rows
//   ragged_all_gather(rows, sizes)             axes, parts, rows
//       -> rows, sizes i32[E], counts i32[n, E]
//   rows_all_gather(rows)  axes, parts, rows: joined in order of the devices
//
// Without communication:
//   part(x)                axes, parts, dim, shape: this device's of n equal
//                          parts
//   rows_offset(x)         axes -> i64[]: elements of x * index of the device
//   add_offset(x, offset)  i32 + i64[]; attribute factor (1 or -1)
//   mask_padding(x)        axes, dim, size, value: elements of this device's
//                          part of `dim` at or beyond `size` in the whole
//                          become `value`
//   ragged_part(rows, sizes)  axes, parts, rows: rows of this device's block
//                          of ceil(E/n) experts
//   ragged_local_rows(rows, counts)  axes, parts, rows: the rows that came from
//                          this device
//   check_multiple(x)      dim, multiple: x, or an error
//
// Those that know which part of the whole they work on, and windowed_einsum, a
// collective, are in ops/part_ops.h.
//
// Between roles; they stand for what role_split.h makes a segment call of, and
// do not run:
//   send_rows(rows, sizes)    rows, axes -> rows, sizes of the experts there
//   return_rows(rows, sizes)  rows, sum_over: back to the tokens, the shares of
//                          the devices along sum_over added
//   send_whole(x)

#ifndef SERVICES_PARTITION_OPS_COLLECTIVE_OPS_H_
#define SERVICES_PARTITION_OPS_COLLECTIVE_OPS_H_

#include "absl/strings/string_view.h"

namespace gshard {

// Registers them; further calls have no effect.
void RegisterCollectiveOps();

// Whether the operator moves data between devices.
bool IsCollective(absl::string_view op);

// Whether it moves data between roles.
bool IsCrossing(absl::string_view op);

}  // namespace gshard

#endif  // SERVICES_PARTITION_OPS_COLLECTIVE_OPS_H_
