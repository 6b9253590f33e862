// SPDX-License-Identifier: BSD-3-Clause
// A quantized network as PPQ's own file (.native), which PPQ loads with load_native_graph().
#ifndef DETENT_GRAPH_PPQ_EXPORT_NATIVE_HPP
#define DETENT_GRAPH_PPQ_EXPORT_NATIVE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/exported_text.hpp>
#include <detent/graph/ppq/pickle_array.hpp>
#include <detent/graph/ppq/pickle_writer.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/graph/ppq/target_platform.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// The element types of PPQ's enumeration DataType, which has ONNX's numbers.
[[nodiscard]] constexpr bool is_ppq_data_type(element_type t) noexcept {
  const auto number = static_cast<std::int32_t>(t);
  return number >= 0 && number <= 13 && t != element_type::string;
}
/// Whether PPQ has tensors of an element type: its torch.Tensor has no unsigned integers beyond 8
/// bits.
[[nodiscard]] constexpr bool is_ppq_tensor_type(element_type t) noexcept {
  return !numpy_type(t).empty() && t != element_type::u16 && t != element_type::u32 &&
         t != element_type::u64;
}

/// Makes the file of export_native() of one graph.
class native_writer {
 public:
  explicit native_writer(const quantized_graph& g)
      : g_(g),
        values_(g.network),
        forms_(infer_shapes(g.network)),
        shape_values_(shape_values(g.network)) {
    const auto member =
        std::find_if(target_platforms.begin(), target_platforms.end(),
                     [&](const target_platform& p) { return p.preset == g_.target.name; });
    platform_ =
        member == target_platforms.end() ? find_target_platform("INT8")->value : member->value;
    list_operations();
    list_variables();
  }

  std::string run() {
    // PPQ's file is three pickles, one after the other.
    std::string file;
    for (const std::string_view text : {std::string_view("PPQ GRAPH DEFINITION"), version}) {
      pickle_writer one;
      one.text(text);
      file += std::move(one).finish();
    }
    write_graph();
    return file += std::move(w_).finish();
  }

 private:
  static constexpr std::string_view version = "0.6.6";
  static constexpr const char* base = "ppq.IR.base.graph";
  static constexpr const char* quantize = "ppq.IR.quantize";
  static constexpr const char* quant = "ppq.core.quant";

  /// A node of the network, with names that PPQ can have.
  struct operation {
    std::string name;  // there is no other operation of that name
    std::vector<std::string> inputs;
    std::vector<std::string> outputs;
  };
  struct variable {
    std::string name;
    std::string origin;                     // the value of the network that it stands for
    std::optional<std::size_t> source;      // the operation that makes it
    std::vector<std::size_t> destinations;  // an entry for each use
    bool is_quantable = false;              // whether a quantized operation takes or makes it
  };

  // ------------------------------------------------------------------------------------- names

  void list_operations() {
    unused_names names;
    const function_table functions(g_.network);
    for (const node& n : g_.network.nodes) {
      require(!has_bodies(n), error_kind::unsupported, n.label(),
              ": PPQ has no operators with sub-graphs");
      require(functions.function_of(n) == nullptr, error_kind::unsupported, n.label(),
              ": PPQ has no functions of models");
      operation o{names.take(operator_name(n)), n.inputs, n.outputs};
      while (!o.inputs.empty() && o.inputs.back().empty()) {
        o.inputs.pop_back();
      }
      while (!o.outputs.empty() && o.outputs.back().empty()) {
        o.outputs.pop_back();
      }
      // All inputs that are left out are one variable without a name and a value, as in PPQ. An
      // output needs a variable of its own.
      for (std::string& output : o.outputs) {
        output = output.empty() ? values_.take(o.name + "_unused") : std::move(output);
      }
      operations_.push_back(std::move(o));
    }
  }

