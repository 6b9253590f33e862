// SPDX-License-Identifier: BSD-3-Clause
// The operators of the domain "detent" that models may call by name, for sessions of ONNX Runtime
// without the execution provider: DynamicLinear, DynamicConv (graph/ops/dynamic_layers.hpp) and
// MatMulNBits (graph/ops/matmul_nbits.hpp). Each node becomes a model of one node, so that all that
// is known of operators (checks, packed weights that runs share, threads) holds here, too.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_CUSTOM_OPERATORS_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_CUSTOM_OPERATORS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/runtimes/onnxruntime/api.hpp>
#include <detent/runtimes/onnxruntime/compiled_region.hpp>
#include <detent/runtimes/onnxruntime/graph_reader.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// The oldest version of ONNX Runtime's C interface with all functions that custom operators need.
inline constexpr std::uint32_t custom_operator_version = 17;

/// An attribute of a custom operator. ONNX Runtime gives the value of an attribute by its name and
/// type only.
struct custom_attribute {
  const char* name;                  ///< The name in the node.
  graph::attribute::kind_type kind;  ///< i, s or ints.
};

/// Reads the node for which a kernel is made.
class kernel_reader {
 public:
  kernel_reader(const api& a, const OrtKernelInfo* info) : api_(a), info_(info) {}

  /// The name of the node.
  [[nodiscard]] std::string name() const { return text(api_.core->KernelInfo_GetNodeName, info_); }
  /// How many inputs the node lists.
  [[nodiscard]] std::size_t inputs() const {
    return get<std::size_t>(api_, api_.core->KernelInfo_GetInputCount, info_);
  }
  /// The name of input i, empty if it is absent.
  [[nodiscard]] std::string input(std::size_t i) const {
    return text(api_.core->KernelInfo_GetInputName, info_, i);
  }
  /// The type of the elements of input i.
  [[nodiscard]] graph::element_type type(std::size_t i) const {
    const owned<OrtTypeInfo> info(
        get<OrtTypeInfo*>(api_, api_.core->KernelInfo_GetInputTypeInfo, info_, i),
        api_.core->ReleaseTypeInfo);
    const auto* const form = get<const OrtTensorTypeAndShapeInfo*>(
        api_, api_.core->CastTypeInfoToTensorInfo, info.get());
    return form == nullptr ? graph::element_type::undefined : form_of(api_, form).type;
  }
  /// A copy of input i if it is a constant; otherwise a tensor that is not defined.
  [[nodiscard]] graph::tensor constant(std::size_t i) const {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    api_.check(api_.core->KernelInfoGetConstantInput_tensor(info_, i, &is_constant, &value));
    return is_constant != 0 && value != nullptr ? copied_tensor(api_, value) : graph::tensor();
  }
  /// Adds the attribute to the node if it is there. Throws bad_file for a value of another type.
  void attribute(const custom_attribute& a, graph::node& n) const {
    using kind = graph::attribute::kind_type;
    graph::attribute value;
    std::size_t size = 0;
    if (a.kind == kind::i) {
      value = graph::attribute::of(std::int64_t{0});
      if (is_there(api_.core->KernelInfoGetAttribute_int64(info_, a.name, &value.i), a, n)) {
        n.attributes.emplace(a.name, std::move(value));
      }
    } else if (a.kind == kind::s) {
      if (is_there(api_.core->KernelInfoGetAttribute_string(info_, a.name, nullptr, &size), a, n)) {
        value.kind = kind::s;
        value.s = text(api_.core->KernelInfoGetAttribute_string, info_, a.name);
        n.attributes.emplace(a.name, std::move(value));
      }
    } else if (is_there(api_.core->KernelInfoGetAttributeArray_int64(info_, a.name, nullptr, &size),
                        a, n)) {
      std::vector<std::int64_t> values(size);
      if (size > 0) {
        api_.check(
            api_.core->KernelInfoGetAttributeArray_int64(info_, a.name, values.data(), &size));
      }
      n.attributes.emplace(a.name, graph::attribute::of(std::move(values)));
    }
  }

