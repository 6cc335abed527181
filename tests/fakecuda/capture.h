// What driver.cpp and graph.cpp ask of each other: calls on a stream that is being captured become nodes of a graph.
#pragma once
#include <cuda.h>

#include <functional>
#include <optional>
#include <random>

namespace capture {
// What a call returns; nothing where no capture has to do with it, and the driver goes on as always.
using Answer = std::optional<CUresult>;

Answer work(CUstream stream, const std::function<void()> &work);
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
}  // namespace fake

extern "C" CUresult fakecuda_enqueue(CUstream, std::function<void()> *);
