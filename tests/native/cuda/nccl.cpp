// A test double of NCCL: the C ABI of the functions that the library binds, between processes of one host, on the memory of the
// double of the CUDA runtime. A communicator is a file of shared memory that the unique id names: words of each rank, and a slot
// for what it contributes to a collective.
//
// A collective is work of its stream that ends when every rank has run its own. Ranks compare what they call; a difference
// becomes an asynchronous error that names both calls, and the collective does not end before the communicator is aborted, as
// on a card. Work is kept back until a host waits (see cudart.cpp), so a thread runs it where another rank's collective waits
// for it. Collectives of one communicator run in the order of their calls, whatever streams they are on, but the race
// detector sees no order in that. Floats are added in an order that differs from block to block, and rounded each time.
//
// Windows: see nccl_windows.hpp.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <vector>
#include "sixteen_bits.hpp"
#include "twin.hpp"
#define API extern "C" __attribute__((visibility("default")))

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

enum { OK = 0, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };
static const int MAX_RANKS = 16, MAX_SPLITS = 256;
static const u64 SLOT = 1ull << 25, MESSAGE = 1ull << 22;

// ---- What ranks share ----

// Where a buffer lies: the number of the registration that its window came from, from 1, and how far in; 0 where it is in no window.
struct Place { u64 window, offset; };
struct Call { char kind[16]; int type, op, root; u64 count; Place from, to; };
struct Peer {
  std::atomic<u32> attached, finalized;
  std::atomic<u64> posted, taken; // collectives: contributed to, done with
  std::atomic<u32> waits;         // for work of other ranks
  Call call;
  std::atomic<u64> registered; // windows
  u64 registeredBytes;         // of the last one
  struct Split { std::atomic<u32> is; int color, key; } splits[MAX_SPLITS];
  // Messages to each rank.
  struct Lane { std::atomic<u64> sent, taken; u64 bytes; } lanes[MAX_RANKS];
};
struct Shared { Peer peers[MAX_RANKS]; };
static u64 bytesOf(int ranks) { return sizeof(Shared) + ranks * SLOT + (u64)ranks * ranks * MESSAGE; }

/** Memory that all ranks have registered; it is kept, as work may know it. */
struct Window { u64 number; const u8 *begin; u64 bytes; bool isRegistered = true; };
struct Comm {
  int rank = 0, ranks = 0;
  std::string name, error;
  Shared *shared = nullptr;
  Comm *parent = nullptr; // while it is being split off
  u32 splitNumber = 0, splits = 0;
  int color = 0;
  int state = IN_PROGRESS;
  bool isAborted = false, isFinalized = false, isBusy = false, wasBusy = false;
  u64 calls = 0;
  int missing = -1; // the first rank that has not come to what this one waits in
  u64 missedCall = 0; // its number; 0 is the making of the communicator
  std::deque<TwinPlace> pending; // operations that have not ended
  int policy = 0; // of what takes multiprocessors: 2 is zero-CTA
  u64 registrations = 0;
  Window *registering = nullptr; // what waits for the other ranks, and where it is told
  Window **registeringTo = nullptr;
  std::vector<Window *> windows;
  Peer &own() { return shared->peers[rank]; }
  u8 *slot(int r) { return (u8 *)shared + sizeof(Shared) + r * SLOT; }
  u8 *message(int from, int to) { return (u8 *)shared + sizeof(Shared) + ranks * SLOT + ((u64)from * ranks + to) * MESSAGE; }
};
static std::vector<Comm *> &comms() {
  static auto *the = new std::vector<Comm *>;
  return *the;
}
static std::string lastError;
struct Guard {
  Guard() { twinLock(); }
  ~Guard() { twinUnlock(); }
};
#define LOCK Guard guard