 private:
  /// What a function writes that is asked for the size first.
  template <class Function, class... Arguments>
  [[nodiscard]] std::string text(Function function, const Arguments&... arguments) const {
    std::size_t size = 0;
    api_.check(function(arguments..., nullptr, &size));
    std::string value(size, '\0');
    if (size > 0) {
      api_.check(function(arguments..., value.data(), &size));
      value.resize(size - 1);  // without the zero at the end
    }
    return value;
  }
  /// Whether the attribute was found. An attribute that is absent and one of another type fail with
  /// the same code; their messages differ.
  [[nodiscard]] bool is_there(OrtStatus* status, const custom_attribute& a,
                              const graph::node& n) const {
    const owned<OrtStatus> failure(status, api_.core->ReleaseStatus);
    if (failure == nullptr) {
      return true;
    }
    const std::string_view message = api_.core->GetErrorMessage(failure.get());
    require(message.find("type") == std::string_view::npos, error_kind::bad_file, n.label(),
            ": attribute '", a.name, "' has another type than expected (", message, ")");
    return false;
  }

  const api api_;
  const OrtKernelInfo* info_;
};

/// The functions through which ONNX Runtime learns of one operator and runs it.
class custom_operator : public OrtCustomOp {
 public:
  /// The operator of the domain "detent" with this name, of the library's registry. `a` and
  /// `attributes` must outlive the object.
  custom_operator(const api& a, const char* name, std::span<const custom_attribute> attributes)
      : OrtCustomOp{},
        api_(a),
        name_(name),
        attributes_(attributes),
        definition_(*graph::default_operators().find("detent", name)) {
    version = custom_operator_version;
    OrtCustomOp::GetName = [](const OrtCustomOp* op) noexcept { return self(op).name_; };
    OrtCustomOp::GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* {
      return nullptr;  // the processor
    };
    // The types of inputs are the operator's to check: its errors name the node.
    OrtCustomOp::GetInputType = [](const OrtCustomOp*, std::size_t) noexcept {
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    };
    OrtCustomOp::GetInputTypeCount = [](const OrtCustomOp* op) noexcept {
      return self(op).definition_.max_inputs;
    };
    OrtCustomOp::GetOutputType = [](const OrtCustomOp*, std::size_t) noexcept {
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    };
    OrtCustomOp::GetOutputTypeCount = [](const OrtCustomOp*) noexcept -> std::size_t { return 1; };
    OrtCustomOp::GetInputCharacteristic = [](const OrtCustomOp* op, std::size_t i) noexcept {
      return i < self(op).definition_.min_inputs ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
    };
    OrtCustomOp::GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) noexcept {
      return INPUT_OUTPUT_REQUIRED;
    };
    OrtCustomOp::GetInputMemoryType = [](const OrtCustomOp*, std::size_t) noexcept {
      return OrtMemTypeDefault;
    };
    OrtCustomOp::CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*,
                                     const OrtKernelInfo* info, void** made) noexcept {
      *made = nullptr;
      return as_status(self(op).api_, [&] { *made = new kernel(self(op), info); });
    };
    OrtCustomOp::KernelComputeV2 = [](void* made, OrtKernelContext* context) noexcept {
      auto& k = *static_cast<kernel*>(made);
      return as_status(k.functions, [&] { k.region.run(context); });
    };
    OrtCustomOp::KernelDestroy = [](void* made) noexcept { delete static_cast<kernel*>(made); };
  }

 private:
  /// What one node of a session keeps.
  struct kernel {
    kernel(const custom_operator& op, const OrtKernelInfo* info) : kernel(op.api_, op.read(info)) {}
    kernel(const api& a, std::pair<graph::model, std::vector<std::size_t>> read)
        : functions(a), region(a, std::move(read.first), {}, std::move(read.second)) {}

    const api functions;
    compiled_region region;
  };

  [[nodiscard]] static const custom_operator& self(const OrtCustomOp* op) noexcept {
    return static_cast<const custom_operator&>(*op);
  }

  /// The node as a model, and which input of the node each input of the model is.
  [[nodiscard]] std::pair<graph::model, std::vector<std::size_t>> read(
      const OrtKernelInfo* info) const {
    const kernel_reader from(api_, info);
    std::pair<graph::model, std::vector<std::size_t>> made;
    graph::model& m = made.first;
    graph::node n;
    n.name = from.name();
    n.domain = "detent";
    n.op_type = name_;
    for (std::size_t i = 0; i < from.inputs(); ++i) {
      n.inputs.push_back(from.input(i).empty() ? std::string() : "input" + std::to_string(i));
      if (n.inputs.back().empty()) {
        continue;
      }
      if (graph::tensor t = from.constant(i); t.defined()) {
        m.initializers.emplace(n.inputs.back(), std::move(t));
        continue;
      }
      graph::value_info declared;
      declared.name = n.inputs.back();
      declared.type = from.type(i);
      m.inputs.push_back(std::move(declared));
      made.second.push_back(i);
    }
    while (!n.inputs.empty() && n.inputs.back().empty()) {
      n.inputs.pop_back();
    }
    for (const custom_attribute& a : attributes_) {
      from.attribute(a, n);
    }
    n.outputs.emplace_back("output");
    graph::value_info output;
    output.name = "output";
    output.type = graph::element_type::f32;
    m.outputs.push_back(std::move(output));
    m.opsets = {{"", graph::newest_opset}, {"detent", 1}};
    m.nodes.push_back(std::move(n));
    return made;
  }

  const api api_;
  const char* name_;
  std::span<const custom_attribute> attributes_;
  const graph::operator_definition& definition_;
};

