// A part of cudart.cpp: blocks of device memory, who touched each 4 bytes of them last, and which accesses nothing orders.
#pragma once
#include "cudart_order.hpp"

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
  auto isOrdered = [&](u32 earlier) {
    if (earlier == t.earlier) return true;
    if (!isBefore(earlier, me)) return false;
    t.earlier = earlier;
    return true;
  };
  if (writer == me) {
    bool bothAtomic = isAtomic && c.writerIsAtomic;
    if ((c.writerMask & mask) && !bothAtomic && isApart(c.writerThread, c.writerEpoch)) raceInside("writes");
  } else if (writer && !isOrdered(writer)) race(writer, "writes");
  int stream = t.operations[me].stream ? t.operations[me].stream - 1 : 0;
  if (writes) {
    for (u32 reader : c.readers) {
      if (reader <= b.birth) continue;
      if (reader != me) {
        if (!isOrdered(reader)) race(reader, "reads");
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

/** Checks that an operation may use a block: once for each block that it comes to. */
static void use(Block &b, u32 me) {
  Twin &t = twin();
  const Operation &operation = t.operations[me];
  if (b.birth > me || !isBefore(b.birth, me))
    report(nameOf(me) + " uses a block of " + std::to_string(b.bytes) + " bytes before it was given out there");
  if (b.death && !isBefore(me, b.death))
    report(nameOf(me) + (me > b.death ? " uses a block after it was freed: " : " may use a block while it is freed: ") +
           std::to_string(b.bytes) + " bytes");
  if (operation.index > b.lastUse[operation.stream]) b.lastUse[operation.stream] = operation.index;
  t.used = &b;
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
  if (b != t.used) use(*b, me);
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
API bool twinIsCaptured(void *stream) { return ((Stream *)stream)->capture; }
API bool twinIsCapturing() { return twin().capture; }
API void twinReportFault(const char *what) {
  LOCK;
  report(what);
}
API void twinCapture(void *stream, const std::function<void(void *)> *enqueue) {
  LOCK;
  auto run = *enqueue;
  addNode(*(Stream *)stream, [=](Stream &lane) { run(&lane); });
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
  if (s.capture) return refuseInCapture("memory is allocated on a stream that is captured");
  u64 room = (bytes + 511) / 256 * 256; // at least a byte that is nobody's
  u64 begin = roomFor(room);
  if (!begin) {
    for (int i = 1; i < t.numStreams; i++) runUntil(i, ~0u);
    begin = roomFor(room);
  }
  if (!begin) return MEMORY_ALLOCATION;
  t.recent = t.used = nullptr;
  auto fill = [begin, bytes] { memset(twin().arena + begin, 0xff, bytes); };
  u32 birth = s.number ? (enqueue(s, "allocation", fill), (u32)t.operations.size() - 1) : newOperation(s, "allocation");
  if (!s.number) fill();
  t.blocks[begin] = Block{begin, bytes, room, birth, 0, false, {}};
  *p = t.arena + begin;
  return OK;
}
static int release(void *p, Stream &s) {
  Twin &t = twin();
  if (s.capture) return refuseInCapture("memory is freed on a stream that is captured, which no node of it allocates", INVALID_VALUE);
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
    t.recent = t.used = nullptr;
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
