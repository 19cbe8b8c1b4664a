#include "tests/services/cuda/block_emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/random.h"
#include "services/cuda/kernels/block.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;

struct Copy {
  void* shared;
  const void* global;
  bool reads;
};

// A thread's arguments to a collective of its warp.
struct WarpCall {
  enum class Kind {
    kLoad,
    kLoadTransposed,
    kMultiplyAdd,
    kMultiplyAddInt8,
    kShuffle
  };
  Kind kind;
  const void* row = nullptr;
  uint32_t* loaded = nullptr;
  float* c = nullptr;
  int32_t* int_c = nullptr;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  uint32_t bits = 0;
  int lane = 0;
};

struct Fiber {
  enum class State { kReady, kAtSync, kAtWarp, kDone };
  State state = State::kReady;
  ucontext_t context;
  WarpCall call;
  std::vector<std::vector<Copy>> groups;  // committed, the oldest first
  std::vector<Copy> open;
};

struct Block {
  int64_t index = 0;
  int64_t blocks = 0;
  std::vector<Fiber> fibers;
  std::unique_ptr<std::byte[]> shared_memory;
  std::byte* shared = nullptr;
  int shared_bytes = 0;
  int current = 0;
  ucontext_t scheduler;
  const std::function<void()>* body = nullptr;
  uint64_t seed = 0;
  uint64_t draws = 0;

  uint64_t Below(uint64_t limit) { return RandomBelow(seed, draws++, limit); }
};

Block* block = nullptr;  // the running block

Fiber& Current() { return block->fibers[block->current]; }

// Suspends the thread until the scheduler makes it ready again.
void WaitAs(Fiber::State state) {
  Fiber& fiber = Current();
  fiber.state = state;
  CHECK(swapcontext(&fiber.context, &block->scheduler) == 0);
}

void RunFiber() {
  (*block->body)();
  Fiber& fiber = Current();
  // The kernel must wait for all of its asynchronous copies.
  for (const auto& group : fiber.groups) CHECK(group.empty());
  CHECK(fiber.open.empty());
  fiber.state = Fiber::State::kDone;
  CHECK(swapcontext(&fiber.context, &block->scheduler) == 0);
}

float Half(uint32_t pair, int i) {
  return ToFloat(BFloat16{static_cast<uint16_t>(pair >> (16 * i))});
}

// ldmatrix .x4: thread 8 i + j has the address of row j of matrix i.
void LoadOfWarp(Fiber* lanes, bool transposed) {
  uint16_t matrices[4][8][8];
  for (int i = 0; i < 4; ++i) {
    unsigned banks = 0;  // 16-byte banks that rows have taken
    for (int j = 0; j < 8; ++j) {
      const auto* const row =
          static_cast<const std::byte*>(lanes[8 * i + j].call.row);
      CHECK(row >= block->shared &&
            row + 16 <= block->shared + block->shared_bytes);
      CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0);
      const unsigned bank = 1u << (row - block->shared) / 16 % 8;
      CHECK((banks & bank) == 0);
      banks |= bank;
      std::memcpy(matrices[i][j], row, 16);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const int line = lane / 4, first = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const auto& m = matrices[i];
      const uint32_t low = transposed ? m[first][line] : m[line][first];
      const uint32_t high =
          transposed ? m[first + 1][line] : m[line][first + 1];
      lanes[lane].call.loaded[i] = low | high << 16;
    }
  }
}

