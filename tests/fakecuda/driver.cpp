// A CUDA driver in host memory: the part of libcuda.so.1 that PyCUDA and Pebbler call.
//
// Addresses of device memory are not readable by the host program: they lie in a range without access rights. The jobs of
// the streams work on a shadow of that range, which is mapped page by page to a bounded memory file. Memory is poisoned
// (all bits set: not a number) when it is allocated. What is not mapped has no shadow: who touches it fails the context.
// Every stream is a thread that takes its jobs in order, so a wait that is missing is a real race; random delays from a
// seed make it show. There is one copy engine a direction.
//
// Where the documentation leaves open what a real driver does, this one refuses.
//
// Set by environment variables, or by the fakecuda_ calls at the end: FAKECUDA_MEMORY (bytes), FAKECUDA_DELAY_US (longest
// delay before a job), FAKECUDA_SEED, FAKECUDA_REFUSE (pass:number, ... of algorithms that cuDNN refuses at launch); and
// by environment variables alone FAKECUDA_VERSION (of CUDA, 13000 for 13.0) and FAKECUDA_INIT (the status of cuInit).
#include "capture.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {
using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

constexpr size_t SPACE = size_t(1) << 38;  // addresses for the device, in bytes
constexpr size_t PAGE = 4096;
constexpr size_t LARGE_PAGE = size_t(2) << 20;
constexpr int POISON = 0xFF;

size_t setting(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, nullptr, 0) : otherwise;
}

size_t rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Ranges of one line of numbers, by first fit.
struct Ranges {
  std::map<size_t, size_t> used;
  bool take(size_t n, size_t limit, size_t unit, size_t *at) {
    size_t place = 0;
    for (auto &[begin, size] : used) {
      if (begin >= place + n) break;
      place = rounded(begin + size, unit);
    }
    if (n > limit || place > limit - n) return false;
    used[place] = n;
    *at = place;
    return true;
  }
  size_t total() const {
    size_t sum = 0;
    for (auto &range : used) sum += range.second;
    return sum;
  }
};

struct Mapping {
  size_t size, physical;
  int access;  // PROT_ of mmap
  bool own;    // of cuMemAlloc, else of a handle
};

struct Handle {
  size_t size, physical;
  int users;  // mappings, and 1 until it is released
};

struct Memory {
  std::recursive_mutex m;
  int file = -1, trash = -1;
  size_t capacity = 0;
  char *device = nullptr, *shadow = nullptr;  // of the shadow, the second half stands for addresses of no device
  Ranges physical, addresses;
  std::map<size_t, Mapping> mapped;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  CUmemGenericAllocationHandle next_handle = 1;

