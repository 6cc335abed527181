// A device of its own type for torch, in the processor's memory: its tensors are none of the CPU's, as a GPU's are
// none, so what forgets a device fails. Operators are the CPU's, on copies; those that only look at memory are here.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
using Sizes = at::IntArrayRef;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {kType, 0}); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {kType, 0}); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = size ? std::aligned_alloc(512, (size + 511) / 512 * 512) : nullptr;
    return {data, data, &std::free, {kType, 0}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

using Dtype = std::optional<c10::ScalarType>;
using Rest = std::optional<c10::Layout>;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(Sizes size, Dtype dtype, Rest, std::optional<c10::Device>, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(Sizes size, Sizes stride, Dtype dtype, Rest, std::optional<c10::Device>,
                         std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

at::Tensor on_cpu(const at::Tensor& tensor) {  // the same memory, as a tensor of the CPU's
  if (tensor.is_cpu()) return tensor;
  c10::DataPtr data(tensor.storage().mutable_data(), c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data));
  auto view = at::empty({0}, tensor.options().device(c10::kCPU));
  return view.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

const at::Tensor& change_size(const at::Tensor& tensor, Sizes size, std::optional<c10::MemoryFormat>) {
  auto* found = tensor.unsafeGetTensorImpl();
  found->set_sizes_contiguous(size);
  const auto& storage = found->storage();
  size_t needed = (found->numel() + found->storage_offset()) * found->dtype().itemsize();
  if (needed > storage.nbytes()) {
    auto data = allocator.allocate(needed);
    std::memcpy(data.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(needed);
  }
  return tensor;
}

at::Tensor copy_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (source.sizes() != target.sizes()) change_size(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Tensor& set(at::Tensor& tensor, c10::Storage storage, int64_t offset, Sizes size, Sizes stride) {
  auto* found = tensor.unsafeGetTensorImpl();
  found->set_storage_keep_dtype(std::move(storage));
  found->set_sizes_and_strides(size, stride);
  found->set_storage_offset(offset);
  return tensor;
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

c10::Scalar value(const at::Tensor& tensor) { return on_cpu(tensor).item(); }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output_padding,
                       int64_t groups) {
  std::optional<at::Tensor> added;
  if (bias.has_value() && bias->defined()) added = on_cpu(*bias);
  return at::convolution(on_cpu(input), on_cpu(weight), added, stride, padding, dilation, transposed,
                         output_padding, groups).to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, Sizes stride, Sizes padding,
    Sizes dilation, bool transposed, Sizes output_padding, int64_t groups, std::array<bool, 3> wanted) {
  auto [first, second, third] = at::convolution_backward(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), Sizes({weight.size(0)}), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  auto there = [&](const at::Tensor& one) { return one.defined() ? one.to(input.device()) : one; };
  return {there(first), there(second), there(third)};
}

void by_cpu(const c10::OperatorHandle& overload, torch::jit::Stack* stack) {
  at::native::cpu_fallback(overload, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_and_resize);
  library.impl("set_.source_Storage_storage_offset", &set);
  library.impl("resize_", &change_size);
  library.impl("view", &view);
  library.impl("as_strided", [](const at::Tensor& tensor, Sizes size, Sizes stride, std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
  });
  library.impl("_reshape_alias", [](const at::Tensor& tensor, Sizes size, Sizes stride) {
    return at::native::_reshape_alias(tensor, size, stride);
  });
  library.impl("_local_scalar_dense", &value);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { (void)module; }