// mma.m16n8k16: fragments as in the tables of the PTX ISA, of row-major a [16,
// 16], column-major b [16, 8] and c [16, 8].
void MultiplyAddOfWarp(Fiber* lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const WarpCall& call = lanes[lane].call;
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {  // a0 to a7
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      a[row][column] = Half(call.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i) {  // b0 to b3
      b[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] =
          Half(call.b[i / 2], i % 2);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    float* const c = lanes[lane].call.c;
    for (int i = 0; i < 4; ++i) {  // c0 to c3
      const int row = (lane >> 2) + (i < 2 ? 0 : 8);
      const int column = lane % 4 * 2 + (i & 1);
      float sum = c[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      c[i] = sum;
    }
  }
}

// mma.m16n8k32 of s8: fragments as in the tables of the PTX ISA.
void MultiplyAddInt8OfWarp(Fiber* lanes) {
  int8_t a[16][32], b[32][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const WarpCall& call = lanes[lane].call;
    const int group = lane >> 2, in_group = lane % 4;
    const auto byte = [](uint32_t four, int i) {
      return static_cast<int8_t>(four >> (8 * (i & 3)));
    };
    for (int i = 0; i < 16; ++i) {  // a0 to a15
      const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
      const int column = in_group * 4 + (i & 3) + (i >= 8 ? 16 : 0);
      a[row][column] = byte(call.a[i / 4], i);
    }
    for (int i = 0; i < 8; ++i) {  // b0 to b7
      b[in_group * 4 + (i & 3) + (i >= 4 ? 16 : 0)][group] =
          byte(call.b[i / 4], i);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) {  // c0 to c3
      const int row = (lane >> 2) + (i < 2 ? 0 : 8);
      const int column = lane % 4 * 2 + (i & 1);
      int32_t& c = lanes[lane].call.int_c[i];
      for (int k = 0; k < 32; ++k) c += a[row][k] * b[k][column];
    }
  }
}

// shfl.sync.idx: each lane gets the bits of the lane that it names.
void ShuffleOfWarp(Fiber* lanes) {
  for (int i = 0; i < kWarp; ++i) {
    const int from = lanes[i].call.lane;
    CHECK(from >= 0 && from < kWarp);
    *lanes[i].call.loaded = lanes[from].call.bits;
  }
}

// Performs the warp's collective if all lanes have reached it.
bool ReleaseWarp(Fiber* lanes) {
  for (int i = 0; i < kWarp; ++i) {
    if (lanes[i].state != Fiber::State::kAtWarp) return false;
    CHECK(lanes[i].call.kind == lanes[0].call.kind);
  }
  switch (lanes->call.kind) {
    case WarpCall::Kind::kMultiplyAdd:
      MultiplyAddOfWarp(lanes);
      break;
    case WarpCall::Kind::kMultiplyAddInt8:
      MultiplyAddInt8OfWarp(lanes);
      break;
    case WarpCall::Kind::kShuffle:
      ShuffleOfWarp(lanes);
      break;
    default:
      LoadOfWarp(lanes, lanes->call.kind == WarpCall::Kind::kLoadTransposed);
  }
  for (int i = 0; i < kWarp; ++i) lanes[i].state = Fiber::State::kReady;
  return true;
}

// Runs a warp, its lanes in random order, until it waits for other warps or is
// done. It may thus be ahead of them by all code between two barriers.
void RunWarp(int first) {
  Fiber* const lanes = &block->fibers[first];
  do {
    int order[kWarp];
    std::iota(order, order + kWarp, 0);
    for (int left = kWarp; left > 0; --left) {
      std::swap(order[block->Below(left)], order[left - 1]);
      if (lanes[order[left - 1]].state != Fiber::State::kReady) continue;
      block->current = first + order[left - 1];
      CHECK(swapcontext(&block->scheduler, &Current().context) == 0);
    }
  } while (ReleaseWarp(lanes));
}

void RunBlock() {
  while (true) {
    std::vector<int> warps;  // their first threads
    for (int i = 0; i < std::ssize(block->fibers); i += kWarp) {
      warps.push_back(i);
    }
    for (size_t left = warps.size(); left > 0; --left) {
      std::swap(warps[block->Below(left)], warps[left - 1]);
      RunWarp(warps[left - 1]);
    }
    // All threads are now done or at the barrier, for which a GPU does not
    // count those done. Other threads would wait forever.
    bool done = true;
    for (Fiber& fiber : block->fibers) {
      CHECK(fiber.state != Fiber::State::kAtWarp);
      if (fiber.state != Fiber::State::kAtSync) continue;
      fiber.state = Fiber::State::kReady;
      done = false;
    }
    if (done) return;
  }
}

// The stack of thread `i` of any block, since blocks run one at a time.
std::byte* StackOf(size_t i) {
  static std::vector<std::unique_ptr<std::byte[]>> stacks;
  while (stacks.size() <= i) {
    stacks.push_back(std::make_unique<std::byte[]>(kStackBytes));
  }
  return stacks[i].get();
}

// Not inlined, since a compiler assumes that getcontext() may return twice.
[[gnu::noinline]] void Begin(Fiber& fiber, std::byte* stack) {
  CHECK(getcontext(&fiber.context) == 0);
  fiber.context.uc_stack = {
      .ss_sp = stack, .ss_flags = 0, .ss_size = kStackBytes};
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, RunFiber, 0);
}

void Make(const Copy& copy) {
  std::memset(copy.shared, 0, 16);
  if (copy.reads) std::memcpy(copy.shared, copy.global, 16);
}

void CallWarp(WarpCall call) {
  Current().call = call;
  WaitAs(Fiber::State::kAtWarp);
}

}  // namespace

