// What the doubles of the CUDA libraries share: work on streams.
#pragma once
#include <stdint.h>
#include <functional>
extern "C" {
// The one lock of all doubles: work runs under it.
void twinLock();
void twinUnlock();
// Enqueues work that touches memory by twinTouch() when it runs.
void twinEnqueue(void *stream, const char *name, const std::function<void()> *run);
void twinTouch(const void *p, uint64_t bytes, bool writes);
// The end of an operation in its stream's order.
struct TwinPlace { int stream; uint32_t index; };
// Enqueues work that says whether it has ended, and is run again if not.
TwinPlace twinEnqueueUnending(void *stream, const char *name, const std::function<bool()> *run);
// What is enqueued from now on runs after that, though no event says so: the race detector sees no order.
void twinRunAfter(void *stream, TwinPlace place);
// Whether a stream is being captured, and adds a node to the capture that enqueues by itself, on a stream of the graph that it is given.
bool twinIsCaptured(void *stream);
void twinCapture(void *stream, const std::function<void(void *)> *enqueue);
// Whether work is being captured.
bool twinIsCapturing();
// Something wrong, for twinReport().
void twinReportFault(const char *what);
// Runs what has been enqueued up to that, as far as it can.
void twinRun(TwinPlace place);
}
