// A "cuda" device for a CPU build of torch: its memory is the host's, and its kernels are the CPU's.
//
// Everything that torch asks of a device goes through six seams, in this order below: the device guard (which device,
// streams, events), the allocator (with a limit, so that a rank can run out of memory), pinned host memory, the hooks of
// the context, the kernels (a boxed fallback that runs the CPU's on aliases of the same memory), and a process group
// "nccl" over gloo. Wherever the host of a real GPU would wait for the device, `on_wait` is called with a word for why.
#include <torch/extension.h>
#include <torch/library.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <pybind11/chrono.h>
#include <atomic>
#include <map>
#include <mutex>
#include <cstdlib>

namespace py = pybind11;
using at::Tensor;
using c10::Device; using c10::DeviceIndex; using c10::DeviceType; using c10::Stream;

static thread_local DeviceIndex g_current = 0;
static int g_count = 8;
static std::atomic<int64_t> g_bytes{0}, g_peak{0}, g_limit{int64_t(80) << 30};
static std::map<void*, size_t> g_pinned;
static std::mutex g_mutex;
static py::object* g_on_wait = nullptr;   // called with a word for each wait for the device
static thread_local bool g_inside = false;

static void on_wait(const std::string& what) {
  if (!g_on_wait || g_inside) return;
  py::gil_scoped_acquire gil;
  g_inside = true;
  try { (*g_on_wait)(what); } catch (...) { g_inside = false; throw; }
  g_inside = false;
}

// -- the device guard: the current device, streams and events; all is done when it returns ----------------------------
struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override { Device o(DeviceType::CUDA, g_current); setDevice(d); return o; }
  Device getDevice() const override { return Device(DeviceType::CUDA, g_current); }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.index() < g_count, "CUDA error: invalid device ordinal (simulated)");
    if (d.index() >= 0) g_current = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override { if (d.index() >= 0) g_current = d.index(); }
  Stream getStream(Device d) const override { return Stream(Stream::DEFAULT, d.index() < 0 ? getDevice() : d); }
  Stream getDefaultStream(Device d) const override { return getStream(d); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getStream(d); }
  Stream getNewStream(Device d, int) const override { return getStream(d); }
  Stream exchangeStream(Stream s) const override { return Stream(Stream::DEFAULT, s.device()); }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void record(void** e, const Stream&, const DeviceIndex, const c10::EventFlag) const override { *e = (void*)1; }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  DeviceIndex deviceCount() const noexcept override { return (DeviceIndex)g_count; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { on_wait("stream.synchronize"); }
  void synchronizeEvent(void*) const override { on_wait("event.synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { on_wait("device.synchronize"); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// -- the allocator ------------------------------------------------------------------------------------------------------
struct Header { size_t bytes; };
static void account(int64_t more) {
  int64_t now = (g_bytes += more);
  int64_t peak = g_peak.load();
  while (now > peak && !g_peak.compare_exchange_weak(peak, now)) {}
}
static void release(void* p) {
  if (!p) return;
  auto* h = (Header*)((char*)p - 256);
  account(-(int64_t)h->bytes);
  free(h);
}
struct Alloc final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    Device dev(DeviceType::CUDA, g_current);
    if (!n) return {nullptr, nullptr, &release, dev};
    if (g_bytes.load() + (int64_t)n > g_limit.load())
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n >> 20, " MiB. (simulated)");
    void* p = nullptr;
    if (posix_memalign(&p, 256, n + 256)) throw std::bad_alloc();
    ((Header*)p)->bytes = n;
    account((int64_t)n);
    void* data = (char*)p + 256;
    memset(data, 0x7f, n < 4096 ? n : 4096);   // uninitialised memory is not zero
    return {data, data, &release, dev};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* d, const void* s, std::size_t n) const override { memcpy(d, s, n); }
};
static Alloc g_alloc;
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &g_alloc)

