// A part of cudart.cpp: captures of streams, and launches of what was captured. Each stream of a capture has a lane, in which its
// nodes run after what the stream that launches has enqueued, and after the nodes that events put before them; nothing else orders
// them. So an event that is missing in the capture is a race whenever the graph is launched, and memory that a node knows by its
// address must be there then. Reported besides: the host waiting or asking while work is captured, memory allocated or freed in it,
// an event from before a capture waited for in it, one of a capture outside of it, and streams that do not come back to the first.
#pragma once
#include "cudart_kernels.hpp"

struct Graph { std::vector<Node> nodes; };

/** Captures and graphs that are under way or were not destroyed. */
API int twinGraphs() {
  LOCK;
  return t.graphs + (t.capture ? 1 : 0);
}
API int cudaStreamBeginCapture(void *stream, int mode) {
  LOCK;
  Stream &s = *(Stream *)stream;
  if (t.capture || mode != 1) return refuseInCapture("a capture begins in another one, or not for its thread alone");
  t.capture = s.capture = new Capture{++t.captures, &s};
  s.captured = {};
  return OK;
}
API int cudaStreamIsCapturing(void *stream, int *is) {
  LOCK;
  const Capture *capture = ((Stream *)stream)->capture;
  return *is = !capture ? 0 : capture->isValid ? 1 : 2, OK;
}
API int cudaStreamEndCapture(void *stream, void **graph) {
  LOCK;
  Stream &s = *(Stream *)stream;
  *graph = nullptr;
  if (!t.capture || t.capture->origin != &s) return CAPTURE_UNMATCHED;
  Capture *c = t.capture;
  int status = c->isValid ? OK : CAPTURE_INVALIDATED;
  for (int i = 1; i <= REAL && status == OK; i++) {
    if (c->counts[i + REAL] <= s.captured.of[i + REAL]) continue;
    status = refuseInCapture("stream " + std::to_string(i) + " does not come back to the stream whose capture it has joined", CAPTURE_UNJOINED);
  }
  for (Stream &each : t.streams) each.capture = nullptr;
  t.capture = nullptr;
  if (status == OK) *graph = new Graph{c->nodes}, t.graphs++;
  delete c;
  return status;
}
API int cudaGraphInstantiate(void **exec, void *graph, u64) {
  LOCK;
  UNSAFE("cudaGraphInstantiate");
  t.graphs++;
  return *exec = new Graph(*(Graph *)graph), OK;
}
static int destroy(void *graph) {
  LOCK;
  t.graphs--;
  return delete (Graph *)graph, OK;
}
API int cudaGraphDestroy(void *graph) { return destroy(graph); }
API int cudaGraphExecDestroy(void *exec) { return destroy(exec); }
API int cudaGraphUpload(void *, void *) { return OK; }

static void waitIn(Stream &s, const Clock &clock, int stream, u32 index) {
  join(s.clock, clock);
  s.clock.of[s.number]++;
  s.queue.push_back({s.clock.of[s.number], 0, nullptr, stream, index});
}
API int cudaGraphLaunch(void *exec, void *stream) {
  LOCK;
  UNSAFE("cudaGraphLaunch");
  Stream &s = *(Stream *)stream;
  t.numStreams = STREAMS;
  const Clock begin = s.clock;
  // Of each lane the ends of its nodes so far, and how many nodes of each lane it comes after.
  std::vector<Clock> ends[STREAMS];
  Clock after[STREAMS] = {};
  for (const Node &node : ((Graph *)exec)->nodes) {
    Stream &lane = t.streams[node.lane];
    if (ends[node.lane].empty()) {
      u32 own = lane.clock.of[node.lane];
      lane.clock = {};
      lane.clock.of[node.lane] = own;
      waitIn(lane, begin, s.number, begin.of[s.number]);
    }
    for (int other = REAL + 1; other < STREAMS; other++) {
      u32 number = node.after.of[other];
      if (other == node.lane || number <= after[node.lane].of[other]) continue;
      after[node.lane].of[other] = number;
      const Clock &end = ends[other][number - 1];
      waitIn(lane, end, other, end.of[other]);
    }
    node.enqueue(lane);
    ends[node.lane].push_back(lane.clock);
  }
  for (int lane = REAL + 1; lane < STREAMS; lane++)
    if (!ends[lane].empty()) waitIn(s, ends[lane].back(), lane, ends[lane].back().of[lane]);
  return OK;
}