/** The release that it counts as. */
static int version() {
  const char *told = getenv("TWIN_NCCL");
  return told ? atoi(told) : 22809;
}
static int fail(int status, const std::string &text) {
  lastError = text;
  return status;
}
/** What a call on a communicator that takes none returns: the error of one that has failed, as NCCL does. */
static int refuse(Comm *c, const std::string &text) {
  return c->state == OK || c->state == IN_PROGRESS ? fail(INVALID_USAGE, text) : fail(c->state, c->error);
}

/** Runs this process' part of collectives that other ranks wait in. */
static void *serve(void *) {
  for (;;) {
    usleep(300);
    std::vector<TwinPlace> places;
    {
      LOCK;
      for (Comm *c : comms()) {
        if (c->state != OK || c->isAborted || c->pending.empty()) continue;
        for (int r = 0; r < c->ranks; r++)
          if (r != c->rank && c->shared->peers[r].waits) {
            places.push_back(c->pending.front());
            break;
          }
      }
    }
    for (TwinPlace place : places) twinRun(place);
  }
}

static int attach(Comm *c) {
  int file = shm_open(c->name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, (off_t)bytesOf(c->ranks))) return fail(SYSTEM, "no shared memory");
  c->shared = (Shared *)mmap(0, bytesOf(c->ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (c->shared == MAP_FAILED) return fail(SYSTEM, "no shared memory");
  if (c->own().attached.exchange(1)) return fail(INVALID_USAGE, "rank " + std::to_string(c->rank) + " is there twice");
  return OK;
}
/** Goes on with a communicator that is being made. */
static void make(Comm *c) {
  if (c->parent) {
    Comm &p = *c->parent;
    std::vector<std::pair<int, int>> members;
    for (int r = 0; r < p.ranks; r++) {
      Peer::Split &split = p.shared->peers[r].splits[c->splitNumber];
      if (!split.is) return;
      if (split.color == c->color) members.push_back({split.key, r});
    }
    std::sort(members.begin(), members.end());
    c->ranks = (int)members.size();
    for (int i = 0; i < c->ranks; i++) if (members[i].second == p.rank) c->rank = i;
    c->name = p.name + "-" + std::to_string(c->splitNumber) + "-" + std::to_string(c->color);
    c->parent = nullptr;
  }
  if (!c->shared) {
    int status = attach(c);
    if (status) { c->state = status, c->error = lastError; return; }
  }
  for (int r = 0; r < c->ranks; r++)
    if (!c->shared->peers[r].attached) return (void)(c->missing = r);
  c->missing = -1;
  shm_unlink(c->name.c_str());
  c->state = OK;
}

// ---- Values ----

static int sizeOf(int type) {
  switch (type) {
    case 0: case 1: return 1;  // int8, uint8
    case 6: case 9: return 2;  // float16, bfloat16
    case 2: case 3: case 7: return 4;
    default: return 8;
  }
}
static float load(const u8 *p, int type, u64 i) {
  return type == 7 ? ((const float *)p)[i] : widen(((const uint16_t *)p)[i], type == 6);
}
static void store(u8 *p, int type, u64 i, float value) {
  if (type == 7) ((float *)p)[i] = value;
  else ((uint16_t *)p)[i] = narrow(value, type == 6);
}
/** Combines an element of all ranks: sum 0, max 2, average 4. */
static void combine(Comm &c, u8 *to, u64 n, u64 from, int type, int op) {
  for (u64 i = 0; i < n; i++) {
    int first = (int)((from + i) / 64 % c.ranks);
    if (type == 4) {
      int64_t sum = 0;
      for (int r = 0; r < c.ranks; r++) sum += ((int64_t *)c.slot(r))[from + i];
      ((int64_t *)to)[i] = sum;
      continue;
    }
    u8 one[4];
    store(one, type, 0, load(c.slot(first), type, from + i));
    for (int r = 1; r < c.ranks; r++) {
      float a = load(one, type, 0), b = load(c.slot((first + r) % c.ranks), type, from + i);
      store(one, type, 0, op == 2 ? (a > b || a != a ? a : b) : a + b);
    }
    float all = load(one, type, 0);
    store(to, type, i, op == 4 ? all / c.ranks : all);
  }
}
static std::string textOf(const Call &call) {
  static const char *types[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"};
  static const char *ops[] = {"sum", "prod", "max", "min", "avg"};
  std::string text = std::string(call.kind) + " of " + std::to_string(call.count) + " " + types[call.type];
  if (call.op >= 0) text += std::string(" by ") + ops[call.op];
  if (call.root >= 0) text += " of rank " + std::to_string(call.root);
  if (call.from.window) text += " from byte " + std::to_string(call.from.offset) + " of window " + std::to_string(call.from.window);
  if (call.to.window) text += " to byte " + std::to_string(call.to.offset) + " of window " + std::to_string(call.to.window);
  return text;
}

#include "nccl_windows.hpp"

// ---- Operations ----

/** The end of a step: an operation that has ended is no longer pending, and an aborted communicator ends all. */
static bool end(Comm *c, bool hasEnded) {
  if (c->isAborted) hasEnded = true;
  if (hasEnded && !c->pending.empty()) c->pending.pop_front();
  c->own().waits = !hasEnded;
  return hasEnded;
}
static int setError(Comm *c, const std::string &text) {
  if (c->state == OK) c->state = REMOTE, c->error = text;
  return REMOTE;
}

/** An error that comes up beside all calls, on every communicator of this process. */
API int twinNcclBreak() {
  LOCK;
  for (Comm *c : comms()) setError(c, "the connection of rank " + std::to_string(c->rank) + " was reset");
  return OK;
}

/** One step of the collective of that number. */
static bool runCollective(Comm *c, u64 number, const Call &call, const u8 *from, u8 *to) {
  if (c->isAborted || c->state != OK) return end(c, false);
  requireRegistered(c, call);
  Peer &own = c->own();
  bool gathers = !strcmp(call.kind, "all-gather"), scatters = !strcmp(call.kind, "reduce-scatter");
  bool broadcasts = !strcmp(call.kind, "broadcast"), reduces = !strcmp(call.kind, "reduce");
  u64 bytes = call.count * sizeOf(call.type), given = scatters ? bytes * c->ranks : bytes;
  if (own.posted < number) {
    for (int r = 0; r < c->ranks; r++) if (c->shared->peers[r].taken < number - 1) return end(c, false);
    if (!broadcasts || c->rank == call.root) {
      twinTouch(from, given, false);
      memcpy(c->slot(c->rank), from, given);
    }
    own.call = call;
    own.posted = number;
  }
  for (int r = 0; r < c->ranks; r++)
    if (c->shared->peers[r].posted < number) return c->missing = r, c->missedCall = number, end(c, false);
  c->missing = -1;
  for (int r = 0; r < c->ranks; r++) {
    const Call &other = c->shared->peers[r].call;
    if (!memcmp(&other, &call, sizeof call)) continue;
    setError(c, "collective " + std::to_string(number) + ": rank " + std::to_string(c->rank) + " calls " + textOf(call) + ", rank " +
                    std::to_string(r) + " " + textOf(other));
    return end(c, false);
  }
  if (gathers) {
    twinTouch(to, bytes * c->ranks, true);
    for (int r = 0; r < c->ranks; r++) memcpy(to + r * bytes, c->slot(r), bytes);
  } else if (broadcasts) {
    twinTouch(to, bytes, true);
    memcpy(to, c->slot(call.root), bytes);
  } else if (!reduces || c->rank == call.root) {
    twinTouch(to, bytes, true);
    combine(*c, to, call.count, scatters ? c->rank * call.count : 0, call.type, call.op);
  }
  own.taken = number;
  return end(c, true);
}

struct Message { bool sends; u8 *at; u64 bytes; int peer; bool isUnderWay = false, hasEnded = false; };

/** One step of messages that go side by side; of two in one direction to one peer the second begins when the first has ended. */
static bool runMessages(Comm *c, std::vector<Message> &messages) {
  if (c->isAborted || c->state != OK) return end(c, false);
  bool all = true;
  for (size_t i = 0; i < messages.size(); i++) {
    Message &m = messages[i];
    bool isNext = !m.hasEnded;
    for (size_t j = 0; j < i; j++)
      if (messages[j].peer == m.peer && messages[j].sends == m.sends && !messages[j].hasEnded) isNext = false;
    if (!isNext) { all = all && m.hasEnded; continue; }
    Peer::Lane &lane = m.sends ? c->own().lanes[m.peer] : c->shared->peers[m.peer].lanes[c->rank];
    if (m.sends && !m.isUnderWay) {
      twinTouch(m.at, m.bytes, false);
      memcpy(c->message(c->rank, m.peer), m.at, m.bytes);
      lane.bytes = m.bytes;
      lane.sent++;
      m.isUnderWay = true;
    } else if (!m.sends && lane.sent > lane.taken) {
      if (lane.bytes != m.bytes) {
        setError(c, "rank " + std::to_string(m.peer) + " sends " + std::to_string(lane.bytes) + " bytes, but rank " +
                        std::to_string(c->rank) + " receives " + std::to_string(m.bytes));
        return end(c, false);
      }
      twinTouch(m.at, m.bytes, true);
      memcpy(m.at, c->message(m.peer, c->rank), m.bytes);
      lane.taken++;
      m.hasEnded = true;
    }
    if (m.sends && m.isUnderWay && lane.taken == lane.sent) m.hasEnded = true;
    all = all && m.hasEnded;
  }
  return end(c, all);
}

static int depth = 0; // of ncclGroupStart
static Comm *groupComm;
/** Every second group is in progress for a moment. */
static int endGroup() {
  Comm *c = groupComm;
  if (!c) return OK;
  c->isBusy = c->wasBusy = !c->wasBusy;
  return c->isBusy ? IN_PROGRESS : OK;
}
/** Makes the work of a call, when it is enqueued: by the call, or by each launch of a graph that it was captured in. */
using Work = std::function<std::function<bool()>()>;
static void enqueueWork(Comm *c, void *stream, const char *name, const Work &make) {
  if (!c->pending.empty()) twinRunAfter(stream, c->pending.back());
  // Under the lock, so that it does not run before it is known.
  c->pending.push_back({});
  auto run = make();
  c->pending.back() = twinEnqueueUnending(stream, name, &run);
}
static int enqueue(Comm *c, void *stream, const char *name, const Work &make) {
  LOCK;
  if (c->state != OK || c->isFinalized) return refuse(c, std::string(name) + " on a communicator that is not ready");
  if (c->isBusy || c->registering) return fail(INVALID_USAGE, std::string(name) + " while the last call is in progress");
  if (twinIsCaptured(stream)) {
    std::function<void(void *)> launched = [=](void *lane) { enqueueWork(c, lane, name, make); };
    twinCapture(stream, &launched);
  } else enqueueWork(c, stream, name, make);
  groupComm = c;
  return depth ? OK : endGroup();
}
static int collective(const char *kind, const void *from, void *to, u64 count, int type, int op, int root, Comm *c, void *stream) {
  Call call{};
  strcpy(call.kind, kind);
  call.type = type, call.op = op, call.root = root, call.count = count;
  call.from = placeOf(c, from), call.to = placeOf(c, to);
  const char *name = wayOf(c, call, kind);
  if (count * sizeOf(type) * (!strcmp(kind, "reduce-scatter") ? c->ranks : 1) > SLOT) return fail(INVALID_ARGUMENT, "more than the double takes");
  return enqueue(c, stream, name, [=]() -> std::function<bool()> {
    u64 number = ++c->calls;
    return [=] { return runCollective(c, number, call, (const u8 *)from, (u8 *)to); };
  });
}

// Messages of a group go together; its collectives go one after another, as on any rank.
static std::vector<Message> grouped;
static void *groupStream;
static int message(bool sends, const void *p, u64 count, int type, int peer, Comm *c, void *stream) {
  u64 bytes = count * sizeOf(type);
  if (!depth || bytes > MESSAGE) return fail(INVALID_USAGE, "a message outside of a group, or of more than the double takes");
  grouped.push_back({sends, (u8 *)p, bytes, peer});
  groupComm = c, groupStream = stream;
  return OK;
}

// ---- NCCL ----

API const char *ncclGetErrorString(int status) {
  switch (status) {
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE: return "remote process exited or there was a network error";
    case SYSTEM: return "unhandled system error";
    default: return "another";
  }
}
/** What went wrong, or else which rank a communicator waits for: NCCL itself would only wait. */
API const char *ncclGetLastError(Comm *c) {
  static std::string waits;
  if (c && !c->error.empty()) return c->error.c_str();
  if (!c || c->missing < 0) return lastError.c_str();
  std::string what = c->registering ? "the registration of window " + std::to_string(c->registering->number) : c->missedCall ? "collective " + std::to_string(c->missedCall) : "the communicator";
  waits = "rank " + std::to_string(c->rank) + " waits in " + what + " for rank " + std::to_string(c->missing);
  return waits.c_str();
}
API int ncclGetVersion(int *told) { return *told = version(), OK; }
API int ncclGetUniqueId(char *id) {
  static int number = 0;
  memset(id, 0, 128);
  snprintf(id, 128, "/fullyshard-nccl-twin-%d-%d", (int)getpid(), number++);
  return OK;
}
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare, trafficClass;
  const char *commName;
  int collnetEnable, policy;
};
/** The policy of a configuration, which releases before 2.27 do not read; -1 if the release does not know it. */
static int policyOf(const Config *config) {
  if (version() < 22700 || config->size < sizeof(Config) || config->version < 22700 || config->policy == INT32_MIN) return 0;
  return config->policy < 0 || config->policy > (version() < 22800 ? 1 : 2) ? -1 : config->policy;
}
static Comm *begin() {
  static bool isServed = false;
  LOCK;
  if (!isServed) {
    pthread_t thread;
    pthread_create(&thread, nullptr, serve, nullptr);
    pthread_detach(thread);
    isServed = true;
  }
  comms().push_back(new Comm);
  return comms().back();
}
API int ncclCommInitRankScalable(Comm **comm, int ranks, int rank, int count, const char *id, const Config *config) {
  if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks || count != 1) return fail(INVALID_ARGUMENT, "ranks");
  if (config->magic != 0xcafebeef || config->size < 48 || config->blocking != 0) return fail(INVALID_ARGUMENT, "config");
  if (policyOf(config) < 0) return fail(INVALID_ARGUMENT, "a policy that this release does not know");
  *comm = begin();
  (*comm)->rank = rank, (*comm)->ranks = ranks, (*comm)->name = id, (*comm)->policy = policyOf(config);
  return IN_PROGRESS;
}
API int ncclCommSplit(Comm *c, int color, int key, Comm **comm, const Config *config) {
  LOCK;
  if (c->state != OK || c->splits == MAX_SPLITS) return refuse(c, "split");
  Comm *made = *comm = begin();
  made->policy = policyOf(config);
  made->parent = c, made->splitNumber = c->splits++, made->color = color;
  Peer::Split &own = c->own().splits[made->splitNumber];
  own.color = color, own.key = key, own.is = 1;
  return IN_PROGRESS;
}
API int ncclCommGetAsyncError(Comm *c, int *state) {
  TwinPlace last{};
  bool isPending = false;
  {
    LOCK;
    if (c->state == IN_PROGRESS) make(c);
    if (c->state == OK && c->registering) goOnRegistering(c);
    *state = (c->isBusy || c->registering) && c->state == OK ? IN_PROGRESS : c->state;
    c->isBusy = false;
    if (c->state != OK || !c->isFinalized) return OK;
    isPending = !c->pending.empty();
    if (isPending) last = c->pending.back();
    else c->own().finalized = 1;
    for (int r = 0; r < c->ranks; r++) if (!c->shared->peers[r].finalized) *state = IN_PROGRESS;
  }
  if (isPending) twinRun(last);
  return OK;
}
API int ncclCommFinalize(Comm *c) {
  LOCK;
  if (c->state != OK) return refuse(c, "finalize");
  c->isFinalized = true;
  return IN_PROGRESS;
}
static int leave(Comm *c) {
  LOCK;
  for (size_t i = 0; i < comms().size(); i++)
    if (comms()[i] == c) comms().erase(comms().begin() + (long)i), i--;
  if (!c->shared) return OK;
  c->own().waits = 0;
  // What is enqueued still looks at it.
  if (c->pending.empty()) munmap((void *)c->shared, bytesOf(c->ranks)), c->shared = nullptr;
  return OK;
}
API int ncclCommDestroy(Comm *c) {
  int state;
  ncclCommGetAsyncError(c, &state);
  if (!c->isFinalized || state != OK) return fail(INVALID_USAGE, "destroyed before it was finalized");
  for (Window *window : c->windows)
    if (window->isRegistered) twinReportFault((nameOf(c, window) + " is registered when its communicator is destroyed").c_str());
  return leave(c);
}
API int ncclCommAbort(Comm *c) {
  {
    LOCK;
    c->isAborted = true;
    for (Window *window : c->windows) window->isRegistered = false;
    c->registering = nullptr;
  }
  if (c->shared) shm_unlink(c->name.c_str());
  return leave(c);
}
API int ncclGroupStart() {
  if (!depth++) groupComm = nullptr;
  return OK;
}
API int ncclGroupEnd() {
  if (--depth) return OK;
  if (grouped.empty()) return endGroup();
  auto messages = std::move(grouped);
  grouped.clear();
  Comm *c = groupComm;
  return enqueue(c, groupStream, "messages", [=]() -> std::function<bool()> {
    return [c, under = messages]() mutable { return runMessages(c, under); };
  });
}
API int ncclAllReduce(const void *from, void *to, u64 count, int type, int op, Comm *c, void *stream) {
  return collective("all-reduce", from, to, count, type, op, -1, c, stream);
}
API int ncclReduceScatter(const void *from, void *to, u64 count, int type, int op, Comm *c, void *stream) {
  return collective("reduce-scatter", from, to, count, type, op, -1, c, stream);
}
API int ncclAllGather(const void *from, void *to, u64 count, int type, Comm *c, void *stream) {
  return collective("all-gather", from, to, count, type, -1, -1, c, stream);
}
API int ncclBroadcast(const void *from, void *to, u64 count, int type, int root, Comm *c, void *stream) {
  return collective("broadcast", from, to, count, type, -1, root, c, stream);
}
API int ncclReduce(const void *from, void *to, u64 count, int type, int op, int root, Comm *c, void *stream) {
  return collective("reduce", from, to, count, type, op, root, c, stream);
}
API int ncclSend(const void *from, u64 count, int type, int peer, Comm *c, void *stream) {
  return message(true, from, count, type, peer, c, stream);
}
API int ncclRecv(void *to, u64 count, int type, int peer, Comm *c, void *stream) {
  return message(false, to, count, type, peer, c, stream);
}
#define NOT_MODELLED(name) API int name() { return fail(INVALID_USAGE, #name " is not modelled"); }
NOT_MODELLED(ncclCommInitRankConfig) NOT_MODELLED(ncclCommInitRank) NOT_MODELLED(ncclCommCount) NOT_MODELLED(ncclCommUserRank)
NOT_MODELLED(ncclCommCuDevice) NOT_MODELLED(ncclRedOpCreatePreMulSum)
NOT_MODELLED(ncclRedOpDestroy)