// -- pinned host memory: a copy from or to any other waits, even with non_blocking -----------------------------------------
struct PinAlloc final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    if (n && posix_memalign(&p, 256, n)) throw std::bad_alloc();
    { std::lock_guard<std::mutex> l(g_mutex); if (p) g_pinned[p] = n; }
    return {p, p, &drop, Device(DeviceType::CPU)};
  }
  static void drop(void* p) { { std::lock_guard<std::mutex> l(g_mutex); g_pinned.erase(p); } free(p); }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* d, const void* s, std::size_t n) const override { memcpy(d, s, n); }
};
static PinAlloc g_pin;
static bool pinned_ptr(const void* q) {
  std::lock_guard<std::mutex> l(g_mutex);
  auto it = g_pinned.upper_bound(const_cast<void*>(q));
  if (it == g_pinned.begin()) return false;
  --it;
  return (const char*)q < (const char*)it->first + it->second;
}
// -- what torch asks of the CUDA context ---------------------------------------------------------------------------------
struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return (DeviceIndex)g_count; }
  DeviceIndex current_device() const override { return g_current; }
  void setCurrentDevice(DeviceIndex d) const override { g_current = d; }
  DeviceIndex getCurrentDevice() const override { return g_current; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override { auto o = g_current; if (d >= 0) g_current = d; return o; }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  bool isPinnedPtr(const void* p) const override { return pinned_ptr(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pin; }
  int getNumGPUs() const override { return g_count; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::globalContext().defaultGenerator(Device(DeviceType::CPU)); }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CUDA, g_current); }
};
namespace at { using ::Hooks; C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks) }

// -- kernels: the CPU's, on tensors that alias the memory of the device's ---------------------------------------------------
static Tensor alias_cpu(const Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  auto st = t.storage();
  c10::Storage own(c10::Storage::use_byte_size_t(), st.nbytes(),
                   c10::DataPtr(const_cast<void*>(st.data()), nullptr, [](void*) {}, Device(DeviceType::CPU)), c10::GetAllocator(c10::DeviceType::CPU), true);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(own), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  impl->set_storage_offset(t.storage_offset());
  impl->set_sizes_and_strides(t.sizes(), t.strides());
  Tensor r(std::move(impl));
  if (t.is_conj()) r._set_conj(true);
  if (t.is_neg()) r._set_neg(true);
  return r;
}
static Tensor to_cuda(const Tensor& c, DeviceIndex index) {
  if (!c.defined()) return c;
  auto st = c.storage();
  auto* keep = new Tensor(c);
  c10::Storage own(c10::Storage::use_byte_size_t(), st.nbytes(),
                   c10::DataPtr(const_cast<void*>(st.data()), keep, [](void* k) { delete (Tensor*)k; }, Device(DeviceType::CUDA, index)),
                   &g_alloc, true);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(own), c10::DispatchKeySet(c10::DispatchKey::CUDA), c.dtype());
  impl->set_storage_offset(c.storage_offset());
  impl->set_sizes_and_strides(c.sizes(), c.strides());
  Tensor r(std::move(impl));
  if (c.is_conj()) r._set_conj(true);
  if (c.is_neg()) r._set_neg(true);
  return r;
}

static void storage_resize(c10::StorageImpl* st, size_t n);
// Operators whose result has a size or a value that only the device knows.
static const char* WAITING[] = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal",
                                "aten::unique_dim", "aten::unique_consecutive", "aten::is_nonzero", "aten::bincount", "aten::histc",
                                "aten::repeat_interleave.Tensor"};

