// A test double of the CUDA runtime: the C ABI of the functions that the library binds, on host memory. It proves nothing
// about a GPU's instructions; it shows what a kernel's indexing and the ordering of streams are.
//
// Streams: work is kept back until the host waits for it, and then runs in the order of events only, as late as it can be.
// Each operation has a vector clock (what it comes after, a count a stream), and each 4 bytes of device memory remember who
// wrote and who read them last. Reported: accesses that no path of events orders, within a launch those of threads that no
// barrier orders, memory used after it was freed, freed while in use, or outside of any block, and a wait for an event that
// was never recorded. Reports are kept for the test: twinReport(). Work may also say that it cannot end yet, as a collective does
// whose other ranks have not come: then its stream stays there, and whoever waits tries again.
//
// Kernels: one fibre a thread. g++ -fsanitize=thread makes each access call the hooks defined here.
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>
#include "twin.h"
#include "twin.hpp"

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
#define API extern "C" __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, MEMORY_ALLOCATION = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILURE = 719 };

static const u64 ARENA = 1ull << 31;
static const int STREAMS = 5; // the host and four streams
struct Clock { u32 of[STREAMS]; };
struct Operation { int stream; u32 index; Clock clock; std::string name; };
struct Event { bool recorded = false; Clock clock{}; int stream = 0; u32 index = 0; };
struct Item { u32 index; u32 operation; std::function<bool()> run; int waitStream; u32 waitIndex; };
struct Stream { int number; Clock clock{}; std::deque<Item> queue; u32 done = 0; };
struct Block { u64 begin, bytes, room; u32 birth, death; bool isFreed; u32 lastUse[STREAMS]; };
// For 4 bytes of device memory: the last writer, and the last reader of each stream; which bytes, and by which thread.
struct Cell {
  u32 writer, writerThread, writerEpoch, readers[STREAMS - 1], readerThread, readerEpoch;
  u8 writerMask, readerMask, severalReaders, writerIsAtomic; // readers: 1 several threads since a barrier, 2 several blocks
};

