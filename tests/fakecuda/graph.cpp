// Stream capture and graphs of the fake driver, as strict as CUDA's documentation is (cuStreamBeginCapture,
// cuThreadExchangeStreamCaptureMode; "CUDA Graphs" in the programming guide). Every stream counts as blocking.
//
// A node has the work that a stream would have done, the memory that it uses, and the nodes that it comes after: of its
// stream the last one, and what the stream has waited for. A launch does the nodes that are ready on several threads, in random order and after
// random delays, so an edge that is missing is a real race.
#include "capture.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace {
using Nodes = std::set<size_t>;

constexpr size_t WORKERS = 6;  // nodes at work at a time

struct Node {
  std::function<void()> work;
  Uses uses;
  Nodes after;
};
struct Graph { std::vector<Node> nodes; };
struct Capture {
  CUstream origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  bool valid = true, ended = false;
};
// Where a stream or an event is in a capture: what comes next there comes after these nodes.
struct Place {
  std::shared_ptr<Capture> capture;
  Nodes last;
};

std::mutex m;
std::map<CUstream, Place> streams;  // those that are being captured
std::map<CUevent, Place> events;    // those that were last recorded in a capture, which may have ended
std::atomic<unsigned long long> existing{0};  // graphs, and what was instantiated of them
using Lock = std::lock_guard<std::mutex>;

bool is_legacy(CUstream stream) { return (uintptr_t)stream <= 2; }

CUresult refuse(Capture &capture, CUresult why) {
  if (!capture.valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  capture.valid = false;
  return why;
}
capture::Answer refuse_all(CUresult why) {
  if (streams.empty()) return {};
  for (auto &[stream, place] : streams) place.capture->valid = false;
  return why;
}
capture::Answer unsafe_call() {
  capture::Answer answer;
  for (auto &[stream, place] : streams) {
    auto &capture = *place.capture;
    bool here = capture.thread == std::this_thread::get_id();
    if (here ? capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED : capture.mode != CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
    capture.valid = false;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}
// Whether every node comes before what the stream would do next.
bool joined(const Graph &graph, const Nodes &last) {
  std::vector<size_t> open(last.begin(), last.end());
  Nodes seen(last);
  while (!open.empty()) {
    size_t node = open.back();
    open.pop_back();
    for (size_t other : graph.nodes[node].after)
      if (seen.insert(other).second) open.push_back(other);
  }
  return seen.size() == graph.nodes.size();
}

struct Executable {
  std::vector<Node> nodes;
  std::vector<std::vector<size_t>> before;  // of each node: those that come after it
  Uses uses;                                // of all nodes
  std::mutex running;                       // one launch at a time
  explicit Executable(const Graph &graph) : nodes(graph.nodes), before(nodes.size()) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t other : nodes[i].after) before[other].push_back(i);
      uses.insert(uses.end(), nodes[i].uses.begin(), nodes[i].uses.end());
    }
  }
  void run() {
    Lock only(running);
    std::mutex shared;
    std::condition_variable changed;
    std::vector<size_t> missing(nodes.size()), ready;
    size_t left = nodes.size();
    for (size_t i = 0; i < nodes.size(); ++i)
      if (!(missing[i] = nodes[i].after.size())) ready.push_back(i);
    auto take = [&](size_t seed) {
      std::mt19937 random(seed);
      std::unique_lock l(shared);
      while (left) {
        if (ready.empty()) { changed.wait(l); continue; }
        std::swap(ready[random() % ready.size()], ready.back());
        size_t node = ready.back();
        ready.pop_back();
        l.unlock();
        fake::delay(random);
        nodes[node].work();
        l.lock();
        --left;
        for (size_t next : before[node])
          if (!--missing[next]) ready.push_back(next);
        changed.notify_all();
      }
    };
    std::vector<std::thread> workers;
    for (size_t i = 0; i < std::min(WORKERS, nodes.size()); ++i) workers.emplace_back(take, fake::next_seed());
    for (auto &worker : workers) worker.join();
  }
};

// A graph that a program has, or that its capture has still.
bool is_graph(CUgraph graph) {
  if (fake::exists(graph)) return true;
  Lock l(m);
  return std::any_of(streams.begin(), streams.end(), [=](auto &entry) { return (CUgraph)entry.second.capture->graph.get() == graph; });
}

template <class T> T *now_exists(T *made) {
  ++existing;
  fake::now_exists(made, [made] { delete made; --existing; });
  return made;
}
}  // namespace