// Runs the CPU's kernel: arguments become aliases on the CPU, results become tensors on the device of the arguments.
static void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = op.operator_name().overload_name.empty() ? op.operator_name().name : op.operator_name().name + "." + op.operator_name().overload_name;
  for (auto* each : WAITING) if (name == each || op.operator_name().name == each) on_wait(name);
  const size_t n = schema.arguments().size();
  const size_t base = stack->size() - n;
  std::vector<Tensor> originals, aliases;
  int index = -1; bool foreign = false; std::string where;
  const bool lax = op.operator_name().name.find("index") != std::string::npos || op.operator_name().name.find("_fused_") != std::string::npos;
  auto turn = [&](const Tensor& t) -> Tensor {
    if (!t.defined()) return t;
    if (t.is_cuda()) {
      if (index >= 0 && index != t.device().index())
        TORCH_CHECK(false, "Expected all tensors to be on the same device, but found cuda:", index, " and cuda:", (int)t.device().index(), " in ", name);
      index = t.device().index();
      for (size_t k = 0; k < originals.size(); ++k) if (originals[k].is_same(t)) return aliases[k];
      Tensor a = alias_cpu(t);
      originals.push_back(t); aliases.push_back(a);
      return a;
    }
    if (t.is_cpu() && t.dim() > 0) foreign = true;
    if (t.is_cpu() && t.dim() > 0 && lax) on_wait("cpu index in " + name);
    return t;
  };
  for (size_t i = 0; i < n; ++i) {
    auto& v = (*stack)[base + i];
    if (v.isTensor()) v = turn(v.toTensor());
    else if (v.isTensorList()) { auto l = v.toTensorVector(); for (auto& t : l) t = turn(t); v = c10::IValue(l); }
    else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (const std::optional<Tensor>& t : v.toOptionalTensorVector()) out.push_back(t.has_value() ? std::optional<Tensor>(turn(*t)) : std::nullopt);
      v = c10::IValue(out);
    } else if (v.isDevice()) {
      Device d = v.toDevice();
      if (d.is_cuda()) { if (index < 0) index = d.has_index() ? d.index() : g_current; v = c10::IValue(Device(DeviceType::CPU)); }
    }
  }
  TORCH_CHECK(!(foreign && !lax && !originals.empty()),
              "Expected all tensors to be on the same device, but found at least two devices, cuda and cpu! (simulated, in ", name, ")");
  if (index < 0) index = g_current;
  {
    c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  for (size_t k = 0; k < aliases.size(); ++k) {  // an output that was resized
    auto& a = aliases[k]; auto& o = originals[k];
    if (a.storage().data() == o.storage().data() && a.sizes() == o.sizes()) continue;
    auto* st = o.storage().unsafeGetStorageImpl();
    if (a.storage().data() != o.storage().data()) {
      if (st->nbytes() < a.storage().nbytes()) storage_resize(st, a.storage().nbytes());
      memcpy(st->mutable_data(), a.storage().data(), a.storage().nbytes());
    }
    o.unsafeGetTensorImpl()->set_storage_offset(a.storage_offset());
    o.unsafeGetTensorImpl()->set_sizes_and_strides(a.sizes(), a.strides());
  }
  const size_t m = schema.returns().size();
  const size_t rb = stack->size() - m;
  auto back = [&](const Tensor& t) -> Tensor {
    if (!t.defined()) return t;
    for (size_t k = 0; k < aliases.size(); ++k) if (aliases[k].is_same(t)) return originals[k];
    if (!t.is_cpu()) return t;
    return to_cuda(t, (DeviceIndex)index);
  };
  for (size_t i = 0; i < m; ++i) {
    auto& v = (*stack)[rb + i];
    if (v.isTensor()) v = back(v.toTensor());
    else if (v.isTensorList()) { auto l = v.toTensorVector(); for (auto& t : l) t = back(t); v = c10::IValue(l); }
  }
}

