// What driver.cpp and graph.cpp ask of each other: calls on a stream that is being captured become nodes of a graph.
#pragma once
#include <functional>
#include <optional>
#include <random>

#include "driver.h"

namespace capture {
// What a call returns; nothing where no capture has to do with it, and the driver goes on as always.
using Answer = std::optional<CUresult>;

Answer work(CUstream stream, const std::function<void()> &work, const Uses &uses);
Answer record(CUevent event, CUstream stream);
Answer wait(CUstream stream, CUevent event, bool recorded);  // recorded: at some time, captured or not
Answer ask(CUstream stream);                                 // the host waits for it, or queries it
Answer ask(CUevent event);
Answer elapsed(CUevent event);
Answer context();  // the host waits for all streams
Answer unsafe();   // a call that no stream sees, and that a replay would not repeat: an allocation, say
void forget(CUevent event);
void forget(CUstream stream);
void forget_all();
const char *explain(CUresult result);
}  // namespace capture

namespace fake {
void delay(std::mt19937 &random);  // what comes before every job
size_t next_seed();
CUresult context_error();  // where no context is current that lives
CUresult failure();        // of the context, since which it does nothing
// Streams, events, modules, functions and graphs exist from `now_exists` to `destroy`, or to the end of the context.
void now_exists(const void *handle, std::function<void()> end);
bool exists(const void *handle);
bool is_stream(CUstream stream);
bool destroy(const void *handle);  // whether it existed
}  // namespace fake

// What gives something back needs a context, even one that has failed; everything else needs one in which nothing has.
#define NEED_LIVE_CONTEXT \
  if (CUresult error = fake::context_error()) return error;
#define NEED_CONTEXT \
  NEED_LIVE_CONTEXT \
  if (CUresult error = fake::failure()) return error;
#define NEED(HANDLE) \
  if (!fake::exists(HANDLE)) return CUDA_ERROR_INVALID_HANDLE;
#define NEED_STREAM(HANDLE) \
  if (!fake::is_stream(HANDLE)) return CUDA_ERROR_INVALID_HANDLE;
#define ANSWER(CAPTURE) \
  if (auto answer = capture::CAPTURE) return *answer;
