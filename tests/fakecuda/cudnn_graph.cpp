// The slice of cuDNN 9's graph ("backend") API that NVIDIA's cudnn-frontend calls for a single convolution.
//
// A descriptor is what was set in it, by attribute: bytes, or other descriptors, of which it keeps copies. Engines are the
// legacy algorithms by their numbers. Two more do harm on purpose: one for tensor cores, whose results are NaN here, and one
// that the heuristics propose although its plan cannot be made.
#include "convolution.h"

#include <map>
#include <memory>
#include <vector>

namespace {
enum Type { DESCRIPTOR = 15 };
enum Kind { ENGINE = 2, ENGINE_CONFIG = 3, HEURISTICS = 4, PLAN = 5, FORWARD_OPERATION = 10, FILTER_OPERATION = 11, DATA_OPERATION = 12, GRAPH = 15 };
enum Attribute {
  STRIDES = 103, PADDINGS = 105, DILATIONS = 102,
  HEURISTICS_MODE = 200, HEURISTICS_GRAPH, HEURISTICS_RESULTS,
  CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303, CONFIG_SHARED = 304,
  PLAN_CONFIG = 401, PLAN_WORKSPACE,
  GRAPH_OPERATIONS = 801,
  DIMENSIONS = 902, TENSOR_STRIDES, UNIQUE_ID = 906,
  PACK_IDS = 1000, PACK_POINTERS, PACK_WORKSPACE = 1003,
  ENGINE_GRAPH = 1300, ENGINE_INDEX, ENGINE_NOTES = 1303, ENGINE_BEHAVIOUR = 1305
};
enum Note { TENSOR_CORE = 0, FFT = 3, NONDETERMINISTIC = 4, WINOGRAD = 5 };
enum Mode { FALLBACK = 2 };
constexpr int64_t TENSOR_CORES = 90, UNBUILDABLE = 91;
// Bytes of an element of each type of attribute: handle, data type, boolean, int64, float, double, pointer, ...
constexpr size_t SIZES[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 0, 4, 4, 4, 4, 4, 4, 4, 4, 1};

struct Descriptor {
  int kind = 0;
  std::map<int, std::vector<char>> values;
  std::map<int, std::vector<std::shared_ptr<Descriptor>>> parts;

  template <class T> std::vector<T> all(int name) const {
    auto found = values.find(name);
    if (found == values.end()) return {};
    auto *first = (const T *)found->second.data();
    return {first, first + found->second.size() / sizeof(T)};
  }
  template <class T> void set(int name, std::vector<T> list) { values[name].assign((char *)list.data(), (char *)(list.data() + list.size())); }
  const Descriptor &part(int name) const { return *parts.at(name).at(0); }
};

// A convolution as an operation of a graph: the attributes of its descriptor and tensors follow those of its factors.
struct Operation {
  Pass pass;
  Tensor x, w, y;
  int64_t x_id, w_id, y_id;
  Convolution convolution;
};

Tensor tensor_of(const Descriptor &one, bool &contiguous) {
  auto sizes = one.all<int64_t>(DIMENSIONS), strides = one.all<int64_t>(TENSOR_STRIDES);
  int64_t expected = 1;
  for (int i = 3; i >= 0; expected *= sizes[i--]) contiguous &= strides[i] == expected || sizes[i] == 1;
  return {int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])};
}

bool operation_of(const Descriptor &graph, Operation &found) {
  const Descriptor &one = graph.part(GRAPH_OPERATIONS);
  int begin = one.kind == FORWARD_OPERATION ? 700 : one.kind == DATA_OPERATION ? 706 : 712;
  found.pass = one.kind == FORWARD_OPERATION ? FORWARD : one.kind == DATA_OPERATION ? BACKWARD_DATA : BACKWARD_FILTER;
  if (one.all<float>(begin) != std::vector{1.0f} || one.all<float>(begin + 1) != std::vector{0.0f}) return false;
  bool contiguous = true;
  const Descriptor &w = one.part(begin + 3), &x = one.part(begin + 4), &y = one.part(begin + 5);
  found.x = tensor_of(x, contiguous), found.w = tensor_of(w, contiguous), found.y = tensor_of(y, contiguous);
  found.x_id = x.all<int64_t>(UNIQUE_ID)[0], found.w_id = w.all<int64_t>(UNIQUE_ID)[0], found.y_id = y.all<int64_t>(UNIQUE_ID)[0];
  const Descriptor &how = one.part(begin + 2);
  auto pads = how.all<int64_t>(PADDINGS), strides = how.all<int64_t>(STRIDES), dilations = how.all<int64_t>(DILATIONS);
  found.convolution = {int(pads[0]), int(pads[1]), int(strides[0]), int(strides[1]), int(dilations[0]), int(dilations[1]), found.x.c / found.w.c, FMA_MATH};
  return contiguous;
}

size_t engine_workspace(const Operation &o, int64_t index) {
  return index >= TENSOR_CORES ? 0 : workspace(o.pass, int(index), o.x, o.w, o.y, o.convolution);
}

std::vector<int> notes(Pass pass, int64_t index) {
  if (index == TENSOR_CORES) return {TENSOR_CORE};
  bool fft = pass == FORWARD ? index == 4 || index == 5 : index == 2 || index == (pass == BACKWARD_DATA ? 3 : 6);
  bool winograd = index == (pass == FORWARD ? 7 : 5);
  if (fft) return {FFT};
  if (winograd) return {WINOGRAD};
  return is_deterministic(pass, int(index)) ? std::vector<int>{} : std::vector<int>{NONDETERMINISTIC};
}