  void start() {
    capacity = setting("FAKECUDA_MEMORY", size_t(1) << 30);
    file = memfd_create("device memory", 0);
    trash = memfd_create("no memory", 0);
    auto reserve = [](size_t n) { return (char *)mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
    device = reserve(SPACE);
    shadow = reserve(2 * SPACE);
    if (file < 0 || trash < 0 || ftruncate(file, SPACE) || ftruncate(trash, LARGE_PAGE) || device == MAP_FAILED || shadow == MAP_FAILED) abort();
    std::vector<char> poison(LARGE_PAGE, (char)POISON);
    if (pwrite(trash, poison.data(), LARGE_PAGE, 0) != ssize_t(LARGE_PAGE)) abort();
  }
  bool create(size_t n, size_t *at) {
    if (n > capacity || physical.total() > capacity - n) return false;
    return physical.take(n, SPACE, PAGE, at);
  }
  void map(size_t address, const Mapping &one) {
    if (mmap(shadow + address, one.size, one.access, MAP_SHARED | MAP_FIXED, file, one.physical) == MAP_FAILED) abort();
  }
  void poison(size_t address, size_t n) { memset(shadow + address, POISON, n); }
  void unmap(size_t address, size_t n) {
    if (mmap(shadow + address, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) abort();
  }
  void destroy(size_t at) {
    size_t n = physical.used.at(at);
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n);
    physical.used.erase(at);
  }
  void let_go(std::map<CUmemGenericAllocationHandle, Handle>::iterator it) {
    if (--it->second.users == 0) destroy(it->second.physical), handles.erase(it);
  }
  // Whether all bytes of a range are mapped and accessible.
  bool holds(CUdeviceptr p, size_t n) {
    std::lock_guard l(m);
    size_t at = p - (CUdeviceptr)device, end = at + n;
    auto it = mapped.upper_bound(at);
    if (it == mapped.begin()) return false;
    for (--it; it != mapped.end() && it->first <= at && it->second.access; ++it) {
      at = std::max(at, it->first + it->second.size);
      if (at >= end && it->first < at) return (p - (CUdeviceptr)device) < at;
    }
    return false;
  }
  char *at(CUdeviceptr p) {
    size_t offset = p - (CUdeviceptr)device;
    return shadow + (offset < SPACE ? offset : SPACE + p % SPACE);
  }
  bool mapped_within(size_t address, size_t n) {
    auto next = mapped.lower_bound(address);
    return next != mapped.end() && next->first < address + n;
  }
  // Free what cuMemAlloc has allocated.
  void free(std::map<size_t, Mapping>::iterator it) {
    unmap(it->first, it->second.size);
    destroy(it->second.physical);
    addresses.used.erase(it->first);
    mapped.erase(it);
  }
} memory;

std::atomic<int> sticky{0};
void fail(CUresult error) { int none = 0; sticky.compare_exchange_strong(none, error); }

// --- touching what is not mapped: the context has failed; the job goes on with poison, and what it writes goes nowhere
struct sigaction fault_handler_before;
constexpr size_t MOST_PATCHES = 1 << 16;
std::atomic<size_t> patches{0};
char *patched[MOST_PATCHES];

void on_fault(int number, siginfo_t *info, void *) {
  char *at = (char *)info->si_addr;
  if (at < memory.shadow || at >= memory.shadow + 2 * SPACE) {
    sigaction(number, &fault_handler_before, nullptr);  // the instruction comes again, and is none of ours
    return;
  }
  fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  size_t offset = (at - memory.shadow) / PAGE * PAGE, end = (offset / LARGE_PAGE + 1) * LARGE_PAGE;
  size_t number_of_patch = patches++;
  if (number_of_patch >= MOST_PATCHES) abort();
  patched[number_of_patch] = memory.shadow + offset;
  if (mmap(memory.shadow + offset, end - offset, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, memory.trash, 0) == MAP_FAILED) abort();
}

void unpatch() {
  std::lock_guard l(memory.m);
  for (size_t i = 0; i < patches; ++i) {
    size_t offset = patched[i] - memory.shadow, begin = offset / LARGE_PAGE * LARGE_PAGE;
    memory.unmap(offset, begin + LARGE_PAGE - offset);
    auto it = memory.mapped.upper_bound(offset);
    if (it != memory.mapped.begin() && (--it)->first + it->second.size > offset) memory.map(it->first, it->second);
  }
  patches = 0;
}

std::atomic<unsigned long long> unpinned{0}, launches{0}, copies{0};
std::atomic<long long> failing_launch{-1}, failing_copy{-1};
std::atomic<size_t> longest_delay_us{0}, seed{0};

struct Done {
  std::mutex m;
  std::condition_variable changed;
  bool done = false;
  Clock::time_point at;
  void wait() { Lock l(m); changed.wait(l, [&] { return done; }); }
};
struct Event { std::shared_ptr<Done> record; };

struct Stream {
  std::mutex m;
  std::condition_variable changed;
  struct Job {
    std::function<void()> work;
    Uses uses;
  };
  std::deque<Job> jobs;
  Uses used_now;  // by the job that runs
  size_t pending = 0;
  bool stop = false;
  std::mt19937 random;
  std::thread thread;
  explicit Stream(size_t seed) : random(seed), thread([this] { work(); }) {}
  ~Stream() {
    { Lock l(m); stop = true; }
    changed.notify_all();
    thread.join();
  }
  void work() {
    for (;;) {
      Job job;
      {
        Lock l(m);
        changed.wait(l, [&] { return stop || !jobs.empty(); });
        if (jobs.empty()) return;
        job = std::move(jobs.front());
        jobs.pop_front();
        used_now = job.uses;
      }
      fake::delay(random);
      job.work();
      { Lock l(m); --pending; used_now.clear(); }
      changed.notify_all();
    }
  }
  void push(std::function<void()> work, Uses uses = {}) {
    { Lock l(m); jobs.push_back({std::move(work), std::move(uses)}); ++pending; }
    changed.notify_all();
  }
  // Whether a job that is not done yet works on a range of addresses.
  bool uses(CUdeviceptr begin, size_t n) {
    auto among = [=](const Uses &all) {
      for (auto &[at, size] : all)
        if ((CUdeviceptr)at < begin + n && begin < (CUdeviceptr)at + size) return true;
      return false;
    };
    Lock l(m);
    for (auto &job : jobs) if (among(job.uses)) return true;
    return among(used_now);
  }
  void finish() { Lock l(m); changed.wait(l, [&] { return pending == 0; }); }
  bool idle() { Lock l(m); return pending == 0; }
};

std::mutex streams_m;
std::vector<Stream *> streams;
size_t streams_made = 0;
Stream *null_stream = nullptr;

void finish_all() {
  std::vector<Stream *> all;
  { Lock l(streams_m); all = streams; }
  for (auto *stream : all) stream->finish();
}

// The null stream comes after everything issued so far.
Stream *stream_of(CUstream handle) {
  if ((uintptr_t)handle > 2) return (Stream *)handle;
  finish_all();
  return null_stream;
}

// Work of a context that has failed is not done any more, as on a real device.
CUresult push_work(CUstream stream, std::function<void()> work, Uses uses = {}) {
  auto job = [work = std::move(work)] { if (!sticky) work(); };
  if (auto captured = capture::work(stream, job, uses)) return *captured;
  stream_of(stream)->push(job, std::move(uses));
  return CUDA_SUCCESS;
}

std::mutex pinned_m;
std::map<char *, size_t> pinned;
bool is_pinned(const void *p, size_t n) {
  Lock l(pinned_m);
  auto it = pinned.upper_bound((char *)p);
  if (it == pinned.begin()) return false;
  --it;
  return (char *)p + n <= it->first + it->second;
}

// The primary context begins with the first retain and ends with the last release; the next is another one.
struct Context { bool live = true; };
std::vector<std::unique_ptr<Context>> primaries;
unsigned long long retains = 0, releases = 0;
thread_local std::vector<CUcontext> contexts;
bool started = false;
std::mutex engines[2];

// Streams, events, modules, functions and graphs that exist, each with what destroys it; all belong to the primary context.
std::mutex handles_m;
std::map<const void *, std::function<void()>> handles;
}  // namespace