namespace capture {
Answer work(CUstream stream, const std::function<void()> &work, const Uses &uses) {
  Lock l(m);
  if (is_legacy(stream)) return refuse_all(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  auto found = streams.find(stream);
  if (found == streams.end()) return {};
  auto &[capture, last] = found->second;
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto &nodes = capture->graph->nodes;
  nodes.push_back({work, uses, last});
  last = {nodes.size() - 1};
  return CUDA_SUCCESS;
}
Answer record(CUevent event, CUstream stream) {
  Lock l(m);
  if (is_legacy(stream))
    if (auto answer = refuse_all(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) return answer;
  auto found = streams.find(stream);
  if (found == streams.end()) { events.erase(event); return {}; }
  if (!found->second.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  events[event] = found->second;
  return CUDA_SUCCESS;
}
Answer wait(CUstream stream, CUevent event, bool recorded) {
  Lock l(m);
  if (is_legacy(stream))
    if (auto answer = refuse_all(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) return answer;
  auto from = events.find(event);
  auto to = streams.find(stream);
  if (from == events.end() || from->second.capture->ended) {
    if (to != streams.end()) return recorded || from != events.end() ? refuse(*to->second.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
    if (from != events.end()) return CUDA_ERROR_CAPTURED_EVENT;
    return {};
  }
  auto &capture = from->second.capture;
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (to == streams.end()) { streams[stream] = from->second; return CUDA_SUCCESS; }
  if (to->second.capture != capture) {
    capture->valid = false;
    return refuse(*to->second.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  to->second.last.insert(from->second.last.begin(), from->second.last.end());
  return CUDA_SUCCESS;
}
Answer ask(CUstream stream) {
  Lock l(m);
  if (is_legacy(stream)) return refuse_all(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  auto found = streams.find(stream);
  if (found == streams.end()) return {};
  return refuse(*found->second.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}
Answer elapsed(CUevent event) {
  Lock l(m);
  auto found = events.find(event);
  if (found == events.end()) return {};
  found->second.capture->valid = false;
  return CUDA_ERROR_CAPTURED_EVENT;
}
Answer ask(CUevent event) {
  if (auto answer = elapsed(event)) return answer;
  Lock l(m);
  return unsafe_call();
}
Answer context() { Lock l(m); return refuse_all(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }
Answer unsafe() { Lock l(m); return unsafe_call(); }
void forget(CUevent event) { Lock l(m); events.erase(event); }
void forget(CUstream stream) {
  Lock l(m);
  auto found = streams.find(stream);
  if (found == streams.end()) return;
  found->second.capture->valid = false;
  streams.erase(found);
}
void forget_all() { Lock l(m); streams.clear(); }
const char *explain(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_STATE: return "the operation cannot be performed in the present state";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: return "operation failed due to a previous error during capture";
    case CUDA_ERROR_STREAM_CAPTURE_MERGE: return "operation would result in a merge of separate capture sequences";
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: return "capture was not ended in the same stream as it began";
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED: return "capturing stream has unjoined work";
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION: return "dependency created on uncaptured work in another stream";
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return "operation would make the legacy stream depend on a capturing blocking stream";
    case CUDA_ERROR_CAPTURED_EVENT: return "operation not permitted on an event last recorded in a capturing stream";
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: return "attempt to terminate a thread-local capture sequence from another thread";
    default: return "error of the fake driver";
  }
}
}  // namespace capture

extern "C" {
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  NEED_CONTEXT
  NEED_STREAM(stream)
  Lock l(m);
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (streams.count(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  streams[stream].capture = std::make_shared<Capture>(stream, mode, std::this_thread::get_id());
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  *graph = nullptr;
  NEED_LIVE_CONTEXT
  NEED_STREAM(stream)
  Lock l(m);
  auto found = streams.find(stream);
  if (found == streams.end()) return CUDA_ERROR_ILLEGAL_STATE;
  auto [capture, last] = found->second;
  if (capture->origin != stream) return refuse(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  std::erase_if(streams, [&](auto &entry) { return entry.second.capture == capture; });
  capture->ended = true;
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined(*capture->graph, last)) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = (CUgraph)now_exists(capture->graph.release());
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  NEED_LIVE_CONTEXT
  NEED_STREAM(stream)
  Lock l(m);
  if (is_legacy(stream) && !streams.empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  auto found = streams.find(stream);
  *status = found == streams.end() ? CU_STREAM_CAPTURE_STATUS_NONE : found->second.capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}
// CUDA 13 declares the third version only; its driver has this one, too.
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *, CUgraph *graph, const CUgraphNode **, size_t *) {
  if (CUresult result = cuStreamIsCapturing(stream, status)) return result;
  Lock l(m);
  if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph) *graph = (CUgraph)streams.at(stream).capture->graph.get();
  return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (!is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (nodes) return CUDA_ERROR_NOT_SUPPORTED;
  *count = ((Graph *)graph)->nodes.size();
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {  // ...WithFlags
  NEED_CONTEXT
  if (!fake::exists(graph) || flags) return CUDA_ERROR_INVALID_VALUE;
  *executable = (CUgraphExec)now_exists(new std::shared_ptr<Executable>(std::make_shared<Executable>(*(Graph *)graph)));
  return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
  NEED_CONTEXT
  NEED(executable)
  NEED_STREAM(stream)
  return CUDA_SUCCESS;
}
// Counts as one launch, beside those that were captured.
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  NEED_CONTEXT
  NEED(executable)
  auto kept = *(std::shared_ptr<Executable> *)executable;
  return fakecuda_enqueue(stream, new std::function<void()>([kept] { kept->run(); }), kept->uses);
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  NEED_LIVE_CONTEXT
  return fake::destroy(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuGraphDestroy(CUgraph graph) {
  NEED_LIVE_CONTEXT
  return fake::destroy(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
unsigned long long fakecuda_graphs(void) { return existing; }
}