// Configurations of all engines, those for tensor cores and with a workspace first; the fallback is the one without.
bool propose(Descriptor &heuristics) {
  Operation o;
  const Descriptor &graph = heuristics.part(HEURISTICS_GRAPH);
  if (!operation_of(graph, o)) return false;
  std::vector<int64_t> indices;
  if (heuristics.all<int>(HEURISTICS_MODE).at(0) != FALLBACK) {
    indices = {TENSOR_CORES, UNBUILDABLE};
    for (int index = ALGORITHMS[o.pass] - 1; index > 0; --index)
      if (engine_workspace(o, index) != NONE) indices.push_back(index);
  }
  indices.push_back(0);
  for (int64_t index : indices) {
    auto engine = std::make_shared<Descriptor>(Descriptor{ENGINE});
    engine->set<int64_t>(ENGINE_INDEX, {index});
    engine->set<int>(ENGINE_NOTES, notes(o.pass, index));
    engine->set<int>(ENGINE_BEHAVIOUR, {});
    engine->parts[ENGINE_GRAPH] = {std::make_shared<Descriptor>(graph)};
    auto config = std::make_shared<Descriptor>(Descriptor{ENGINE_CONFIG});
    config->parts[CONFIG_ENGINE] = {engine};
    config->set<int64_t>(CONFIG_WORKSPACE, {int64_t(engine_workspace(o, index))});
    config->set<int>(CONFIG_SHARED, {0});
    heuristics.parts[HEURISTICS_RESULTS].push_back(config);
  }
  return true;
}

int execute(Handle *handle, const Descriptor &plan, const Descriptor &pack) {
  const Descriptor &engine = plan.part(PLAN_CONFIG).part(CONFIG_ENGINE);
  int64_t index = engine.all<int64_t>(ENGINE_INDEX)[0];
  Operation o;
  operation_of(engine.part(ENGINE_GRAPH), o);
  auto ids = pack.all<int64_t>(PACK_IDS);
  auto pointers = pack.all<void *>(PACK_POINTERS);
  void *space = pack.all<void *>(PACK_WORKSPACE).at(0);
  std::map<int64_t, void *> at;
  for (size_t i = 0; i < ids.size(); ++i) at[ids[i]] = pointers[i];
  for (int64_t id : {o.x_id, o.w_id, o.y_id}) if (!at.count(id)) return BAD_PARAM;
  float one = 1, zero = 0;
  int algorithm = index >= TENSOR_CORES ? 0 : int(index);
  int status = convolve(o.pass, handle, &one, o.x, at[o.x_id], o.w, at[o.w_id], o.y, at[o.y_id], o.convolution, algorithm, space, engine_workspace(o, index), &zero);
  if (status != SUCCESS || index != TENSOR_CORES) return status;
  void *written = at[o.pass == FORWARD ? o.y_id : o.pass == BACKWARD_DATA ? o.x_id : o.w_id];
  auto *work = new std::function<void()>([=] { *(float *)fakecuda_shadow(written, 4) = NAN; });
  return fakecuda_enqueue(handle->stream, work, {{written, 4}}) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}
}  // namespace

extern "C" {
int cudnnGetStream(Handle *h, CUstream *s) { *s = h->stream; return SUCCESS; }
void cudnnGetLastErrorString(char *message, size_t size) { if (size) *message = 0; }

int cudnnBackendCreateDescriptor(int kind, Descriptor **d) { *d = new Descriptor{kind}; return SUCCESS; }
int cudnnBackendDestroyDescriptor(Descriptor *d) { delete d; return SUCCESS; }

int cudnnBackendSetAttribute(Descriptor *d, int name, int type, int64_t count, const void *elements) {
  if (type == DESCRIPTOR) {
    d->parts[name].clear();
    for (int64_t i = 0; i < count; ++i) d->parts[name].push_back(std::make_shared<Descriptor>(*((Descriptor *const *)elements)[i]));
    return SUCCESS;
  }
  if (size_t(type) >= std::size(SIZES)) return NOT_SUPPORTED;
  d->values[name].assign((const char *)elements, (const char *)elements + count * SIZES[type]);
  return SUCCESS;
}

int cudnnBackendFinalize(Descriptor *d) {
  if (d->kind == HEURISTICS) return propose(*d) ? SUCCESS : NOT_SUPPORTED;
  if (d->kind == PLAN) {
    const Descriptor &config = d->part(PLAN_CONFIG);
    if (config.part(CONFIG_ENGINE).all<int64_t>(ENGINE_INDEX)[0] == UNBUILDABLE) return NOT_SUPPORTED;
    d->set(PLAN_WORKSPACE, config.all<int64_t>(CONFIG_WORKSPACE));
  }
  return SUCCESS;
}

int cudnnBackendGetAttribute(Descriptor *d, int name, int type, int64_t asked, int64_t *returned, void *elements) {
  if (type == DESCRIPTOR) {
    auto &parts = d->parts[name];
    if (returned) *returned = int64_t(parts.size());
    for (int64_t i = 0; elements && i < std::min(asked, int64_t(parts.size())); ++i) *((Descriptor **)elements)[i] = *parts[i];
    return SUCCESS;
  }
  if (!d->values.count(name) || size_t(type) >= std::size(SIZES)) return NOT_SUPPORTED;
  auto &bytes = d->values[name];
  int64_t count = int64_t(bytes.size() / SIZES[type]);
  if (returned) *returned = count;
  if (elements) std::memcpy(elements, bytes.data(), std::min(asked, count) * SIZES[type]);
  return SUCCESS;
}

int cudnnBackendExecute(Handle *handle, Descriptor *plan, Descriptor *pack) { return execute(handle, *plan, *pack); }
}