int ThreadIndex() { return block->current; }
int BlockThreads() { return static_cast<int>(block->fibers.size()); }
int64_t BlockIndex() { return block->index; }
int64_t NumBlocks() { return block->blocks; }
std::byte* SharedMemory() { return block->shared; }
void Sync() { WaitAs(Fiber::State::kAtSync); }

void CopyAsync(void* shared, const void* global, bool reads) {
  auto* const to = static_cast<std::byte*>(shared);
  CHECK(to >= block->shared && to + 16 <= block->shared + block->shared_bytes);
  CHECK(reinterpret_cast<uintptr_t>(shared) % 16 == 0);
  CHECK(reinterpret_cast<uintptr_t>(global) % 16 == 0);
  const Copy copy = {shared, global, reads};
  if (block->Below(2) == 0) return Make(copy);
  Current().open.push_back(copy);
}

void CommitCopies() {
  Fiber& fiber = Current();
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void WaitForCopiesBut(int pending) {
  auto& groups = Current().groups;
  while (std::ssize(groups) > pending) {
    for (const Copy& copy : groups.front()) Make(copy);
    groups.erase(groups.begin());
  }
}

void LoadMatrices(uint32_t (&r)[4], const void* row) {
  CallWarp({.kind = WarpCall::Kind::kLoad, .row = row, .loaded = r});
}

void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  CallWarp({.kind = WarpCall::Kind::kLoadTransposed, .row = row, .loaded = r});
}

void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4],
                 const uint32_t (&b)[2]) {
  CallWarp({.kind = WarpCall::Kind::kMultiplyAdd, .c = c, .a = a, .b = b});
}

void MultiplyAddInt8(int32_t (&c)[4], const uint32_t (&a)[4],
                     const uint32_t (&b)[2]) {
  CallWarp(
      {.kind = WarpCall::Kind::kMultiplyAddInt8, .int_c = c, .a = a, .b = b});
}

uint32_t Shuffle(uint32_t bits, int lane) {
  uint32_t got = 0;
  CallWarp({.kind = WarpCall::Kind::kShuffle,
            .loaded = &got,
            .bits = bits,
            .lane = lane});
  return got;
}

void RunBlocks(const Grid& grid, const std::function<void()>& body) {
  for (int64_t b = 0; b < grid.blocks; ++b) {
    CHECK(grid.threads % kWarp == 0);
    Block one;
    one.index = b;
    one.blocks = grid.blocks;
    one.body = &body;
    one.shared_bytes = grid.shared_bytes;
    one.shared_memory = std::make_unique<std::byte[]>(grid.shared_bytes + 16);
    void* aligned = one.shared_memory.get();
    size_t room = grid.shared_bytes + 16;
    one.shared = static_cast<std::byte*>(
        std::align(16, grid.shared_bytes, aligned, room));
    std::memset(one.shared, 0xff, grid.shared_bytes);
    one.fibers = std::vector<Fiber>(grid.threads);
    block = &one;
    for (int i = 0; i < grid.threads; ++i) Begin(one.fibers[i], StackOf(i));
    one.seed = FoldIn(grid.seed, b);
    RunBlock();
    block = nullptr;
  }
}

}  // namespace gshard::cuda
