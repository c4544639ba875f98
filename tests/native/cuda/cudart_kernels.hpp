// A part of cudart.cpp: launches, one fibre a thread, their barriers and shared memory, and the hooks of their accesses.
#pragma once
#include "cudart_memory.hpp"

/** A copy to shared memory that is under way, of a group. */
struct LateCopy { u8 *to; const u8 *from; int bytes; bool isThere; u32 group; };
/** `counter`: what the thread waits for to be another number than `seen`; null where it may run. */
struct Fibre {
  void *sp;
  char *stack;
  bool isDone;
  const u32 *counter;
  u32 seen;
  TwinThread self;
  u32 groups;
  std::deque<LateCopy> copies;
};
/** What a lane brings to an operation of its warp, and takes from it. */
struct Lane { u32 in[10]; const u8 *row; u32 out[4]; };
/** `epoch` counts meetings of all lanes, `order` those that order accesses to memory; lanes of `ended` have ended. */
struct Warp { u8 slots[2][32][16]; u32 arrived = 0, ended = 0, epoch = 0, order = 0; int doing = 0; bool isMixed = false; Lane lanes[32]; };
struct SharedCell { u32 writer, writerEpoch, writerWarpEpoch, reader, readerEpoch, readerWarpEpoch; bool several; u8 coming; };
struct Run {
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
  std::unordered_map<const void *, std::pair<u8 *, size_t>> places;
  std::vector<SharedCell> sharedCells;
  u8 *shared = nullptr;
  size_t sharedUsed = 0, dynamicBytes = 0;
  int count = 0, alive = 0, atBarrier = 0, barrierLine = 0, at = 0;
  u32 epoch = 0, blockNumber = 0;
  void *home = nullptr;
  void (*entry)(void *) = nullptr;
  void *args = nullptr;
  std::string name;
  std::vector<int> order;
};
// Stacks begin at other lines of a cache: a multiple of the page would put them all at the same.
static const size_t STACK = 65536 + 192, THREADS = 1024, SHARED_BYTES = 232448;
static Run run;
static Fibre *now;
static dim3 blockDimension, gridDimension;
API const dim3 *const twinBlockDim = &blockDimension;
API const dim3 *const twinGridDim = &gridDimension;
API const TwinThread *twinThread() { return &now->self; }