  variable& variable_of(const std::string& name, const std::string& origin) {
    const auto [place, is_new] = places_.emplace(name, variables_.size());
    if (is_new) {
      variables_.push_back({name, origin, std::nullopt, {}, false});
    }
    return variables_[place->second];
  }
  void list_variables() {
    for (const value_info& v : g_.network.inputs) {
      variable_of(v.name, v.name);
    }
    std::set<std::string> used_constants;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const bool is_quantized = g_.operators[i].is_quantized();
      for (std::string& name : operations_[i].inputs) {
        const std::string origin = name;
        // PPQ does not run graphs in which a constant has several users.
        if (g_.network.initializer(name) != nullptr && !used_constants.insert(name).second) {
          name = values_.take(name);
        }
        variable& v = variable_of(name, origin);
        v.destinations.push_back(i);
        v.is_quantable = v.is_quantable || is_quantized;
      }
      for (const std::string& name : operations_[i].outputs) {
        variable& v = variable_of(name, name);
        v.source = i;
        v.is_quantable = v.is_quantable || is_quantized;
      }
    }
    for (const value_info& v : g_.network.outputs) {
      variable_of(v.name, v.name);
    }
  }

  // ------------------------------------------------------------------------------- small pieces

  void key(const char* name) { w_.text(name); }
  void pair(const char* name, std::string_view text) {
    key(name);
    w_.text(text);
  }
  void truth(const char* name, bool value) {
    key(name);
    w_.boolean(value);
  }
  void number(const char* name, std::int64_t value) {
    key(name);
    w_.integer(value);
  }
  void nothing(const char* name) {
    key(name);
    w_.none();
  }
  template <class List, class Write>
  void list(const List& items, const Write& write) {
    w_.open_list();
    for (const auto& item : items) {
      write(item);
    }
    w_.close_list();
  }
  void names(const char* name, const std::vector<std::string>& texts) {
    key(name);
    list(texts, [&](const std::string& text) { w_.text(text); });
  }

  /// A member of an enumeration of PPQ's: the call of its class with the value.
  void enumerator(const char* module_name, const char* type, std::int64_t value) {
    const auto [place, is_new] = enumerators_.try_emplace({type, value}, pickle_writer::memo_id());
    if (!is_new) {
      w_.recall(place->second);
      return;
    }
    w_.global(module_name, type);
    w_.open_tuple();
    w_.integer(value);
    w_.close_tuple();
    w_.call();
    place->second = w_.remember();
  }
  void data_type(element_type t) {
    enumerator("ppq.core.data", "DataType",
               static_cast<std::int32_t>(is_ppq_data_type(t) ? t : element_type::undefined));
  }

  /// A torch.Tensor as PPQ stores it: its elements are a numpy.ndarray in a pickle of its own.
  void value_state(const tensor& t) {
    w_.open_object("ppq.core.storage", "ValueState");
    pair("_value_type", "Tensor");
    key("_dtype");
    write_dtype(w_, t.type());
    key("_shape");
    w_.global("torch", "Size");
    w_.open_tuple();
    w_.open_tuple();
    for (const std::int64_t d : t.dims()) {
      w_.integer(d);
    }
    w_.close_tuple();
    w_.close_tuple();
    w_.call();
    pickle_writer elements;
    write_array(elements, t);
    key("_value");
    w_.bytes(std::move(elements).finish());
    pair("__version__", version);
    w_.close_object();
  }

  // --------------------------------------------------------------------------- configurations

  void config(config_id id) {
    const auto known = configs_.find(id);
    if (known != configs_.end()) {
      w_.recall(known->second);
      return;
    }
    const tensor_quantization_config& c = g_.configs[id];
    const pickle_writer::memo_id self = w_.open_object(quant, "TensorQuantizationConfig");
    configs_[id] = self;
    const config_id source = g_.configs.source(id);
    settings(c, c.state(), source == id ? g_.configs.parameters(id) : tensor_parameters());
    key("detail");
    w_.open_dictionary();
    details(c);
    w_.close_dictionary();
    key("_dominator");
    config(source);  // flat, as PPQ's own links are after it has followed them
    identity(c, static_cast<std::size_t>(id));
    w_.close_object();
  }

  /// The configuration of an input or output that does not take part in the quantization, where PPQ
  /// needs one, too.
  void idle_config() {
    quantizer_settings s;
    s.policy = g_.target.activation.policy;
    s.rounding = g_.target.activation.rounding;
    s.bits = g_.target.activation.bits;
    s.levels = g_.target.activation.levels;
    s.observer = g_.target.activation.observer;
    const pickle_writer::memo_id self = w_.open_object(quant, "TensorQuantizationConfig");
    settings(s, quantization_state::fp32, {});
    key("detail");
    w_.open_dictionary();
    w_.close_dictionary();
    key("_dominator");
    w_.recall(self);
    identity(s, g_.configs.size() + idle_configs_++);
    w_.close_object();
  }

  void settings(const quantizer_settings& s, quantization_state state, const tensor_parameters& p) {
    require(s.rounding != rounding_policy::down, error_kind::unsupported, s.name,
            ": PPQ has no rounding towards -infinity");
    key("_policy");
    w_.open_object(quant, "QuantizationPolicy");
    number("_policy", s.policy.properties());
    w_.close_object();
    number("_exponent_bits", 0);
    number("_num_of_bits", s.bits);
    const bool one = !s.policy.is_per_channel();
    parameter("_scale", p.scales, one);
    parameter("_offset", std::vector<float>(p.zero_points.begin(), p.zero_points.end()), one);
    key("state");
    enumerator(quant, "QuantizationStates", static_cast<std::int64_t>(state));
    key("_rounding");
    enumerator(quant, "RoundingPolicy", static_cast<std::int64_t>(s.rounding));
    number("_quant_min", s.levels.qmin);
    number("_quant_max", s.levels.qmax);
    if (s.channel_axis) {
      number("_channel_axis", static_cast<std::int64_t>(*s.channel_axis));
    } else {
      nothing("_channel_axis");
    }
    constexpr std::string_view prefix = "ppq.";  // of observers with PPQ's numbers
    std::string_view observer = s.observer;
    observer.remove_prefix(observer.rfind(prefix, 0) == 0 ? prefix.size() : 0);
    pair("observer_algorithm", observer);
  }

  /// Scales or zero points: None, a scalar, or a vector with an element for each channel.
  void parameter(const char* name, const std::vector<float>& values, bool one) {
    if (values.empty()) {
      nothing(name);
      return;
    }
    key(name);
    value_state(tensor::of<float>(element_type::f32,
                                  one ? shape() : shape{static_cast<std::int64_t>(values.size())},
                                  values));
  }

  /// What PPQ's passes leave in a configuration for observers and for switching it on again.
  void details(const tensor_quantization_config& c) {
    if (c.overrides.percentile) {
      key("OBSERVER_PERCENTILE_MANUL_OVERRIDE");
      w_.real(*c.overrides.percentile);
    }
    if (c.overrides.histogram_bins) {
      number("OBSERVER_KL_HIST_BINS_MANUL_OVERRIDE",
             static_cast<std::int64_t>(*c.overrides.histogram_bins));
    }
    if (c.observer == "isotone" || c.observer == "ppq.isotone") {
      number("OBSERVER_ISOTONE_OBSERVER_AXIS", c.overrides.isotone_axis);
    }
    if (is_switched_off(c)) {
      key("Stored State");
      enumerator(quant, "QuantizationStates", static_cast<std::int64_t>(c.enabled_state()));
    }
  }

  void identity(const quantizer_settings& s, std::size_t number_of_it) {
    number("_hash", static_cast<std::int64_t>(number_of_it));
    key("_visibility");
    enumerator(quant, "QuantizationVisibility", static_cast<std::int64_t>(s.visibility) + 1);
    truth("_export_value", true);
    pair("__version__", version);
  }

  /// Whether a configuration is FP32 for a time only: it has been calibrated.
  [[nodiscard]] static bool is_switched_off(const tensor_quantization_config& c) {
    return c.state() == quantization_state::fp32 &&
           c.enabled_state() != quantization_state::initial &&
           c.enabled_state() != quantization_state::passive_init;
  }

  // --------------------------------------------------------------------------------- operations

  void attribute_value(const node& n, const std::string& name, const attribute& a) {
    using kind = attribute::kind_type;
    switch (a.kind) {
      case kind::i:
        if (n.is("Cast") && name == "to") {
          const auto type = static_cast<element_type>(a.i);
          require(is_ppq_data_type(type), error_kind::unsupported, n.label(), ": PPQ has no type ",
                  shown(type));
          data_type(type);
        } else {
          w_.integer(a.i);
        }
        return;
      case kind::f:
        w_.real(static_cast<double>(a.f));
        return;
      case kind::s:
        w_.text(a.s);
        return;
      case kind::t:
        write_array(w_, a.t);
        return;
      case kind::ints:
        list(a.ints, [&](std::int64_t i) { w_.integer(i); });
        return;
      case kind::floats:
        list(a.floats, [&](float f) { w_.real(static_cast<double>(f)); });
        return;
      case kind::strings:
        list(a.strings, [&](const std::string& s) { w_.bytes(std::string_view(s)); });
        return;
      default:
        raise(error_kind::unsupported,
              n.label() + ": attribute '" + name + "' is of a kind that PPQ does not have");
    }
  }

  void write_operation(std::size_t i) {
    const node& n = g_.network.nodes[i];
    const operation& o = operations_[i];
    const operator_configs& configs = g_.operators[i];
    w_.open_object(configs.is_quantized() ? quantize : base,
                   configs.is_quantized() ? "QuantableOperation" : "Operation");
    pair("_name", o.name);
    pair("_type", n.op_type);
    key("_attributes");
    w_.open_dictionary();
    for (const auto& [name, a] : n.attributes) {
      w_.text(name);
      attribute_value(n, name, a);
    }
    w_.close_dictionary();
    key("_platform");
    const bool of_shapes =
        std::all_of(n.outputs.begin(), n.outputs.end(),
                    [&](const std::string& v) { return shape_values_.count(v) != 0; });
    enumerator(quant, "TargetPlatform",
               configs.is_quantized() ? platform_
                                      : find_target_platform(of_shapes ? "SOI" : "FP32")->value);
    nothing("_meta");
    names("_input_vars", o.inputs);
    names("_output_vars", o.outputs);
    key("_detail");
    w_.open_dictionary();
    w_.close_dictionary();
    key("_opset");
    w_.open_object("ppq.IR.base.opdef", "Opset");
    const auto opset = g_.network.opsets.find(n.domain);
    pair("domain", n.domain.empty() ? std::string_view("ai.onnx") : n.domain);
    number("version", n.domain.empty()                   ? g_.network.opset()
                      : opset == g_.network.opsets.end() ? 1
                                                         : opset->second);
    w_.close_object();
    truth("_export_value", true);
    if (configs.is_quantized()) {
      write_configs(i);
    }
    pair("__version__", version);
    w_.close_object();
  }

  void write_configs(std::size_t i) {
    const operator_configs& configs = g_.operators[i];
    const auto side = [&](const char* name, const std::vector<config_id>& ids, std::size_t count) {
      key(name);
      list(std::span(ids).first((std::min)(count, ids.size())), [&](config_id id) {
        if (id == no_config) {
          idle_config();
        } else {
          config(id);
        }
      });
    };
    key("_config");
    w_.open_object(quant, "OperationQuantizationConfig");
    side("input_quantization_config", configs.inputs, operations_[i].inputs.size());
    side("output_quantization_config", configs.outputs, operations_[i].outputs.size());
    truth("is_active_quant_op", true);
    w_.close_object();
    bool any = false;
    g_.for_each_config(i, [&](config_id id) { any = any || is_switched_off(g_.configs[id]); });
    truth("_dequantized", any);
  }

  // ---------------------------------------------------------------------------------- variables

  /// The configuration of a constant, if a quantized operation takes it.
  [[nodiscard]] config_id config_of(const variable& v) const {
    for (const std::size_t i : v.destinations) {
      const std::vector<config_id>& ids = g_.operators[i].inputs;
      for (std::size_t slot = 0; slot < ids.size(); ++slot) {
        if (ids[slot] != no_config && operations_[i].inputs[slot] == v.name) {
          return ids[slot];
        }
      }
    }
    return no_config;
  }

  void write_variable(const variable& v) {
    const tensor* value = g_.network.initializer(v.origin);
    const tensor* stored = v.is_quantable ? value : nullptr;
    const auto before = g_.float_constants.find(v.origin);
    if (stored != nullptr && before != g_.float_constants.end()) {
      stored = &before->second;
      const config_id id = config_of(v);
      if (id != no_config && g_.configs[id].state() == quantization_state::fp32) {
        std::swap(value, stored);
      }
    }
    for (const tensor* t : {value, stored}) {
      require(t == nullptr || is_ppq_tensor_type(t->type()), error_kind::unsupported, "constant '",
              v.name, "': PPQ has no tensors of ",
              t == nullptr ? shown(element_type::undefined) : shown(t->type()));
    }
    w_.open_object(v.is_quantable ? quantize : base,
                   v.is_quantable ? "QuantableVariable" : "Variable");
    truth("_export_value", true);
    pair("_name", v.name);
    tensor_or_none("_value", value);
    key("_dest_ops");
    list(v.destinations, [&](std::size_t i) { w_.text(operations_[i].name); });
    if (v.source) {
      pair("_source_op", operations_[*v.source].name);
    } else {
      nothing("_source_op");
    }
    truth("_is_parameter", value != nullptr);
    const auto form = forms_.find(v.origin);
    if (form == forms_.end()) {
      nothing("_shape");
    } else {
      key("_shape");
      list(form->second.dims(), [&](std::int64_t d) { w_.integer(d); });
    }
    key("_dtype");
    data_type(form == forms_.end() ? element_type::f32 : form->second.type());
    if (v.is_quantable) {
      tensor_or_none("_fp32_value", stored);
    }
    pair("__version__", version);
    w_.close_object();
  }
  void tensor_or_none(const char* name, const tensor* t) {
    key(name);
    if (t == nullptr) {
      w_.none();
    } else {
      value_state(*t);
    }
  }

  // -------------------------------------------------------------------------------------- graph

  void write_graph() {
    const auto names_of = [&](const char* name, const std::vector<value_info>& values) {
      key(name);
      list(values, [&](const value_info& v) { w_.text(v.name); });
    };
    w_.open_object(base, "BaseGraph");
    truth("_export_value", true);
    key("_operations");
    w_.open_dictionary();
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      w_.text(operations_[i].name);
      write_operation(i);
    }
    w_.close_dictionary();
    key("_variables");
    w_.open_dictionary();
    for (const variable& v : variables_) {
      w_.text(v.name);
      write_variable(v);
    }
    w_.close_dictionary();
    names_of("_graph_inputs", g_.network.inputs);
    names_of("_graph_outputs", g_.network.outputs);
    pair("_name", g_.network.graph_name);
    key("_built_from");
    enumerator(quant, "NetworkFramework", 2);  // ONNX
    key("_detail");
    w_.open_dictionary();
    key("GRAPH_OPSET");
    list(g_.network.opsets, [&](const std::pair<const std::string, std::int64_t>& opset) {
      w_.open_dictionary();
      pair("domain", opset.first);
      number("version", opset.second);
      w_.close_dictionary();
    });
    number("ir_version", g_.network.ir_version);
    w_.close_dictionary();
    number("_num_of_generated_var", 0);
    number("_num_of_generated_op", 0);
    pair("__version__", version);
    w_.close_object();
  }

  const quantized_graph& g_;
  unused_names values_;                  // for variables that the network does not have
  std::map<std::string, tensor> forms_;  // types and shapes of values
  std::set<std::string> shape_values_;
  std::int64_t platform_ = 0;
  std::vector<operation> operations_;  // parallel to the nodes of the network
  std::vector<variable> variables_;
  std::map<std::string, std::size_t> places_;  // in variables_
  pickle_writer w_;
  std::map<std::pair<std::string_view, std::int64_t>, pickle_writer::memo_id> enumerators_;
  std::map<config_id, pickle_writer::memo_id> configs_;
  std::size_t idle_configs_ = 0;
};

}  // namespace detail