/// The custom operators in their domain. Sessions refer to it as long as they live.
class custom_operator_domain {
 public:
  /// Throws io if ONNX Runtime refuses one of them.
  explicit custom_operator_domain(const api& a)
      : api_(a),
        operators_{{{api_, "DynamicConv", convolution_},
                    {api_, "DynamicLinear", linear_},
                    {api_, "MatMulNBits", nbits_}}},
        domain_(nullptr, api_.core->ReleaseCustomOpDomain) {
    domain_.reset(get<OrtCustomOpDomain*>(api_, api_.core->CreateCustomOpDomain, "detent"));
    for (const custom_operator& op : operators_) {
      api_.check(api_.core->CustomOpDomain_Add(domain_.get(), &op));
    }
  }
  custom_operator_domain(const custom_operator_domain&) = delete;
  custom_operator_domain& operator=(const custom_operator_domain&) = delete;
  ~custom_operator_domain() = default;

  /// Makes the operators known to sessions with these options.
  void add_to(OrtSessionOptions* options) const {
    api_.check(api_.core->AddCustomOpDomain(options, domain_.get()));
  }

 private:
  using kind = graph::attribute::kind_type;
  static constexpr custom_attribute convolution_[] = {
      {"auto_pad", kind::s},        {"dilations", kind::ints}, {"group", kind::i},
      {"kernel_shape", kind::ints}, {"pads", kind::ints},      {"per_image", kind::i},
      {"strides", kind::ints}};
  static constexpr custom_attribute linear_[] = {
      {"N", kind::i}, {"per_row", kind::i}, {"transB", kind::i}};
  static constexpr custom_attribute nbits_[] = {
      {"K", kind::i},    {"N", kind::i},          {"accuracy_level", kind::i},
      {"bits", kind::i}, {"block_size", kind::i}, {"weight_prepacked", kind::i}};

  const api api_;
  std::array<custom_operator, 3> operators_;
  owned<OrtCustomOpDomain> domain_;
};

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_CUSTOM_OPERATORS_HPP