struct Twin {
  std::recursive_mutex lock;
  u8 *arena;
  Cell *cells;
  u64 top = 256;
  std::vector<Operation> operations{Operation{}}; // number 0 is nobody
  std::map<u64, Block> blocks;                    // by begin
  std::multimap<u64, u64> idle;                   // room -> begin
  Stream streams[STREAMS];
  int numStreams = 1;
  u32 current = 0; // operation that runs
  Block *recent = nullptr;
  std::vector<std::string> reports;
  size_t told = 0; // operations
  u64 launches = 0;
  int order = 0;
  Twin() {
    arena = (u8 *)mmap(0, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cells = (Cell *)mmap(0, ARENA / 4 * sizeof(Cell), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < STREAMS; i++) streams[i].number = i;
  }
};
static Twin &twin() {
  static Twin *the = new Twin;
  return *the;
}
#define LOCK Twin &t = twin(); std::lock_guard<std::recursive_mutex> guard(t.lock)

static void report(const std::string &what) {
  Twin &t = twin();
  if (t.reports.size() < 20) t.reports.push_back(what);
}

// ---- Order ----

static bool isBefore(u32 earlier, u32 later) {
  Twin &t = twin();
  const Operation &a = t.operations[earlier], &b = t.operations[later];
  return a.stream == 0 || b.clock.of[a.stream] >= a.index;
}
static std::string nameOf(u32 operation) {
  const Operation &o = twin().operations[operation];
  static const char *roles[] = {"the host", "stream 1", "stream 2", "stream 3", "stream 4"};
  return "'" + o.name + "' on " + roles[o.stream];
}
static u32 newOperation(Stream &s, const std::string &name) {
  Twin &t = twin();
  s.clock.of[s.number]++;
  t.operations.push_back({s.number, s.clock.of[s.number], s.clock, name});
  return (u32)t.operations.size() - 1;
}
static void enqueueUnending(Stream &s, const std::string &name, std::function<bool()> run) {
  u32 operation = newOperation(s, name);
  s.queue.push_back({s.clock.of[s.number], operation, run, -1, 0});
}
static void enqueue(Stream &s, const std::string &name, std::function<void()> run) {
  enqueueUnending(s, name, [=] { return run(), true; });
}
/** Runs what a stream has enqueued up to an index, and before it what that waits for; returns whether it came so far. */
static bool runUntil(int number, u32 index) {
  Twin &t = twin();
  Stream &s = t.streams[number];
  while (!s.queue.empty() && s.queue.front().index <= index) {
    Item &item = s.queue.front();
    if (item.waitStream >= 0) {
      if (!runUntil(item.waitStream, item.waitIndex)) return false;
    } else {
      t.current = item.operation;
      t.recent = nullptr;
      bool hasEnded = item.run();
      t.current = 0;
      if (!hasEnded) return false;
    }
    s.done = item.index;
    s.queue.pop_front();
  }
  return true;
}
/** The same, as long as it takes: others use the card meanwhile. */
static void runAll(int number, u32 index) {
  while (!runUntil(number, index)) {
    twin().lock.unlock();
    usleep(100);
    twin().lock.lock();
  }
}
static void hostWaits(const Clock &clock) {
  Twin &t = twin();
  for (int i = 0; i < STREAMS; i++)
    if (clock.of[i] > t.streams[0].clock.of[i]) t.streams[0].clock.of[i] = clock.of[i];
  // What is enqueued from now on comes after what the host has seen.
  for (int s = 1; s < t.numStreams; s++)
    for (int i = 0; i < STREAMS; i++)
      if (t.streams[0].clock.of[i] > t.streams[s].clock.of[i]) t.streams[s].clock.of[i] = t.streams[0].clock.of[i];
}
static void synchronize(Stream &s) {
  runAll(s.number, s.clock.of[s.number]);
  hostWaits(s.clock);
}

// ---- Memory ----

static Block *blockAt(u64 at) {
  Twin &t = twin();
  if (t.recent && at >= t.recent->begin && at < t.recent->begin + t.recent->bytes) return t.recent;
  auto it = t.blocks.upper_bound(at);
  if (it == t.blocks.begin()) return nullptr;
  Block &b = (--it)->second;
  return at < b.begin + b.bytes ? t.recent = &b : nullptr;
}

// Within a launch: who the thread is, and the barriers that it has passed.
static u32 whoRuns, epochOfBlock;

static void touchCell(u64 at, u8 mask, bool writes, bool isAtomic, Block &b, u32 me) {
  Twin &t = twin();
  Cell &c = t.cells[at >> 2];
  auto place = [&] { return "byte " + std::to_string(at - b.begin) + " of a block of " + std::to_string(b.bytes); };
  auto race = [&](u32 other, const char *otherVerb) {
    report(nameOf(me) + (writes ? " writes " : " reads ") + place() + ", which " + nameOf(other) + " " + otherVerb +
           ", with no event between them");
  };
  auto raceInside = [&](const char *otherVerb) {
    report(nameOf(me) + ": a thread " + (writes ? "writes " : "reads ") + place() + ", which another one " + otherVerb +
           ", with no barrier between them");
  };
  // A thread of another block is never ordered; one of the same block is by a barrier.
  auto isApart = [&](u32 who, u32 epoch) {
    return who != whoRuns && ((who >> 10) != (whoRuns >> 10) || epoch == epochOfBlock);
  };
  u32 writer = c.writer > b.birth ? c.writer : 0;
  if (writer == me) {
    bool bothAtomic = isAtomic && c.writerIsAtomic;
    if ((c.writerMask & mask) && !bothAtomic && isApart(c.writerThread, c.writerEpoch)) raceInside("writes");
  } else if (writer && !isBefore(writer, me)) race(writer, "writes");
  int stream = t.operations[me].stream ? t.operations[me].stream - 1 : 0;
  if (writes) {
    for (u32 reader : c.readers) {
      if (reader <= b.birth) continue;
      if (reader != me) {
        if (!isBefore(reader, me)) race(reader, "reads");
      } else if (c.readerMask & mask) {
        bool byOthers = c.severalReaders == 2 || (c.severalReaders == 1 && c.readerEpoch == epochOfBlock);
        if (byOthers || isApart(c.readerThread, c.readerEpoch)) raceInside("reads");
      }
    }
    c.writer = me;
    c.writerThread = whoRuns;
    c.writerEpoch = epochOfBlock;
    c.writerMask = mask;
    c.writerIsAtomic = isAtomic;
  } else {
    bool isAnother = c.readers[stream] == me && (c.readerMask & mask) && c.readerThread != whoRuns;
    bool isSame = c.readers[stream] == me && (c.readerMask & mask) && c.readerThread == whoRuns;
    if (isAnother) c.severalReaders = (c.readerThread >> 10) != (whoRuns >> 10) || c.severalReaders == 2 ? 2 : c.readerEpoch == epochOfBlock;
    else if (!isSame || (c.severalReaders == 1 && c.readerEpoch != epochOfBlock)) c.severalReaders = 0;
    c.readers[stream] = me;
    c.readerThread = whoRuns;
    c.readerEpoch = epochOfBlock;
    c.readerMask = mask;
  }
}

static void touch(const void *p, u64 bytes, bool writes, bool isAtomic = false) {
  Twin &t = twin();
  u64 at = (u64)((const u8 *)p - t.arena);
  if (at >= ARENA || bytes == 0) return;
  u32 me = t.current;
  Block *b = blockAt(at);
  if (!b || at + bytes > b->begin + b->bytes) {
    report(nameOf(me) + (writes ? " writes " : " reads ") + std::to_string(bytes) + " bytes outside of any block");
    return;
  }
  u32 stream = t.operations[me].stream;
  if (b->birth > me || !isBefore(b->birth, me))
    report(nameOf(me) + " uses a block of " + std::to_string(b->bytes) + " bytes before it was given out there");
  if (b->death && !isBefore(me, b->death))
    report(nameOf(me) + (me > b->death ? " uses a block after it was freed: " : " may use a block while it is freed: ") +
           std::to_string(b->bytes) + " bytes");
  if (t.operations[me].index > b->lastUse[stream]) b->lastUse[stream] = t.operations[me].index;
  for (u64 i = at & ~3ull; i < at + bytes; i += 4) {
    u8 mask = 15;
    if (i < at) mask &= (u8)(15 << (at - i));
    if (i + 4 > at + bytes) mask &= (u8)(15 >> (i + 4 - at - bytes));
    touchCell(i, mask, writes, isAtomic, *b, me);
  }
}
API void twinTouch(const void *p, u64 bytes, bool writes) {
  whoRuns = 0;
  epochOfBlock = 0;
  touch(p, bytes, writes);
}
API void twinEnqueue(void *stream, const char *name, const std::function<void()> *run) {
  LOCK;
  enqueue(*(Stream *)stream, name, *run);
}
API void twinLock() { twin().lock.lock(); }
API void twinUnlock() { twin().lock.unlock(); }
API TwinPlace twinEnqueueUnending(void *stream, const char *name, const std::function<bool()> *run) {
  LOCK;
  Stream &s = *(Stream *)stream;
  enqueueUnending(s, name, *run);
  return {s.number, s.clock.of[s.number]};
}
API void twinRunAfter(void *stream, TwinPlace place) {
  LOCK;
  Stream &s = *(Stream *)stream;
  if (s.number == place.stream) return;
  s.clock.of[s.number]++;
  s.queue.push_back({s.clock.of[s.number], 0, nullptr, place.stream, place.index});
}
API void twinRun(TwinPlace place) {
  LOCK;
  runUntil(place.stream, place.index);
}

/** Room for a block: of one that was freed, if that has come to pass, or else new. */
static u64 roomFor(u64 room) {
  Twin &t = twin();
  auto it = t.idle.find(room);
  if (it != t.idle.end()) {
    u64 begin = it->second;
    t.idle.erase(it);
    return begin;
  }
  u64 begin = t.top;
  if (begin + room > ARENA) return 0;
  t.top += room;
  return begin;
}
static int allocate(void **p, u64 bytes, Stream &s) {
  Twin &t = twin();
  if (bytes == 0) return INVALID_VALUE;
  u64 room = (bytes + 511) / 256 * 256; // at least a byte that is nobody's
  u64 begin = roomFor(room);
  if (!begin) {
    for (int i = 1; i < t.numStreams; i++) runUntil(i, ~0u);
    begin = roomFor(room);
  }
  if (!begin) return MEMORY_ALLOCATION;
  t.recent = nullptr;
  auto fill = [begin, bytes] { memset(twin().arena + begin, 0xff, bytes); };
  u32 birth = s.number ? (enqueue(s, "allocation", fill), (u32)t.operations.size() - 1) : newOperation(s, "allocation");
  if (!s.number) fill();
  t.blocks[begin] = Block{begin, bytes, room, birth, 0, false, {}};
  *p = t.arena + begin;
  return OK;
}
static int release(void *p, Stream &s) {
  Twin &t = twin();
  u64 begin = (u64)((u8 *)p - t.arena);
  auto it = t.blocks.find(begin);
  if (begin >= ARENA || it == t.blocks.end() || it->second.death) {
    report("memory is freed that is not allocated, or freed already");
    return INVALID_VALUE;
  }
  Block &b = it->second;
  auto finish = [begin] {
    Twin &t = twin();
    auto it = t.blocks.find(begin);
    memset(t.arena + begin, 0xff, it->second.bytes);
    t.idle.emplace(it->second.room, begin);
    t.blocks.erase(it);
    t.recent = nullptr;
  };
  if (s.number) enqueue(s, "free", finish);
  else newOperation(s, "free");
  b.death = (u32)t.operations.size() - 1;
  const Clock &clock = t.operations[b.death].clock;
  for (int i = 1; i < STREAMS; i++)
    if (b.lastUse[i] > clock.of[i]) report("a block of " + std::to_string(b.bytes) + " bytes is freed while stream " + std::to_string(i) + " may use it");
  if (!s.number) finish();
  return OK;
}

// ---- Kernels ----

struct Fibre { void *sp; char *stack; bool isDone; TwinThread self; u32 warpEpoch; };
struct Warp { u8 slots[32][16]; u32 arrived = 0, epoch = 0; };
struct SharedCell { u32 writer, writerEpoch, writerWarpEpoch, reader, readerEpoch, readerWarpEpoch; bool several; };
struct Run {
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
  std::unordered_map<const void *, std::pair<u8 *, size_t>> places;
  std::vector<SharedCell> sharedCells;
  u8 *shared = nullptr;
  size_t sharedUsed = 0;
  int count = 0, alive = 0, atBarrier = 0, barrierLine = 0, at = 0;
  u32 epoch = 0, blockNumber = 0;
  u64 idleTurns = 0;
  void *home = nullptr;
  void (*entry)(void *) = nullptr;
  void *args = nullptr;
  std::string name;
  std::vector<int> order;
};
static const size_t STACK = 65536, SHARED_BYTES = 232448;
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
static Fibre *next() {
  for (int i = 1; i <= run.count; i++) {
    int k = (run.at + i) % run.count;
    Fibre *f = &run.fibres[run.order[k]];
    if (!f->isDone) return run.at = k, f;
  }
  return nullptr;
}
static void yield() {
  Fibre *from = now, *to = next();
  if (++run.idleTurns > 4000000) {
    report("'" + run.name + "' hangs: threads wait for others that do not come (the last barrier is on line " + std::to_string(run.barrierLine) + ")");
    fprintf(stderr, "twin: '%s' hangs\n", run.name.c_str());
    abort();
  }
  if (from == to) return;
  become(to);
  twinSwap(&from->sp, to->sp);
}
static void passBarrier() {
  run.atBarrier = 0;
  run.epoch++;
  epochOfBlock = run.epoch;
  run.idleTurns = 0;
}
static void entryOfFibre() {
  run.entry(run.args);
  now->isDone = true;
  run.alive--;
  if (run.atBarrier && run.atBarrier == run.alive) passBarrier();
  Fibre *from = now, *to = next();
  if (to) become(to);
  twinSwap(&from->sp, to ? to->sp : run.home);
  abort();
}
API void twinBarrier(int line) {
  u32 epoch = run.epoch;
  if (run.atBarrier && run.barrierLine != line)
    report("'" + run.name + "': threads of a block are at barriers of lines " + std::to_string(run.barrierLine) + " and " + std::to_string(line));
  run.barrierLine = line;
  if (++run.atBarrier == run.alive) passBarrier();
  else while (run.epoch == epoch) yield();
}
static Warp &warpOf(int thread) { return run.warps[thread >> 5]; }
API void twinSyncWarp(unsigned mask) {
  int me = (int)(now - run.fibres.data());
  Warp &w = warpOf(me);
  u32 epoch = w.epoch;
  unsigned expected = mask;
  int size = run.count - (me & ~31);
  if (size < 32) expected &= (1u << size) - 1;
  for (int lane = 0; lane < 32; lane++)
    if ((expected >> lane & 1) && run.fibres[(me & ~31) + lane].isDone) {
      report("'" + run.name + "': a warp waits for a lane that has ended");
      expected &= ~(1u << lane);
    }
  w.arrived |= 1u << (me & 31);
  if ((w.arrived & expected) == expected) {
    w.arrived = 0;
    w.epoch++;
    run.idleTurns = 0;
  } else while (w.epoch == epoch) yield();
}
API void twinShuffle(void *value, int bytes, int lane, unsigned mask) {
  int me = (int)(now - run.fibres.data());
  Warp &w = warpOf(me);
  memcpy(w.slots[me & 31], value, bytes);
  twinSyncWarp(mask);
  memcpy(value, w.slots[lane], bytes);
  twinSyncWarp(mask);
}
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
  u32 warpEpoch = warpOf((int)me).epoch;
  auto apart = [&](u32 who, u32 epoch, u32 itsWarpEpoch) {
    if (who == me || epoch != run.epoch) return false;
    return (who >> 5) != (me >> 5) || itsWarpEpoch == warpEpoch;
  };
  for (size_t i = at / 4; i < (at + bytes + 3) / 4; i++) {
    SharedCell &c = run.sharedCells[i];
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
  run.idleTurns = 0;
  if (run.sharedUsed) memset((void *)run.sharedCells.data(), 0xff, run.sharedUsed / 4 * sizeof(SharedCell));
  run.places.clear();
  run.sharedUsed = 0;
  for (Warp &w : run.warps) w.arrived = 0, w.epoch = 0;
  epochOfBlock = 0;
  for (int i = 0; i < run.count; i++) {
    Fibre &f = run.fibres[i];
    f.isDone = false;
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
static void launch(const std::string &name, void (*entry)(void *), void *args, dim3 grid, dim3 block) {
  Twin &t = twin();
  run.name = name;
  run.entry = entry;
  run.args = args;
  run.count = (int)block.x;
  gridDimension = grid;
  blockDimension = block;
  if (!run.shared) {
    run.shared = (u8 *)aligned_alloc(128, SHARED_BYTES + 1024);
    run.sharedCells.resize(SHARED_BYTES / 4 + 256);
    memset((void *)run.sharedCells.data(), 0xff, run.sharedCells.size() * sizeof(SharedCell));
  }
  while ((int)run.fibres.size() < 1024) {
    Fibre f{};
    f.stack = (char *)mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    run.fibres.push_back(f);
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

static inline void access(void *p, int bytes, bool writes) {
  Twin &t = twin();
  if (!now) return;
  if ((u64)((u8 *)p - t.arena) < ARENA) return touch(p, bytes, writes);
  size_t at = (size_t)((u8 *)p - run.shared);
  if (at < run.sharedUsed) touchShared(at, bytes, writes);
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

// ---- What tests ask ----

/** The reports so far, a line each, which are forgotten then; of up to `room` bytes. All that was enqueued runs before. */
API int twinReport(char *text, u64 room) {
  LOCK;
  for (int i = 1; i < t.numStreams; i++) runAll(i, t.streams[i].clock.of[i]);
  std::string all;
  for (const std::string &line : t.reports) all += line + "\n";
  t.reports.clear();
  snprintf(text, room, "%s", all.c_str());
  return (int)all.size();
}
/**
 * What was enqueued since the last call, a line each: its stream, its number there, the numbers in streams 1, 2, … that it comes
 * after, its name.
 */
API int twinLog(char *text, u64 room) {
  LOCK;
  std::string all;
  for (size_t i = t.told; i < t.operations.size(); i++) {
    const Operation &o = t.operations[i];
    all += std::to_string(o.stream) + " " + std::to_string(o.index);
    for (int s = 1; s < STREAMS; s++) all += " " + std::to_string(o.clock.of[s]);
    all += " " + o.name + "\n";
  }
  t.told = t.operations.size();
  snprintf(text, room, "%s", all.c_str());
  return (int)all.size();
}
/** The order of threads and blocks: 0 ascending, 1 descending, 2 random. */
API int twinSetOrder(int order) {
  LOCK;
  t.order = order;
  return OK;
}
static int missing = 0;
/** What is not there: 0 nothing, 1 the driver, 2 a new driver, 3 the card. */
API int twinSetMissing(int what) { return missing = what, OK; }

// ---- The CUDA runtime ----

API const char *cudaGetErrorName(int status) {
  switch (status) {
    case OK: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case MEMORY_ALLOCATION: return "cudaErrorMemoryAllocation";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_IMAGE: return "cudaErrorInvalidKernelImage";
    case NOT_FOUND: return "cudaErrorSymbolNotFound";
    case NOT_READY: return "cudaErrorNotReady";
    default: return "cudaErrorUnknown";
  }
}
API const char *cudaGetErrorString(int) { return "said the test double"; }
API int cudaGetLastError() { return OK; }
API int cudaRuntimeGetVersion(int *v) { return *v = 13000, OK; }
API int cudaDriverGetVersion(int *v) { return *v = missing == 1 ? 0 : missing == 2 ? 12040 : 13000, OK; }
static int card = 0;
/** Cards that seem to be there; a process uses one of them. */
static int cards() {
  const char *number = getenv("TWIN_CARDS");
  return number ? atoi(number) : 1;
}
API int cudaGetDeviceCount(int *n) { return *n = cards(), missing == 3 ? NO_DEVICE : OK; }
API int cudaGetDevice(int *d) { return *d = card, OK; }
API int cudaSetDevice(int d) { return d >= 0 && d < cards() ? (card = d, OK) : INVALID_DEVICE; }
API int cudaDeviceGetAttribute(int *value, int which, int) {
  switch (which) {
    case 1: *value = 1024; break;       // threads a block
    case 16: *value = 4; break;         // multiprocessors
    case 75: *value = 9; break;         // compute capability
    case 76: *value = 0; break;
    case 97: *value = (int)SHARED_BYTES; break;
    case 115: *value = 1; break;        // memory pools
    default: return INVALID_VALUE;
  }
  return OK;
}
API int cudaDeviceGetPCIBusId(char *text, int room, int d) { return snprintf(text, room, "twin:%d", d), OK; }
API int cudaDeviceSynchronize() {
  LOCK;
  for (int i = 1; i < t.numStreams; i++) synchronize(t.streams[i]);
  return OK;
}
API int cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, OK; }
API int cudaMalloc(void **p, u64 bytes) {
  LOCK;
  return allocate(p, bytes, t.streams[0]);
}
API int cudaFree(void *p) {
  LOCK;
  if (!p) return OK;
  for (int i = 1; i < t.numStreams; i++) synchronize(t.streams[i]);
  return release(p, t.streams[0]);
}
API int cudaMallocAsync(void **p, u64 bytes, void *s) {
  LOCK;
  return allocate(p, bytes, *(Stream *)s);
}
API int cudaFreeAsync(void *p, void *s) {
  LOCK;
  return release(p, *(Stream *)s);
}
API int cudaMemGetInfo(u64 *free, u64 *total) { return *free = ARENA - (1 << 20), *total = ARENA, OK; }
API int cudaDeviceGetDefaultMemPool(void **pool, int) { return *pool = (void *)8, OK; }
API int cudaMemPoolSetAttribute(void *, int, void *) { return OK; }
API int cudaMemPoolTrimTo(void *, u64) { return OK; }
API int cudaHostAlloc(void **p, u64 bytes, unsigned) { return *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), OK; }
API int cudaFreeHost(void *p) { return free(p), OK; }
API int cudaMemcpyAsync(void *to, const void *from, u64 bytes, int kind, void *s) {
  LOCK;
  if (kind < 1 || kind > 4) return INVALID_VALUE;
  enqueue(*(Stream *)s, "copy", [=] {
    twinTouch(from, bytes, false);
    twinTouch(to, bytes, true);
    memmove(to, from, bytes);
  });
  return OK;
}
API int cudaMemsetAsync(void *p, int value, u64 bytes, void *s) {
  LOCK;
  enqueue(*(Stream *)s, "memset", [=] {
    twinTouch(p, bytes, true);
    memset(p, value, bytes);
  });
  return OK;
}
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, OK; }
API int cudaStreamCreateWithPriority(void **s, unsigned, int) {
  LOCK;
  // Streams of devices that were closed are taken again.
  static int taken = 0;
  int number = 1 + taken++ % (STREAMS - 1);
  if (number >= t.numStreams) t.numStreams = number + 1;
  *s = &t.streams[number];
  return OK;
}
API int cudaStreamDestroy(void *) { return OK; }
API int cudaStreamSynchronize(void *s) {
  LOCK;
  synchronize(*(Stream *)s);
  return OK;
}
API int cudaStreamQuery(void *s) { return ((Stream *)s)->queue.empty() ? OK : NOT_READY; }
API int cudaStreamWaitEvent(void *stream, void *event, unsigned) {
  LOCK;
  Stream &s = *(Stream *)stream;
  Event &e = *(Event *)event;
  if (!e.recorded) {
    report("stream " + std::to_string(s.number) + " waits for an event that was never recorded");
    return OK;
  }
  for (int i = 0; i < STREAMS; i++)
    if (e.clock.of[i] > s.clock.of[i]) s.clock.of[i] = e.clock.of[i];
  s.clock.of[s.number]++;
  s.queue.push_back({s.clock.of[s.number], 0, nullptr, e.stream, e.index});
  return OK;
}
API int cudaEventCreateWithFlags(void **e, unsigned) { return *e = new Event, OK; }
API int cudaEventDestroy(void *e) { return delete (Event *)e, OK; }
API int cudaEventRecord(void *event, void *stream) {
  LOCK;
  Stream &s = *(Stream *)stream;
  *(Event *)event = Event{true, s.clock, s.number, s.clock.of[s.number]};
  return OK;
}
static bool hasCome(const Event &e) {
  const Stream &s = twin().streams[e.stream];
  return s.queue.empty() || s.queue.front().index > e.index;
}
API int cudaEventQuery(void *event) {
  LOCK;
  Event &e = *(Event *)event;
  // Whoever asks again and again sees work go on, faster and faster.
  static u32 asked = 0, atOperation = 0;
  asked = atOperation == t.operations.size() && asked < 1u << 20 ? asked * 2 : 1;
  atOperation = (u32)t.operations.size();
  if (!hasCome(e)) {
    u32 front = t.streams[e.stream].queue.front().index;
    runUntil(e.stream, e.index - front < asked ? e.index : front + asked - 1);
    return NOT_READY;
  }
  hostWaits(e.clock);
  return OK;
}
API int cudaEventSynchronize(void *event) {
  LOCK;
  Event &e = *(Event *)event;
  runAll(e.stream, e.index);
  hostWaits(e.clock);
  return OK;
}
API int cudaEventElapsedTime(float *ms, void *, void *) { return *ms = 1, OK; }

struct Library { void *handle; };
struct Kernel { std::string name; void (*entry)(void *); size_t bytes; };
API int cudaLibraryLoadData(void **library, const u8 *code, void *, void *, unsigned, void *, void *, unsigned) {
  LOCK;
  const Elf64_Ehdr *elf = (const Elf64_Ehdr *)code;
  if (memcmp(code, ELFMAG, 4)) return INVALID_IMAGE;
  size_t bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
  char path[] = "/tmp/fullyshard-twin-XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0 || write(fd, code, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
  close(fd);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) fprintf(stderr, "twin: %s\n", dlerror());
  unlink(path);
  if (!handle) return INVALID_IMAGE;
  *library = new Library{handle};
  return OK;
}
API int cudaLibraryUnload(void *library) { return delete (Library *)library, OK; }
API int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  void *handle = ((Library *)library)->handle;
  auto entry = (void (*)(void *))dlsym(handle, (std::string("twin_") + name).c_str());
  auto bytes = (size_t *)dlsym(handle, (std::string("twinBytes_") + name).c_str());
  if (!entry || !bytes) return NOT_FOUND;
  *kernel = new Kernel{name, entry, *bytes};
  return OK;
}
API int cudaKernelSetAttributeForDevice(void *, int, int, int) { return OK; }
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *, int, u64) { return *n = 2, OK; }
struct LaunchConfig { dim3 grid, block; u64 dynamicBytes; void *stream, *attributes; unsigned count; };
API int cudaLaunchKernelExC(const LaunchConfig *config, const void *kernel, void **args) {
  LOCK;
  const Kernel *k = (const Kernel *)kernel;
  LaunchConfig c = *config;
  if (c.grid.x == 0 || c.grid.y != 1 || c.grid.z != 1 || c.block.x == 0 || c.block.x > 1024) return INVALID_VALUE;
  std::vector<u8> copy((u8 *)args[0], (u8 *)args[0] + k->bytes);
  enqueue(*(Stream *)c.stream, k->name, [=]() mutable { launch(k->name, k->entry, copy.data(), c.grid, c.block); });
  return OK;
}
#define NOT_MODELLED(name) API int name() { return report(#name " is not modelled"), 801; }
NOT_MODELLED(cudaDeviceEnablePeerAccess) NOT_MODELLED(cudaDeviceDisablePeerAccess) NOT_MODELLED(cudaMemPoolGetAttribute)
NOT_MODELLED(cudaHostRegister) NOT_MODELLED(cudaHostUnregister) NOT_MODELLED(cudaMemcpy2DAsync) NOT_MODELLED(cudaMemcpyPeerAsync)
NOT_MODELLED(cudaStreamBeginCapture) NOT_MODELLED(cudaStreamEndCapture) NOT_MODELLED(cudaStreamIsCapturing)
NOT_MODELLED(cudaThreadExchangeStreamCaptureMode) NOT_MODELLED(cudaGraphInstantiate) NOT_MODELLED(cudaGraphExecUpdate)
NOT_MODELLED(cudaGraphGetNodes) NOT_MODELLED(cudaGraphUpload) NOT_MODELLED(cudaGraphLaunch) NOT_MODELLED(cudaGraphDestroy)
NOT_MODELLED(cudaGraphExecDestroy)