/// The network of a graph with all its configurations as a file of PPQ 0.6.6 (.native), the bytes
/// that its NativeExporter would write: three pickles of Python, "PPQ GRAPH DEFINITION", "0.6.6"
/// and a BaseGraph with
///
///   operations      the nodes of `network` under their names, or that of their first output; a
///                   second one of a name has a number behind it. Quantized ones are
///                   QuantableOperations of the member of TargetPlatform that the platform stands
///                   for (INT8 for a platform that is none of platforms()), the others are FP32, or
///                   SOI if they compute shapes.
///   variables       the values of `network`, with shapes where infer_shapes() knows them. A
///                   constant that a quantized operation takes has its values in float, too. A
///                   constant with several users is a variable for each of them, with a number
///                   behind the name of all but the first.
///   configurations  one for each input and output of a QuantableOperation, with settings, state
///                   and, if it is its own source, scale and zero point. `_hash` is the number of
///                   the configuration, as in export_ppl_json(), and `_dominator` the configuration
///                   whose parameters it reads. Inputs and outputs that do not take part in the
///                   quantization have idle ones, with state FP32.
///
/// Python loads a pickle by calling what it names; this one names nothing but classes of PPQ,
/// numpy.dtype, numpy.ndarray, the function by which NumPy makes arrays, and torch.Size.
///
/// PPQ's executor quantizes an input where its configuration is ACTIVATED or PASSIVE, and takes an
/// OVERLAPPED one to be quantized where it is made. Names of observers that PPQ does not have are
/// kept; they matter only if PPQ calibrates anew.
///
/// Throws unsupported, naming node, constant or configuration, for what PPQ does not have:
/// sub-graphs, functions of models, attributes of other kinds than numbers, strings and tensors,
/// constants of 4-bit, float8, bfloat16, string or unsigned 16 to 64-bit types, and rounding
/// towards -infinity; invalid_argument for names that are not UTF-8; and what infer_shapes()
/// throws.
[[nodiscard]] DETENT_GRAPH_DECL std::string export_native(const quantized_graph& g);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::string export_native(const quantized_graph& g) {
  return detail::native_writer(g).run();
}
#endif

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EXPORT_NATIVE_HPP
