// A part of cudart.cpp: the state of the double, the order in which operations of streams run, and what comes before what.
#pragma once
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
       NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILURE = 719, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
       CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907 };

static const u64 ARENA = 1ull << 31;
static const int REAL = 4, STREAMS = 1 + 2 * REAL; // the host, four streams, and the lane of each in a graph
struct Clock { u32 of[STREAMS]; };
struct Operation { int stream; u32 index; Clock clock; std::string name; };
struct Event { bool recorded = false; Clock clock{}; int stream = 0; u32 index = 0; u64 capture = 0; };
struct Item { u32 index; u32 operation; std::function<bool()> run; int waitStream; u32 waitIndex; };
struct Capture;
// `captured`: what comes before what the stream captures next, as numbers of nodes of lanes.
struct Stream { int number; Clock clock{}; std::deque<Item> queue; u32 done = 0; Capture *capture = nullptr; Clock captured{}; };
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
  Block *recent = nullptr, *used = nullptr; // the latest that was looked up; the latest that `current` may use
  u32 earlier = 0;                          // the latest operation that was seen to come before `current`
  std::vector<std::string> reports;
  size_t told = 0; // operations
  u64 launches = 0;
  Capture *capture = nullptr; // the one under way
  u64 captures = 0;
  int graphs = 0; // those that have not been destroyed
  int order = 0;
  Twin() {
    arena = (u8 *)mmap(0, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cells = (Cell *)mmap(0, ARENA / 4 * sizeof(Cell), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < STREAMS; i++) streams[i].number = i;
  }
};
static Twin *const theTwin = new Twin;
static inline Twin &twin() { return *theTwin; }
#define LOCK Twin &t = twin(); std::lock_guard<std::recursive_mutex> guard(t.lock)

static void report(const std::string &what) {
  Twin &t = twin();
  if (t.reports.size() < 20) t.reports.push_back(what);
}

static bool isBefore(u32 earlier, u32 later) {
  Twin &t = twin();
  const Operation &a = t.operations[earlier], &b = t.operations[later];
  return a.stream == 0 || b.clock.of[a.stream] >= a.index;
}
static std::string nameOf(u32 operation) {
  const Operation &o = twin().operations[operation];
  if (o.stream == 0) return "'" + o.name + "' on the host";
  if (o.stream > REAL) return "'" + o.name + "' on stream " + std::to_string(o.stream - REAL) + " of a graph";
  return "'" + o.name + "' on stream " + std::to_string(o.stream);
}
static u32 newOperation(Stream &s, const std::string &name) {
  Twin &t = twin();
  s.clock.of[s.number]++;
  t.operations.push_back({s.number, s.clock.of[s.number], s.clock, name});
  return (u32)t.operations.size() - 1;
}

// What a capture takes down: in which lane, after how many nodes of each lane, and what enqueues it when a graph is launched.
struct Node { int lane; Clock after; std::function<void(Stream &)> enqueue; };
struct Capture {
  u64 id;
  Stream *origin;
  bool isValid = true;
  std::vector<Node> nodes;
  u32 counts[STREAMS] = {};
};
static void addNode(Stream &s, std::function<void(Stream &)> enqueue) {
  int lane = s.number + REAL;
  s.captured.of[lane] = ++s.capture->counts[lane];
  s.capture->nodes.push_back({lane, s.captured, enqueue});
}
/** Reports what a capture does not allow, which ends it. */
static int refuseInCapture(const std::string &what, int status = CAPTURE_UNSUPPORTED) {
  report(what);
  if (twin().capture) twin().capture->isValid = false;
  return status;
}
/** Of a call that a capture of this thread does not allow. */
#define UNSAFE(name) \
  if (t.capture) return refuseInCapture("'" name "' is called while work is captured")
static void join(Clock &to, const Clock &from) {
  for (int i = 0; i < STREAMS; i++)
    if (from.of[i] > to.of[i]) to.of[i] = from.of[i];
}

static void enqueueUnending(Stream &s, const std::string &name, std::function<bool()> run) {
  if (s.capture) return addNode(s, [=](Stream &lane) { enqueueUnending(lane, name, run); });
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
      t.recent = t.used = nullptr;
      t.earlier = 0;
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