extern "C" void twinSwap(void **from, void *to);
asm(".globl twinSwap\n.hidden twinSwap\ntwinSwap:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

static void become(Fibre *f) {
  now = f;
  whoRuns = run.blockNumber << 10 | (u32)(f - run.fibres.data());
}
/** The thread after the one that runs that may go on; null where none may. */
static Fibre *next() {
  for (int i = 1, k = run.at; i <= run.count; i++) {
    if (++k >= run.count) k = 0;
    Fibre *f = &run.fibres[run.order[k]];
    if (!f->isDone && !(f->counter && *f->counter == f->seen)) return run.at = k, f;
  }
  return nullptr;
}
[[noreturn]] static void hang() {
  fprintf(stderr, "twin: '%s' hangs: threads wait for others that do not come (the last barrier is on line %d)\n", run.name.c_str(),
          run.barrierLine);
  abort();
}
/** Others run until a counter has another number. */
static void waitFor(const u32 &counter) {
  Fibre *from = now;
  from->counter = &counter;
  from->seen = counter;
  Fibre *to = next();
  if (!to) hang();
  become(to);
  twinSwap(&from->sp, to->sp);
  from->counter = nullptr;
}
static Warp &warpOf(int thread) { return run.warps[thread >> 5]; }
static void passBarrier() {
  run.atBarrier = 0;
  run.epoch++;
  epochOfBlock = run.epoch;
}
static void entryOfFibre() {
  run.entry(run.args);
  if (!now->copies.empty()) report("'" + run.name + "': a thread ends with copies to shared memory under way");
  now->isDone = true;
  int me = (int)(now - run.fibres.data());
  warpOf(me).ended |= 1u << (me & 31);
  run.alive--;
  if (run.atBarrier && run.atBarrier == run.alive) passBarrier();
  Fibre *from = now, *to = next();
  if (!to && run.alive) hang();
  if (to) become(to);
  twinSwap(&from->sp, to ? to->sp : run.home);
  abort();
}
API void twinBarrier(int line) {
  if (run.atBarrier && run.barrierLine != line)
    report("'" + run.name + "': threads of a block are at barriers of lines " + std::to_string(run.barrierLine) + " and " + std::to_string(line));
  run.barrierLine = line;
  if (++run.atBarrier == run.alive) passBarrier();
  else waitFor(run.epoch);
}
/** Lanes of a warp wait for each other; the last that comes calls `complete`. */
static void meet(unsigned mask, void (*complete)(Warp &)) {
  int me = (int)(now - run.fibres.data());
  Warp &w = warpOf(me);
  unsigned expected = mask;
  int size = run.count - (me & ~31);
  if (size < 32) expected &= (1u << size) - 1;
  if (expected & w.ended) {
    report("'" + run.name + "': a warp waits for a lane that has ended");
    expected &= ~w.ended;
  }
  w.arrived |= 1u << (me & 31);
  if ((w.arrived & expected) == expected) {
    w.arrived = 0;
    w.epoch++;
    if (complete && !w.isMixed) complete(w);
    w.isMixed = false;
  } else waitFor(w.epoch);
}
API void twinSyncWarp(unsigned mask) { meet(mask, [](Warp &w) { w.order++; }); }
API void twinShuffle(void *value, int bytes, int lane, unsigned mask) {
  int me = (int)(now - run.fibres.data());
  Warp &w = warpOf(me);
  // By turns: lanes that have not read yet do so before the next but one.
  auto &slots = w.slots[w.epoch & 1];
  memcpy(slots[me & 31], value, bytes);
  meet(mask, nullptr);
  memcpy(value, slots[lane], bytes);
}
static const char dynamicPlace = 0;
API void *sharedMemory(const void *place, size_t bytes) {
  auto &found = run.places[place];
  if (!found.first) {
    found = {run.shared + run.sharedUsed, bytes};
    memset(found.first, 0xff, bytes);
    run.sharedUsed += (bytes + 15) / 16 * 16;
    if (run.sharedUsed > SHARED_BYTES) {
      report("'" + run.name + "' takes more than " + std::to_string(SHARED_BYTES) + " bytes of shared memory");
      abort();
    }
  }
  return found.first;
}
static void touchShared(size_t at, size_t bytes, bool writes) {
  u32 me = (u32)(now - run.fibres.data());
  u32 warpEpoch = warpOf((int)me).order;
  auto apart = [&](u32 who, u32 epoch, u32 itsWarpEpoch) {
    if (who == me || epoch != run.epoch) return false;
    return (who >> 5) != (me >> 5) || itsWarpEpoch == warpEpoch;
  };
  for (size_t i = at / 4; i < (at + bytes + 3) / 4; i++) {
    SharedCell &c = run.sharedCells[i];
    if (c.coming == 1)
      report("'" + run.name + "': thread " + std::to_string(me) + " touches shared memory to which a copy is under way");
    bool hasWriter = c.writerEpoch != ~0u, hasReader = c.readerEpoch != ~0u;
    if ((hasWriter && apart(c.writer, c.writerEpoch, c.writerWarpEpoch)) ||
        (writes && hasReader && (apart(c.reader, c.readerEpoch, c.readerWarpEpoch) || (c.several && c.readerEpoch == run.epoch))))
      report("'" + run.name + "': threads " + std::to_string(hasWriter ? c.writer : c.reader) + " and " + std::to_string(me) +
             " touch the same shared memory, with no barrier between them");
    if (writes) c.writer = me, c.writerEpoch = run.epoch, c.writerWarpEpoch = warpEpoch;
    else {
      bool several = hasReader && c.readerEpoch == run.epoch && (c.several || (c.reader >> 5) != (me >> 5));
      c.reader = me, c.readerEpoch = run.epoch, c.readerWarpEpoch = warpEpoch, c.several = several;
    }
  }
}
static void runBlock() {
  run.alive = run.count;
  run.atBarrier = 0;
  run.epoch = 0;
  if (run.sharedUsed) memset((void *)run.sharedCells.data(), 0xff, run.sharedUsed / 4 * sizeof(SharedCell));
  run.places.clear();
  run.sharedUsed = 0;
  for (Warp &w : run.warps) w.arrived = 0, w.ended = 0, w.epoch = 0, w.order = 0, w.isMixed = false;
  epochOfBlock = 0;
  for (int i = 0; i < run.count; i++) {
    Fibre &f = run.fibres[i];
    f.isDone = false;
    f.counter = nullptr;
    f.groups = 0;
    f.copies.clear();
    void **s = (void **)(f.stack + STACK - 64);
    *--s = 0;
    *--s = (void *)entryOfFibre;
    for (int j = 0; j < 6; j++) *--s = 0;
    f.sp = s;
  }
  run.at = 0;
  become(&run.fibres[run.order[0]]);
  twinSwap(&run.home, now->sp);
}
static void launch(const std::string &name, void (*entry)(void *), void *args, dim3 grid, dim3 block, u64 dynamicBytes) {
  Twin &t = twin();
  run.name = name;
  run.entry = entry;
  run.args = args;
  run.dynamicBytes = dynamicBytes;
  run.count = (int)block.x;
  gridDimension = grid;
  blockDimension = block;
  if (!run.shared) {
    run.shared = (u8 *)aligned_alloc(128, SHARED_BYTES + 1024);
    run.sharedCells.resize(SHARED_BYTES / 4 + 256);
    memset((void *)run.sharedCells.data(), 0xff, run.sharedCells.size() * sizeof(SharedCell));
  }
  if (run.fibres.empty()) {
    run.fibres.resize(THREADS);
    char *stacks = (char *)mmap(0, THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < THREADS; i++) run.fibres[i].stack = stacks + i * STACK;
  }
  run.warps.resize(32);
  run.order.resize(block.x);
  u32 seed = 12345 + (u32)t.launches++;
  for (u32 i = 0; i < block.x; i++) run.order[i] = t.order == 1 ? block.x - 1 - i : i;
  if (t.order == 2)
    for (u32 i = block.x - 1; i > 0; i--) {
      seed = seed * 1664525 + 1013904223;
      std::swap(run.order[i], run.order[(seed >> 8) % (i + 1)]);
    }
  for (u32 i = 0; i < block.x; i++) run.fibres[i].self.thread = {i, 0, 0};
  u32 blocks = grid.x;
  for (u32 i = 0; i < blocks; i++) {
    u32 b = t.order == 1 ? blocks - 1 - i : i;
    run.blockNumber = b;
    for (u32 k = 0; k < block.x; k++) run.fibres[k].self.block = {b, 0, 0};
    runBlock();
  }
  now = nullptr;
}

static inline __attribute__((always_inline)) void access(void *p, int bytes, bool writes) {
  Twin &t = twin();
  if (!now) return;
  if ((u64)((u8 *)p - t.arena) < ARENA) return touch(p, bytes, writes);
  size_t at = (size_t)((u8 *)p - run.shared);
  if (at + bytes <= run.sharedUsed) touchShared(at, bytes, writes);
  else if (at < SHARED_BYTES)
    report("'" + run.name + "': thread " + std::to_string(now - run.fibres.data()) + " touches shared memory that the block does not have");
}
API void twinAtomic(void *p, int bytes) {
  if ((u64)((u8 *)p - twin().arena) < ARENA) touch(p, bytes, true, true);
}
#define HOOK(n) \
  API void __tsan_read##n(void *p) { access(p, n, false); } \
  API void __tsan_write##n(void *p) { access(p, n, true); } \
  API void __tsan_unaligned_read##n(void *p) { access(p, n, false); } \
  API void __tsan_unaligned_write##n(void *p) { access(p, n, true); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
API void __tsan_init() {}
API void __tsan_func_entry(void *) {}
API void __tsan_func_exit() {}
API void __tsan_read_range(void *p, long n) { access(p, (int)n, false); }
API void __tsan_write_range(void *p, long n) { access(p, (int)n, true); }