// -- kernels of our own: those that allocate, copy between devices, or only change sizes ---------------------------------------
static Tensor empty_mf(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
                       std::optional<bool>, std::optional<at::MemoryFormat> mf) {
  DeviceIndex before = g_current;
  if (device && device->has_index()) { TORCH_CHECK(device->index() < g_count, "CUDA error: invalid device ordinal (simulated)"); g_current = device->index(); }
  Tensor r = at::detail::empty_generic(size, &g_alloc, c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype.value_or(at::get_default_dtype_as_scalartype()), mf);
  g_current = before;
  return r;
}
static Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                            std::optional<Device> device, std::optional<bool>) {
  DeviceIndex before = g_current;
  if (device && device->has_index()) { TORCH_CHECK(device->index() < g_count, "CUDA error: invalid device ordinal (simulated)"); g_current = device->index(); }
  Tensor r = at::detail::empty_strided_generic(size, stride, &g_alloc, c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype.value_or(at::get_default_dtype_as_scalartype()));
  g_current = before;
  return r;
}
static bool pinned(const Tensor& t) {
  std::lock_guard<std::mutex> l(g_mutex);
  auto p = (char*)t.storage().data();
  auto it = g_pinned.upper_bound((void*)p);
  if (it == g_pinned.begin()) return false;
  --it;
  return p < (char*)it->first + it->second;
}
static Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  if (self.numel() && self.device().type() != src.device().type()) {
    const Tensor& host = self.is_cuda() ? src : self;
    std::string way = self.is_cuda() ? "H2D" : "D2H";
    if (!non_blocking) on_wait(way + " blocking copy of " + std::to_string(self.nbytes()) + " bytes");
    else if (!pinned(host)) on_wait(way + " non_blocking copy of pageable memory, " + std::to_string(self.nbytes()) + " bytes");
  }
  Tensor a = alias_cpu(self), b = alias_cpu(src);
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  a.copy_(b);
  return self;
}
static Tensor copy_from(const Tensor& src, const Tensor& dst, bool nb) { Tensor d = dst; copy_(d, src, nb); return dst; }
static void storage_resize(c10::StorageImpl* st, size_t n) {
  if (n == st->nbytes()) return;
  DeviceIndex before = g_current; g_current = st->device().index();
  c10::DataPtr fresh = g_alloc.allocate(n);
  g_current = before;
  if (n && st->nbytes()) memcpy(fresh.get(), st->data(), std::min(n, st->nbytes()));
  st->set_data_ptr_noswap(std::move(fresh));
  st->set_nbytes(n);
}
static const Tensor& resize_(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size) return self;
  impl->set_sizes_contiguous(size);
  size_t want = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (want > self.storage().nbytes()) storage_resize(self.storage().unsafeGetStorageImpl(), want);
  return self;
}
static Tensor local_as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> off) {
  return at::native::as_strided_tensorimpl(self, size, stride, off);
}
static Tensor local_view(const Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
static Tensor local_reshape_alias(const Tensor& self, c10::IntArrayRef s, c10::IntArrayRef st) { return at::native::_reshape_alias(self, s, st); }
static Tensor& set_storage(Tensor& r, at::Storage s, int64_t off, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = r.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(s));
  impl->set_storage_offset(off);
  impl->set_sizes_and_strides(size, stride);
  return r;
}
static Tensor& set_tensor(Tensor& r, const Tensor& s) { return set_storage(r, s.storage(), s.storage_offset(), s.sizes(), s.strides()); }
static Tensor& set_plain(Tensor& r, at::Storage s) {
  int64_t n = s.nbytes() / r.dtype().itemsize(); std::vector<int64_t> one{n}, st{1};
  return set_storage(r, std::move(s), 0, one, st);
}
// The CPU's kernel doesn't convert float16 itself, as CUDA's does.
static Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  Tensor a = alias_cpu(self);
  return to_cuda(at::_log_softmax(half_to_float ? a.to(at::kFloat) : a, dim, false), self.device().index());
}
// Only CUDA multiplies bfloat16 into a float32 result, as TRL's loss does.
static Tensor& addmm_dtype_out(const Tensor& self, const Tensor& one, const Tensor& other, at::ScalarType dtype,
                               const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  c10::impl::ExcludeDispatchKeyGuard no(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  alias_cpu(out).copy_(at::addmm(alias_cpu(self).to(dtype), alias_cpu(one).to(dtype), alias_cpu(other).to(dtype), beta, alpha));
  return out;
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("addmm.dtype_out", &addmm_dtype_out);
  m.impl("empty.memory_format", &empty_mf);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &local_as_strided);
  m.impl("view", &local_view);
  m.impl("_reshape_alias", &local_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_plain);
  m.impl("_log_softmax", &log_softmax);
  // Without a kernel of CUDA, torch would compose it of others, and round after each of them, which no GPU does.
  m.impl("silu_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// -- a backend "nccl" over gloo ---------------------------------------------------------------------------------------
struct Done final : c10d::Work {
  Done(int r, c10d::OpType t, std::vector<Tensor> o) : Work(r, t), outs(std::move(o)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future_->markCompleted(c10::IValue(outs));
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<Tensor> result() override { return outs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<Tensor> outs; c10::intrusive_ptr<c10::ivalue::Future> future_;
};
static std::vector<Tensor> al(std::vector<Tensor>& v) { std::vector<Tensor> o; for (auto& t : v) { TORCH_CHECK(t.is_cuda(), "No backend type associated with device type cpu (simulated nccl)"); o.push_back(alias_cpu(t)); } return o; }
static std::vector<std::vector<Tensor>> al2(std::vector<std::vector<Tensor>>& v) { std::vector<std::vector<Tensor>> o; for (auto& t : v) o.push_back(al(t)); return o; }
struct SimulatedNccl final : c10d::Backend {
  SimulatedNccl(c10::intrusive_ptr<c10d::Backend> g, int rank, int size) : Backend(rank, size), gloo(g) {}
  const std::string getBackendName() const override { return "nccl"; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks, const c10::intrusive_ptr<Options>&) override {
    int own = -1; for (size_t i = 0; i < ranks.size(); ++i) if (ranks[i] == rank_) own = (int)i;
    if (own < 0) return nullptr;
    auto child = gloo->split(store, ranks, gloo->getBackendOptions());
    return c10::make_intrusive<SimulatedNccl>(child, own, (int)ranks.size());
  }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo->getBackendOptions(); }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalescing = true; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override { coalescing = false; for (auto& w : pending) w->wait(); pending.clear(); return done(c10d::OpType::COALESCED, {}); }
  void setTimeout(std::chrono::milliseconds t) override { gloo->setTimeout(t); }
  c10::intrusive_ptr<c10d::Work> done(c10d::OpType t, std::vector<Tensor> o) { return c10::make_intrusive<Done>(rank_, t, std::move(o)); }
  void run(c10::intrusive_ptr<c10d::Work> w) { ++seq; if (coalescing) pending.push_back(w); else w->wait(); }
  bool coalescing = false; std::vector<c10::intrusive_ptr<c10d::Work>> pending;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& t, const c10d::BroadcastOptions& o) override { auto a = al(t); run(gloo->broadcast(a, o)); return done(c10d::OpType::BROADCAST, t); }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& t, const c10d::AllreduceOptions& o) override { auto a = al(t); run(gloo->allreduce(a, o)); return done(c10d::OpType::ALLREDUCE, t); }
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<Tensor>& t, const c10d::AllreduceCoalescedOptions& o) override { auto a = al(t); run(gloo->allreduce_coalesced(a, o)); return done(c10d::OpType::ALLREDUCE_COALESCED, t); }
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<Tensor>& t, const c10d::ReduceOptions& o) override { auto a = al(t); run(gloo->reduce(a, o)); return done(c10d::OpType::REDUCE, t); }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<Tensor>>& out, std::vector<Tensor>& in, const c10d::AllgatherOptions& o) override { auto a = al2(out); auto b = al(in); run(gloo->allgather(a, b, o)); return done(c10d::OpType::ALLGATHER, out.at(0)); }
  c10::intrusive_ptr<c10d::Work> _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override { auto a = alias_cpu(out), b = alias_cpu(in).clone(); run(gloo->_allgather_base(a, b, o)); return done(c10d::OpType::_ALLGATHER_BASE, {out}); }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<Tensor>& out, std::vector<Tensor>& in, const c10d::AllgatherOptions& o) override { auto a = al(out), b = al(in); run(gloo->allgather_into_tensor_coalesced(a, b, o)); return done(c10d::OpType::COALESCED, out); }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<Tensor>& out, std::vector<std::vector<Tensor>>& in, const c10d::ReduceScatterOptions& o) override { auto a = al(out); auto b = al2(in); run(gloo->reduce_scatter(a, b, o)); return done(c10d::OpType::REDUCE_SCATTER, out); }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override { auto a = alias_cpu(out).clone(), b = alias_cpu(in); run(gloo->_reduce_scatter_base(a, b, o)); alias_cpu(out).copy_(a); return done(c10d::OpType::_REDUCE_SCATTER_BASE, {out}); }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<Tensor>& out, std::vector<Tensor>& in, const c10d::ReduceScatterOptions& o) override { auto a = al(out), b = al(in); run(gloo->reduce_scatter_tensor_coalesced(a, b, o)); return done(c10d::OpType::COALESCED, out); }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& os, std::vector<int64_t>& is, const c10d::AllToAllOptions& o) override { auto a = alias_cpu(out), b = alias_cpu(in); run(gloo->alltoall_base(a, b, os, is, o)); return done(c10d::OpType::ALLTOALL_BASE, {out}); }
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& t, int d, int tag) override { auto a = al(t); run(gloo->send(a, d, tag)); return done(c10d::OpType::SEND, t); }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& t, int s, int tag) override { auto a = al(t); run(gloo->recv(a, s, tag)); return done(c10d::OpType::RECV, t); }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& o) override { run(gloo->barrier(o)); return done(c10d::OpType::BARRIER, {}); }
  uint64_t getSequenceNumberForGroup() override { return seq; }
  void setSequenceNumberForGroup() override {}
  c10::intrusive_ptr<c10d::Backend> gloo; uint64_t seq = 0;
};