namespace fake {
CUresult context_error() {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return ((Context *)contexts.back())->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void now_exists(const void *handle, std::function<void()> end) { Lock l(handles_m); handles[handle] = std::move(end); }
bool exists(const void *handle) { Lock l(handles_m); return handles.count(handle); }
bool is_stream(CUstream s) { return (uintptr_t)s <= 2 || exists(s); }
bool destroy(const void *handle) {
  std::function<void()> end;
  {
    Lock l(handles_m);
    auto it = handles.find(handle);
    if (it == handles.end()) return false;
    end = std::move(it->second);
    handles.erase(it);
  }
  end();
  return true;
}
}  // namespace fake

namespace {
using namespace fake;

struct Function { void (*call)(const unsigned *, const char *); };
struct Module {
  void *library;
  std::vector<Function *> functions;
  ~Module() { for (auto *one : functions) destroy(one); }
};

void end_of_context() {
  finish_all();
  for (;;) {
    const void *one;
    { Lock l(handles_m); if (handles.empty()) break; one = handles.begin()->first; }
    destroy(one);
  }
  { Lock l(pinned_m); pinned.clear(); }
  std::lock_guard l(memory.m);
  for (auto it = memory.mapped.begin(); it != memory.mapped.end();) {
    auto one = it++;
    if (one->second.own) memory.free(one);
  }
}

bool is_memory_of_device(const CUmemAllocationProp *prop) {
  return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop->location.id == 0;
}

// Algorithms of cuDNN that are refused at launch: a bit each, by pass.
std::atomic<unsigned> refused[3];
const char *const PASSES[] = {"forward", "backward_data", "backward_filter"};
void read_refused(const char *text) {
  for (; text && *text; text = strchr(text, ',') ? strchr(text, ',') + 1 : nullptr)
    for (int pass = 0; pass < 3; ++pass) {
      size_t n = strlen(PASSES[pass]);
      if (!strncmp(text, PASSES[pass], n) && text[n] == ':') refused[pass] |= 1u << atoi(text + n + 1);
    }
}

enum Direction { TO_DEVICE, TO_HOST, INSIDE };

CUresult copy(CUdeviceptr device, void *other, size_t n, CUstream stream, bool async, Direction direction) {
  if (!memory.holds(device, n)) return CUDA_ERROR_INVALID_VALUE;
  if (direction == INSIDE && !memory.holds((CUdeviceptr)other, n)) return CUDA_ERROR_INVALID_VALUE;
  NEED_STREAM(stream)
  Uses uses = {{(void *)device, n}};
  if (direction == INSIDE) uses.push_back({other, n});
  bool fails = (long long)copies++ == failing_copy;
  CUresult pushed = push_work(stream, [=] {
    if (fails) { fail(CUDA_ERROR_ECC_UNCORRECTABLE); return; }
    char *here = memory.at(device);
    if (direction == INSIDE) { memmove(here, memory.at((CUdeviceptr)other), n); return; }
    Lock engine(engines[direction]);
    if (direction == TO_DEVICE) memcpy(here, other, n); else memcpy(other, here, n);
  }, std::move(uses));
  if (pushed) return pushed;
  bool staged = direction != INSIDE && !is_pinned(other, n);
  if (async && staged) ++unpinned;
  if (!async || staged) stream_of(stream)->finish();
  return (CUresult)(async ? 0 : sticky.load());
}

template <class T> CUresult set_memory(CUdeviceptr device, T value, size_t n, CUstream stream) {
  if (device % sizeof(T) || !memory.holds(device, n * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
  NEED_STREAM(stream)
  return push_work(stream, [=] {
    T *here = (T *)memory.at(device);
    std::fill(here, here + n, value);
  }, {{(void *)device, n * sizeof(T)}});
}
}  // namespace

namespace fake {
void delay(std::mt19937 &random) {
  if (size_t most = longest_delay_us) std::this_thread::sleep_for(std::chrono::microseconds(random() % (most + 1)));
}
size_t next_seed() { Lock l(streams_m); return seed * 1000 + ++streams_made; }
CUresult failure() { return (CUresult)sticky.load(); }
}  // namespace fake

extern "C" {
// --- devices and contexts ---------------------------------------------------------------------------------------------
CUresult cuInit(unsigned) {
  if (started) return CUDA_SUCCESS;
  if (size_t status = setting("FAKECUDA_INIT", CUDA_SUCCESS)) return (CUresult)status;
  memory.start();
  longest_delay_us = setting("FAKECUDA_DELAY_US", 0);
  seed = setting("FAKECUDA_SEED", 0);
  null_stream = new Stream(seed);
  streams.push_back(null_stream);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &fault_handler_before);
  read_refused(getenv("FAKECUDA_REFUSE"));
  started = true;
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *v) { *v = int(setting("FAKECUDA_VERSION", CUDA_VERSION)); return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult r, const char **text) {
  switch (r) {
    case CUDA_SUCCESS: *text = "no error"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *text = "invalid device context"; break;
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: *text = "context is destroyed"; break;
    case CUDA_ERROR_INVALID_HANDLE: *text = "invalid resource handle"; break;
    case CUDA_ERROR_MISALIGNED_ADDRESS: *text = "misaligned address"; break;
    case CUDA_ERROR_NOT_FOUND: *text = "named symbol not found"; break;
    case CUDA_ERROR_NOT_READY: *text = "device not ready"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = "unspecified launch failure"; break;
    case CUDA_ERROR_ECC_UNCORRECTABLE: *text = "uncorrectable ECC error encountered"; break;
    case CUDA_ERROR_NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: *text = "system has unsupported display driver / cuda driver combination"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *text = "operation not supported by the fake driver"; break;
    default: *text = capture::explain(r);
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *d, int i) { *d = 0; return i ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *text, int n, CUdevice) { snprintf(text, n, "Fake CUDA device (host memory)"); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *n, CUdevice) { *n = memory.capacity; return CUDA_SUCCESS; }
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice) { *major = 9; *minor = 0; return CUDA_SUCCESS; }
CUresult cuDeviceGetPCIBusId(char *text, int n, CUdevice) { snprintf(text, n, "0000:00:00.0"); return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 16; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *v = 32; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = 9; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *v = 2; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *v = 1; break;
    default: *v = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice) {
  if (retains == releases) primaries.push_back(std::make_unique<Context>());
  ++retains;
  *c = (CUcontext)primaries.back().get();
  return CUDA_SUCCESS;
}
// Unlike cuCtxDestroy, this takes the context off no stack.
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  if (retains == releases) return CUDA_ERROR_INVALID_CONTEXT;
  if (++releases == retains) {
    end_of_context();
    primaries.back()->live = false;
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  *flags = 0;
  *active = retains != releases;
  return CUDA_SUCCESS;
}
// For contexts of cuCtxCreate alone, which this driver does not make.
CUresult cuCtxDetach(CUcontext) { return CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuCtxPushCurrent(CUcontext c) {
  for (auto &one : primaries)
    if (c == (CUcontext)one.get()) {
      if (!one->live) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      contexts.push_back(c);
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxPopCurrent(CUcontext *c) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (c) *c = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *d) { NEED_LIVE_CONTEXT *d = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetApiVersion(CUcontext, unsigned *v) { *v = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) {
  NEED_LIVE_CONTEXT
  ANSWER(context())
  finish_all();
  return (CUresult)sticky.load();
}

// --- memory -----------------------------------------------------------------------------------------------------------
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
  NEED_CONTEXT
  std::lock_guard l(memory.m);
  *total = memory.capacity;
  *free_bytes = memory.capacity - memory.physical.total();
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *p, size_t n) {
  NEED_CONTEXT
  ANSWER(unsafe())
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard l(memory.m);
  size_t address, at, size = rounded(n, PAGE);
  if (!memory.create(size, &at)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!memory.addresses.take(rounded(size + 1, LARGE_PAGE), SPACE, LARGE_PAGE, &address)) abort();
  memory.map(address, memory.mapped[address] = {size, at, PROT_READ | PROT_WRITE, true});
  memory.poison(address, size);
  *p = (CUdeviceptr)(memory.device + address);
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  NEED_LIVE_CONTEXT
  ANSWER(unsafe())
  finish_all();
  std::lock_guard l(memory.m);
  auto it = memory.mapped.find(p - (CUdeviceptr)memory.device);
  if (it == memory.mapped.end() || !it->second.own) return CUDA_ERROR_INVALID_VALUE;
  memory.free(it);
  return (CUresult)sticky.load();
}
CUresult cuMemGetAddressRange(CUdeviceptr *begin, size_t *n, CUdeviceptr p) {
  std::lock_guard l(memory.m);
  auto it = memory.mapped.upper_bound(p - (CUdeviceptr)memory.device);
  if (it == memory.mapped.begin()) return CUDA_ERROR_NOT_FOUND;
  --it;
  *begin = (CUdeviceptr)memory.device + it->first;
  *n = it->second.size;
  return p < *begin + *n ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuMemHostAlloc(void **p, size_t n, unsigned) {
  NEED_CONTEXT
  ANSWER(unsafe())
  *p = aligned_alloc(PAGE, rounded(n, PAGE));
  if (!*p) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(*p, POISON, n);
  Lock l(pinned_m);
  pinned[(char *)*p] = n;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void *p) {
  NEED_LIVE_CONTEXT
  ANSWER(unsafe())
  finish_all();
  { Lock l(pinned_m); if (!pinned.erase((char *)p)) return CUDA_ERROR_INVALID_VALUE; }
  free(p);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr d, const void *s, size_t n) { NEED_CONTEXT return copy(d, (void *)s, n, 0, false, TO_DEVICE); }
CUresult cuMemcpyDtoH(void *d, CUdeviceptr s, size_t n) { NEED_CONTEXT return copy(s, d, n, 0, false, TO_HOST); }
CUresult cuMemcpyDtoD(CUdeviceptr d, CUdeviceptr s, size_t n) { NEED_CONTEXT return copy(d, (void *)s, n, 0, false, INSIDE); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr d, const void *s, size_t n, CUstream q) { NEED_CONTEXT return copy(d, (void *)s, n, q, true, TO_DEVICE); }
CUresult cuMemcpyDtoHAsync(void *d, CUdeviceptr s, size_t n, CUstream q) { NEED_CONTEXT return copy(s, d, n, q, true, TO_HOST); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream q) { NEED_CONTEXT return copy(d, (void *)s, n, q, true, INSIDE); }
#define SET_MEMORY(NAME, T) \
  CUresult NAME##Async(CUdeviceptr d, T v, size_t n, CUstream q) { NEED_CONTEXT return set_memory<T>(d, v, n, q); } \
  CUresult NAME(CUdeviceptr d, T v, size_t n) { NEED_CONTEXT CUresult r = set_memory<T>(d, v, n, 0); null_stream->finish(); return r; }
SET_MEMORY(cuMemsetD8, unsigned char)
SET_MEMORY(cuMemsetD16, unsigned short)
SET_MEMORY(cuMemsetD32, unsigned)

// --- virtual memory ---------------------------------------------------------------------------------------------------
CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags) {
  if (!is_memory_of_device(prop)) return CUDA_ERROR_INVALID_VALUE;
  *n = LARGE_PAGE;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t n, const CUmemAllocationProp *prop, unsigned long long flags) {
  NEED_CONTEXT
  ANSWER(unsafe())
  if (!n || n % LARGE_PAGE || !is_memory_of_device(prop) || flags) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard l(memory.m);
  size_t at;
  if (!memory.create(n, &at)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<char> poison(LARGE_PAGE, (char)POISON);
  for (size_t done = 0; done < n; done += LARGE_PAGE)
    if (pwrite(memory.file, poison.data(), LARGE_PAGE, at + done) != ssize_t(LARGE_PAGE)) abort();
  *handle = memory.next_handle++;
  memory.handles[*handle] = {n, at, 1};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ANSWER(unsafe())
  std::lock_guard l(memory.m);
  auto it = memory.handles.find(handle);
  if (it == memory.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  memory.let_go(it);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
  NEED_CONTEXT
  ANSWER(unsafe())
  if (!n || n % LARGE_PAGE || alignment & (alignment - 1) || alignment > LARGE_PAGE || wish % LARGE_PAGE || flags) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard l(memory.m);
  size_t address;
  if (!memory.addresses.take(n + LARGE_PAGE, SPACE, LARGE_PAGE, &address)) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = (CUdeviceptr)(memory.device + address);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  ANSWER(unsafe())
  std::lock_guard l(memory.m);
  size_t address = p - (CUdeviceptr)memory.device;
  auto range = memory.addresses.used.find(address);
  if (range == memory.addresses.used.end() || range->second != n + LARGE_PAGE || memory.mapped_within(address, n)) return CUDA_ERROR_INVALID_VALUE;
  memory.addresses.used.erase(range);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  NEED_CONTEXT
  ANSWER(unsafe())
  std::lock_guard l(memory.m);
  auto it = memory.handles.find(handle);
  size_t address = p - (CUdeviceptr)memory.device;
  if (it == memory.handles.end() || offset || n != it->second.size || address % LARGE_PAGE || flags) return CUDA_ERROR_INVALID_VALUE;
  auto range = memory.addresses.used.upper_bound(address);
  if (range == memory.addresses.used.begin()) return CUDA_ERROR_INVALID_VALUE;
  --range;
  if (address + n > range->first + range->second - LARGE_PAGE || memory.mapped_within(address, n)) return CUDA_ERROR_INVALID_VALUE;
  memory.mapped[address] = {n, it->second.physical, PROT_NONE, false};  // until cuMemSetAccess
  ++it->second.users;
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *access, size_t count) {
  NEED_CONTEXT
  ANSWER(unsafe())
  if (count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->location.id) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard l(memory.m);
  size_t address = p - (CUdeviceptr)memory.device;
  std::vector<std::map<size_t, Mapping>::iterator> all;
  for (size_t done = 0; done < n; done += all.back()->second.size) {
    auto it = memory.mapped.find(address + done);
    if (it == memory.mapped.end() || it->second.own || done + it->second.size > n) return CUDA_ERROR_INVALID_VALUE;
    all.push_back(it);
  }
  int flags = access->flags;
  for (auto it : all) {
    it->second.access = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_NONE;
    memory.map(it->first, it->second);
  }
  return CUDA_SUCCESS;
}
// Whoever unmaps what work under way may use has a fault on a real device, sooner or later.
CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  ANSWER(unsafe())
  {
    Lock l(streams_m);
    for (auto *stream : streams) if (stream->uses(p, n)) fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  std::lock_guard l(memory.m);
  size_t address = p - (CUdeviceptr)memory.device, end = address + n;
  while (address < end) {
    auto it = memory.mapped.find(address);
    if (it == memory.mapped.end() || it->second.own || address + it->second.size > end) return CUDA_ERROR_INVALID_VALUE;
    memory.unmap(address, it->second.size);
    for (auto handle = memory.handles.begin(); handle != memory.handles.end(); ++handle)
      if (handle->second.physical == it->second.physical) { memory.let_go(handle); break; }
    address += it->second.size;
    memory.mapped.erase(it);
  }
  return CUDA_SUCCESS;
}

// --- streams and events -----------------------------------------------------------------------------------------------
CUresult cuStreamCreate(CUstream *s, unsigned) {
  NEED_CONTEXT
  ANSWER(unsafe())
  auto *stream = new Stream(fake::next_seed());
  { Lock l(streams_m); streams.push_back(stream); }
  now_exists(stream, [stream] {
    capture::forget((CUstream)stream);
    stream->finish();
    { Lock l(streams_m); std::erase(streams, stream); }
    delete stream;
  });
  *s = (CUstream)stream;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream s) {
  NEED_LIVE_CONTEXT
  return destroy(s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamSynchronize(CUstream s) {
  NEED_LIVE_CONTEXT
  NEED_STREAM(s)
  ANSWER(ask(s))
  stream_of(s)->finish();
  return (CUresult)sticky.load();
}
CUresult cuStreamQuery(CUstream s) {
  NEED_LIVE_CONTEXT
  NEED_STREAM(s)
  ANSWER(ask(s))
  return stream_of(s)->idle() ? (CUresult)sticky.load() : CUDA_ERROR_NOT_READY;
}
CUresult cuEventCreate(CUevent *e, unsigned) {
  NEED_CONTEXT
  auto *event = new Event;
  now_exists(event, [event] {
    capture::forget((CUevent)event);
    delete event;
  });
  *e = (CUevent)event;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent e) {
  NEED_LIVE_CONTEXT
  return destroy(e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventRecord(CUevent e, CUstream s) {
  NEED_LIVE_CONTEXT
  NEED(e)
  NEED_STREAM(s)
  ANSWER(record(e, s))
  auto record = std::make_shared<Done>();
  ((Event *)e)->record = record;
  stream_of(s)->push([record] {
    Lock l(record->m);
    record->done = true;
    record->at = Clock::now();
    record->changed.notify_all();
  });
  return (CUresult)sticky.load();
}
// Waiting for an event that was never recorded is no wait, as in CUDA.
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  NEED_LIVE_CONTEXT
  NEED(e)
  NEED_STREAM(s)
  auto record = ((Event *)e)->record;
  ANSWER(wait(s, e, record != nullptr))
  if (record) stream_of(s)->push([record] { record->wait(); });
  return (CUresult)sticky.load();
}
CUresult cuEventQuery(CUevent e) {
  NEED_LIVE_CONTEXT
  NEED(e)
  ANSWER(ask(e))
  auto record = ((Event *)e)->record;
  if (record) { Lock l(record->m); if (!record->done) return CUDA_ERROR_NOT_READY; }
  return (CUresult)sticky.load();
}
CUresult cuEventSynchronize(CUevent e) {
  NEED_LIVE_CONTEXT
  NEED(e)
  ANSWER(ask(e))
  if (auto record = ((Event *)e)->record) record->wait();
  return (CUresult)sticky.load();
}
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
  NEED_LIVE_CONTEXT
  NEED(a)
  NEED(b)
  ANSWER(elapsed(a))
  ANSWER(elapsed(b))
  auto first = ((Event *)a)->record, second = ((Event *)b)->record;
  if (!first || !second) return CUDA_ERROR_INVALID_HANDLE;
  for (auto &record : {first, second}) { Lock l(record->m); if (!record->done) return CUDA_ERROR_NOT_READY; }
  *ms = std::chrono::duration<float, std::milli>(second->at - first->at).count();
  return (CUresult)sticky.load();
}

// --- kernels ----------------------------------------------------------------------------------------------------------
// What nvcc's stand-in makes is a shared library; its section headers, which come last, tell how long it is.
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *, void **) {
  NEED_CONTEXT
  ANSWER(unsafe())
  auto *header = (const Elf64_Ehdr *)image;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
  size_t n = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
  // The linker takes a path that it knows for the library that it has: the file of every image stays open, so that no
  // other gets its number.
  static std::mutex libraries_m;
  static std::map<std::string, void *> libraries;
  std::lock_guard<std::mutex> l(libraries_m);
  void *&library = libraries[std::string((const char *)image, n)];
  if (!library) {
    int file = memfd_create("module", 0);
    if (file < 0 || write(file, image, n) != ssize_t(n)) return CUDA_ERROR_OUT_OF_MEMORY;
    library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) { close(file); fprintf(stderr, "fake driver: %s\n", dlerror()); return CUDA_ERROR_INVALID_IMAGE; }
  }
  auto *made = new Module{library, {}};
  now_exists(made, [made] { delete made; });
  *module = (CUmodule)made;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *m, const void *image) { return cuModuleLoadDataEx(m, image, 0, nullptr, nullptr); }
CUresult cuModuleUnload(CUmodule m) {
  NEED_LIVE_CONTEXT
  ANSWER(unsafe())
  finish_all();
  return destroy(m) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  NEED_LIVE_CONTEXT
  NEED(m)
  void *call = dlsym(((Module *)m)->library, (std::string(name) + "_on_host").c_str());
  if (!call) return CUDA_ERROR_NOT_FOUND;
  auto *function = new Function{(void (*)(const unsigned *, const char *))call};
  now_exists(function, [function] { delete function; });
  ((Module *)m)->functions.push_back(function);
  *f = (CUfunction)function;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute attribute, CUfunction) {
  *v = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }  // PyCUDA calls it before every launch
CUresult cuFuncSetSharedSize(CUfunction, unsigned) { return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, CUstream s, void **, void **extra) {
  NEED_CONTEXT
  NEED(f)
  NEED_STREAM(s)
  if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  const char *arguments = nullptr;
  size_t n = 0;
  for (void **entry = extra; entry && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) arguments = (const char *)entry[1];
    if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) n = *(size_t *)entry[1];
  }
  bool fails = (long long)launches++ == failing_launch;
  // The types of the arguments are not known here: what looks like a device address is one, of unknown length.
  Uses uses;
  for (size_t at = 0; at + sizeof(CUdeviceptr) <= n; at += sizeof(CUdeviceptr)) {
    CUdeviceptr value = *(const CUdeviceptr *)(arguments + at);
    if (value - (CUdeviceptr)memory.device < SPACE) uses.push_back({(const void *)value, 1});
  }
  return push_work(s, [=, packed = std::vector<char>(arguments, arguments + n)] {
    if (fails) { fail(CUDA_ERROR_LAUNCH_FAILED); return; }
    const unsigned dimensions[] = {gx, gy, gz, bx, by, bz};
    ((Function *)f)->call(dimensions, packed.data());
  }, std::move(uses));
}
CUresult cuLaunchHostFunc(CUstream s, CUhostFn call, void *data) {
  NEED_CONTEXT
  NEED_STREAM(s)
  return push_work(s, [=] { call(data); });
}

// --- calls of the fake driver's own -----------------------------------------------------------------------------------
void *fakecuda_shadow(const void *p, size_t alignment) {
  if (!p) return nullptr;
  if ((uintptr_t)p % alignment) fail(CUDA_ERROR_MISALIGNED_ADDRESS);
  return memory.at((CUdeviceptr)p);
}
bool fakecuda_holds(const void *p, size_t n) { return memory.holds((CUdeviceptr)p, n); }
CUresult fakecuda_enqueue(CUstream s, std::function<void()> *work, const Uses &uses) {
  std::unique_ptr<std::function<void()>> owned(work);
  NEED_CONTEXT
  NEED_STREAM(s)
  bool fails = (long long)launches++ == failing_launch;
  return push_work(s, [fails, call = std::move(*owned)] { if (fails) fail(CUDA_ERROR_LAUNCH_FAILED); else call(); }, uses);
}
bool fakecuda_refuses(int pass, int algorithm) { return refused[pass] >> algorithm & 1; }
size_t fakecuda_turn(void) {
  static std::atomic<size_t> turns{0};
  return std::mt19937(seed * 1000003 + turns++)();
}
void fakecuda_configure(size_t capacity, size_t delay_us, size_t new_seed) {
  cuInit(0);
  memory.capacity = capacity;
  longest_delay_us = delay_us;
  seed = new_seed;
  streams_made = 0;
}
// The n-th launch or copy from now on fails; negative: none.
void fakecuda_fail(long long launch, long long copy_) {
  failing_launch = launch < 0 ? -1 : (long long)launches + launch;
  failing_copy = copy_ < 0 ? -1 : (long long)copies + copy_;
}
// cuDNN refuses launches of an algorithm of a pass from now on.
void fakecuda_refuse(int pass, int algorithm) { refused[pass] |= 1u << algorithm; }
// Forget failures, those to come as well, as a new process would.
void fakecuda_recover(void) {
  capture::forget_all();
  finish_all();
  unpatch();
  sticky = 0;
  fakecuda_fail(-1, -1);
  for (auto &one : refused) one = 0;
}
unsigned long long fakecuda_unpinned_copies(void) { return unpinned; }
unsigned long long fakecuda_bytes_in_use(void) { std::lock_guard l(memory.m); return memory.physical.total(); }
unsigned long long fakecuda_streams(void) { Lock l(streams_m); return streams.size() - 1; }
unsigned long long fakecuda_retains(void) { return retains; }
unsigned long long fakecuda_releases(void) { return releases; }
unsigned long long fakecuda_contexts(void) { return contexts.size(); }
}