PYBIND11_MODULE(simulated_gpus_device, m) {
  py::module::import("torch.distributed");
  m.def("hooked", [] { return at::detail::getCUDAHooks().hasCUDA(); });
  m.def("set_count", [](int n) { g_count = n; });
  m.def("set_device", [](int d) { Guard().setDevice(Device(DeviceType::CUDA, d)); });
  m.def("current_device", [] { return (int)g_current; });
  m.def("limit", [](int64_t n) { g_limit = n; });
  m.def("allocated", [] { return g_bytes.load(); });
  m.def("peak", [] { return g_peak.load(); });
  m.def("reset_peak", [] { g_peak = g_bytes.load(); });
  m.def("on_wait", [](py::object f) { g_on_wait = f.is_none() ? nullptr : new py::object(f); });
  m.def("pin", [](const Tensor& t) { std::lock_guard<std::mutex> l(g_mutex); g_pinned[const_cast<void*>(t.storage().data())] = t.storage().nbytes(); });
  m.def("unpin", [](int64_t p) { std::lock_guard<std::mutex> l(g_mutex); g_pinned.erase((void*)p); });
  m.def("is_pinned", &pinned);
  m.def("note", [](const std::string& w) { on_wait(w); });
  m.def("resize_storage", [](py::object s, size_t n) { auto st = torch::createStorage(s.ptr()); storage_resize(st.unsafeGetStorageImpl(), n); });
  py::class_<SimulatedNccl, c10d::Backend, c10::intrusive_ptr<SimulatedNccl>>(m, "SimulatedNccl")
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> g, int r, int s) { return c10::make_intrusive<SimulatedNccl>(g, r, s); }))
      .def("_set_default_timeout", [](SimulatedNccl& n, std::chrono::milliseconds t) { n.setTimeout(t); });
}
