// SPDX-License-Identifier: BSD-3-Clause
// Upgrades a model to opset 13 of ONNX, which QuantizeLinear with a scale for each channel needs,
// or to opset 19, which QuantizeLinear to floats of 8 bits needs.
#ifndef DETENT_GRAPH_REWRITE_OPSET_HPP
#define DETENT_GRAPH_REWRITE_OPSET_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
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
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Rewrites nodes of older opsets to opset 13 or 19, in sub-graphs as well. New constants are added
/// to the model itself; sub-graphs capture them from there.
class opset_upgrade {
 public:
  opset_upgrade(model& m, std::int64_t to) : m_(m), from_(m.opset()), to_(to) {
    require(from_ >= 7, error_kind::unsupported, "the model has opset ", from_,
            "; the oldest that can be upgraded is 7");
  }

  void run() {
    require_no_calls(m_, function_table(m_));
    m_.functions.clear();  // nothing calls them, and their operators are of the old opset
    const std::map<std::string, tensor> known = infer_shapes(m_);
    const auto has_rows = [](const node& n) { return is_softmax(n) || n.is("ImageScaler"); };
    if (from_ < 13 && std::any_of(m_.nodes.begin(), m_.nodes.end(), has_rows)) {
      shapes_.emplace(m_);
    }
    names_ = unused_names(m_);
    enter(m_, {}, known);
    if (from_ <= 10) {
      for_each_own_value(m_, [&](const std::string& name) { values_of_model_.insert(name); });
    }
    std::vector<node> nodes = std::move(m_.nodes);
    upgrade_all(nodes);
    // A value of a sub-graph may have the name of another value, so that shapes are not looked up
    // there.
    shapes_.reset();
    is_in_body_ = true;
    for (node& n : nodes) {
      upgrade_bodies(n);
    }
    m_.nodes = std::move(nodes);
    m_.opsets[""] = to_;
    m_.ir_version = (std::max)(m_.ir_version, std::int64_t{to_ < 19 ? 7 : 9});
  }

 private:
  /// Throws unsupported if a node calls a function of the model.
  void require_no_calls(const graph_body& g, const function_table& functions) const {
    for (const node& n : g.nodes) {
      require(functions.function_of(n) == nullptr, error_kind::unsupported, n.label(),
              " calls a function of the model, which cannot be upgraded from opset ", from_,
              " to opset ", to_);
      for_each_body(n, [&](const std::string&, const graph_body& body) {
        require_no_calls(body, functions);
      });
    }
  }

  void upgrade_all(std::vector<node>& list) {
    std::vector<node> nodes;
    for (node& n : list) {
      if (n.domain.empty()) {
        upgrade(n, nodes);
      }
      nodes.push_back(std::move(n));
      for (node& extra : after_) {
        nodes.push_back(std::move(extra));
      }
      after_.clear();
    }
    list = std::move(nodes);
  }

  void upgrade_bodies(node& n) {
    if (!has_bodies(n)) {
      return;
    }
    change_bodies(n, [&](graph_body& body) {
      const names_outside outside = names_hidden_by(body);
      enter(body, n.inputs, {});
      upgrade_all(body.nodes);
      for (node& within : body.nodes) {
        upgrade_bodies(within);
      }
      restore(outside);
    });
  }

  /// What is known of the values around a graph whose names the graph has for its own.
  struct names_outside {
    std::vector<std::string> names;
    std::map<std::string, tensor> constants;
    std::map<std::string, element_type> types;
  };
  [[nodiscard]] names_outside names_hidden_by(const graph_body& g) const {
    names_outside outside;
    if (from_ > 10) {
      return outside;
    }
    for_each_own_value(g, [&](const std::string& name) {
      outside.names.push_back(name);
      if (const auto found = constants_.find(name); found != constants_.end()) {
        outside.constants.insert(*found);
      }
      if (const auto found = types_.find(name); found != types_.end()) {
        outside.types.insert(*found);
      }
    });
    return outside;
  }
  void restore(const names_outside& outside) {
    for (const std::string& name : outside.names) {
      constants_.erase(name);
      types_.erase(name);
    }
    constants_.insert(outside.constants.begin(), outside.constants.end());
    types_.insert(outside.types.begin(), outside.types.end());
  }

  /// Takes note of the constants and types of a graph, for nodes of opset 10 and older. Names of
  /// the graph's own values hide those outside of it. `given`: the inputs of the node that the
  /// graph belongs to. `known`: what infer_shapes() finds for the model itself.
  void enter(const graph_body& g, const std::vector<std::string>& given,
             const std::map<std::string, tensor>& known) {
    if (from_ > 10) {
      return;
    }
    std::vector<element_type> types_of_given;
    for (const std::string& name : given) {
      types_of_given.push_back(type_of(name));
    }
    for_each_own_value(g, [&](const std::string& name) {
      constants_.erase(name);
      types_.erase(name);
    });
    enter_constants(g, known);
    for (const auto& [name, t] : known) {
      note_type(name, t.type());
    }
    for (const std::vector<value_info>* list : {&g.inputs, &g.values, &g.outputs}) {
      for (const value_info& v : *list) {
        note_type(v.name, v.type);
      }
    }
    for (std::size_t i = 0; i < g.inputs.size() && i < types_of_given.size(); ++i) {
      note_type(g.inputs[i].name, types_of_given[i]);  // Loop and Scan pass on most of their inputs
    }
    for (const node& n : g.nodes) {
      for (std::size_t i = 0; i < n.outputs.size(); ++i) {
        note_type(n.outputs[i], float_type_of(n, i));
      }
    }
  }

  /// Calls f(name) for the values that a graph makes itself, without its sub-graphs.
  template <class Function>
  static void for_each_own_value(const graph_body& g, const Function& f) {
    for (const value_info& v : g.inputs) {
      f(v.name);
    }
    for (const auto& [name, t] : g.initializers) {
      f(name);
    }
    for (const node& n : g.nodes) {
      std::for_each(n.outputs.begin(), n.outputs.end(), f);
    }
  }

  void enter_constants(const graph_body& g, const std::map<std::string, tensor>& known) {
    for (const node& n : g.nodes) {
      const attribute* const value = n.is("Constant") ? n.find("value") : nullptr;
      if (value != nullptr && value->t.has_data() && n.outputs.size() == 1) {
        constants_[n.outputs[0]] = value->t;
      }
    }
    for (const auto& [name, t] : g.initializers) {
      constants_[name] = t;
      note_type(name, t.type());
    }
    // Sizes that are computed from those of inputs are no constants if the inputs may have others.
    if (!has_open_dims(m_)) {
      for (const auto& [name, t] : known) {
        if (t.has_data()) {
          constants_.emplace(name, t);
        }
      }
    }
  }

  /// Takes note of the type of a value, if it is known and was not before.
  void note_type(const std::string& value, element_type type) {
    if (!value.empty() && type != element_type::undefined) {
      types_.emplace(value, type);
    }
  }

  /// The type of output `i` of a node of opset 10 or older, if that is a type of floats; undefined
  /// if it does not follow. Other types do not matter: no node that asks takes them.
  [[nodiscard]] element_type float_type_of(const node& n, std::size_t i) const {
    if (!n.domain.empty()) {
      return element_type::undefined;
    }
    if (has_bodies(n)) {
      return declared_type(n, i);
    }
    const attribute* const value = n.find("value");
    const bool has_tensor = value != nullptr && value->kind == attribute::kind_type::t;
    if (n.op_type == "Constant") {
      return has_tensor ? value->t.type() : element_type::undefined;
    }
    if (n.op_type == "ConstantOfShape") {
      return has_tensor ? value->t.type() : element_type::f32;
    }
    if (n.op_type == "Cast") {
      return static_cast<element_type>(n.get_int("to", 0));
    }
    if (n.find("dtype") != nullptr) {  // EyeLike and random numbers
      return static_cast<element_type>(n.get_int("dtype", 0));
    }
    if (n.op_type == "RandomNormal" || n.op_type == "RandomUniform" ||
        n.op_type == "DequantizeLinear" || n.op_type == "TfIdfVectorizer") {
      return element_type::f32;
    }
    const std::size_t like = n.op_type == "Where" ? 1 : n.op_type == "OneHot" ? 2 : 0;
    return like < n.inputs.size() ? type_of(n.inputs[like]) : element_type::undefined;
  }

  /// The type that the sub-graphs of a node declare for what becomes its output `i`.
  [[nodiscard]] static element_type declared_type(const node& n, std::size_t i) {
    const std::size_t at = n.op_type == "Loop" ? i + 1 : i;  // behind the condition of a Loop
    element_type type = element_type::undefined;
    for_each_body(n, [&](const std::string&, const graph_body& body) {
      if (type == element_type::undefined && at < body.outputs.size()) {
        type = body.outputs[at].type;
      }
    });
    return type;
  }
  [[nodiscard]] const tensor* constant_of(const std::string& name) const {
    const auto found = constants_.find(name);
    return found == constants_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] static bool is_softmax(const node& n) {
    return n.is("Softmax") || n.is("LogSoftmax") || n.is("Hardmax");
  }

  void upgrade(node& n, std::vector<node>& before) {
    if (from_ < 13) {
      upgrade_to_13(n, before);
    }
    if (to_ > 13) {
      upgrade_to_19(n);
    }
  }

  void upgrade_to_19(node& n) {
    static constexpr std::string_view reductions[] = {
        "ReduceL1",   "ReduceL2",  "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd",   "ReduceSumSquare"};
    if (n.op_type == "RoiAlign" && from_ < 16 &&
        n.find("coordinate_transformation_mode") == nullptr) {
      set_text(n, "coordinate_transformation_mode", "output_half_pixel");  // the default before 16
    } else if (n.op_type == "Split" && from_ < 18 && (n.inputs.size() < 2 || n.inputs[1].empty())) {
      n.attributes["num_outputs"] = attribute::of(static_cast<std::int64_t>(n.outputs.size()));
    } else if (n.op_type == "Resize" && from_ < 18 && n.inputs.size() > 3 && !n.inputs[3].empty()) {
      n.inputs[2].clear();  // empty scales beside sizes, which opset 18 does not allow
    } else if (from_ < 18 && std::find(std::begin(reductions), std::end(reductions), n.op_type) !=
                                 std::end(reductions)) {
      ints_attribute_to_input(n, "axes", 1);
    }
  }

  void upgrade_to_13(node& n, std::vector<node>& before) {
    static constexpr std::string_view removed[] = {
        "ATen",    "Affine",          "ConstantFill",       "Crop",  "DynamicSlice",
        "GRUUnit", "GivenTensorFill", "ParametricSoftplus", "Scale", "ScaledTanh"};
    require(std::find(std::begin(removed), std::end(removed), n.op_type) == std::end(removed),
            error_kind::unsupported, n.label(), ": opset ", to_, " has no operator ", n.op_type);
    require(n.op_type != "Scan" || from_ >= 9, error_kind::unsupported, n.label(),
            ": Scan of opset 8 cannot be upgraded to opset 13");
    if (n.op_type == "Clip" && from_ < 11) {
      float_attribute_to_input(n, "min", 1);
      float_attribute_to_input(n, "max", 2);
    } else if (n.op_type == "Pad" && from_ < 11) {
      ints_attribute_to_input(n, "pads", 1);
      float_attribute_to_input(n, "value", 2);
    } else if (n.op_type == "Slice" && from_ < 10) {
      ints_attribute_to_input(n, "starts", 1);
      ints_attribute_to_input(n, "ends", 2);
      ints_attribute_to_input(n, "axes", 3);
    } else if (n.op_type == "TopK" && from_ < 10) {
      const std::int64_t k = n.get_int("k", -1);
      n.attributes.erase("k");
      set_input(n, 1, constant(n, "k", std::vector<std::int64_t>{k}));
    } else if (n.op_type == "Scatter" && from_ < 11) {
      n.op_type = "ScatterElements";
    } else if (n.op_type == "Squeeze" || n.op_type == "Unsqueeze" || n.op_type == "ReduceSum") {
      ints_attribute_to_input(n, "axes", 1);
    } else if (n.op_type == "Split") {
      ints_attribute_to_input(n, "split", 1);
    } else if (n.op_type == "Slice" && from_ == 10) {
      upgrade_ends_of_slice(n);
    } else if (n.op_type == "Dropout" && from_ < 12) {
      n.attributes.erase("ratio");
      if (from_ < 10 && n.outputs.size() > 1 && !n.outputs[1].empty()) {
        upgrade_mask(n);
      }
    } else if (n.op_type == "BatchNormalization") {
      require(n.get_int("spatial", 1) == 1, error_kind::unsupported, n.label(),
              ": spatial = 0 cannot be upgraded to opset 13");
      n.attributes.erase("spatial");
    } else if (n.op_type == "ImageScaler") {
      upgrade_image_scaler(n, before);
    } else if (n.op_type == "Upsample" || (n.op_type == "Resize" && from_ < 11)) {
      upgrade_resize(n, before);
    } else if (is_softmax(n)) {
      upgrade_softmax(n, before);
    }
  }

  /// Adds a constant to the model, named after a node and its purpose; returns its name.
  std::string constant(const node& n, const char* what, tensor t) {
    const std::string name = names_.take((n.name.empty() ? n.outputs[0] : n.name) + "_" + what);
    m_.initializers[name] = std::move(t);
    return name;
  }
  std::string constant(const node& n, const char* what, const std::vector<std::int64_t>& values) {
    return constant(n, what,
                    tensor::of<std::int64_t>(element_type::s64,
                                             {static_cast<std::int64_t>(values.size())}, values));
  }

  static void set_text(node& n, const char* key, const char* value) {
    attribute a;
    a.kind = attribute::kind_type::s;
    a.s = value;
    n.attributes[key] = std::move(a);
  }
  static void set_input(node& n, std::size_t i, std::string name) {
    if (n.inputs.size() <= i) {
      n.inputs.resize(i + 1);
    }
    n.inputs[i] = std::move(name);
  }
  /// The type of a value, or undefined if it is not known.
  [[nodiscard]] element_type type_of(const std::string& value) const {
    const auto found = types_.find(value);
    return found == types_.end() ? element_type::undefined : found->second;
  }
  /// The type of the first input of a node. If it is not known, it is taken for float32 for values
  /// of the model's own graph, and is an error for those of a sub-graph, where less is known.
  [[nodiscard]] element_type type_of_data(const node& n) const {
    const element_type type = type_of(n.inputs[0]);
    const bool is_of_model = !is_in_body_ || values_of_model_.count(n.inputs[0]) != 0;
    require(type != element_type::undefined || is_of_model, error_kind::unsupported, n.label(),
            ": the type of '", n.inputs[0], "' is not known, so that the node cannot be upgraded ",
            "from opset ", from_, " to opset ", to_);
    return type == element_type::undefined ? element_type::f32 : type;
  }
  /// The attribute becomes a constant of the type of the node's first input.
  void float_attribute_to_input(node& n, const char* key, std::size_t i) {
    if (const attribute* a = n.find(key)) {
      const float value = a->f;
      const element_type type = type_of_data(n);
      const tensor single = tensor::of<float>(element_type::f32, {}, std::span(&value, 1));
      const double wide = static_cast<double>(value);
      set_input(
          n, i,
          constant(n, key,
                   is_half(type)               ? float_to_half(single, type)
                   : type == element_type::f64 ? tensor::of<double>(type, {}, std::span(&wide, 1))
                                               : single));
      n.attributes.erase(key);
    }
  }
  /// In opset 10, the largest integer stands for the end of the dimension in either direction;
  /// later, the smallest one does so backwards. Ends that are not constant stay.
  void upgrade_ends_of_slice(node& n) {
    const tensor* ends = n.inputs.size() > 4 ? constant_of(n.inputs[2]) : nullptr;
    const tensor* steps = ends != nullptr ? constant_of(n.inputs[4]) : nullptr;
    if (steps == nullptr || ends->count() != steps->count()) {
      return;
    }
    const auto replace = [&]<class T>(T) {
      std::vector<T> values(ends->data<T>().begin(), ends->data<T>().end());
      bool is_changed = false;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool to_the_end =
            values[i] == (std::numeric_limits<T>::max)() ||
            static_cast<std::int64_t>(values[i]) == (std::numeric_limits<std::int32_t>::max)();
        if (to_the_end && steps->data<T>()[i] < 0) {
          values[i] = (std::numeric_limits<T>::min)();
          is_changed = true;
        }
      }
      if (is_changed) {
        n.inputs[2] = constant(n, "ends", tensor::of<T>(ends->type(), ends->dims(), values));
      }
    };
    if (ends->type() == element_type::s64 && steps->type() == element_type::s64) {
      replace(std::int64_t{});
    } else if (ends->type() == element_type::s32 && steps->type() == element_type::s32) {
      replace(std::int32_t{});
    }
  }
  /// Before opset 10, the mask of Dropout had the type of its data.
  void upgrade_mask(node& n) {
    node cast;
    cast.op_type = "Cast";
    cast.attributes["to"] = attribute::of(static_cast<std::int64_t>(type_of_data(n)));
    cast.inputs = {names_.take(n.outputs[1] + "_bool")};
    cast.outputs = {n.outputs[1]};
    n.outputs[1] = cast.inputs[0];
    after_.push_back(std::move(cast));
  }
  void ints_attribute_to_input(node& n, const char* key, std::size_t i) {
    if (const attribute* a = n.find(key)) {
      set_input(n, i, constant(n, key, a->ints));
      n.attributes.erase(key);
    }
  }

  /// scale * x + bias[channel] is a product and a sum in opset 10 and later.
  void upgrade_image_scaler(node& n, std::vector<node>& before) {
    const std::size_t rank = rank_of(n.inputs[0]).value_or(4);
    const attribute* bias = n.find("bias");
    const std::vector<float> biases = bias == nullptr ? std::vector<float>() : bias->floats;
    // One value for each channel, and 1 for each axis behind; images have two such axes.
    shape dims((std::max)(rank, std::size_t{2}) - 1, 1);
    dims[0] = static_cast<std::int64_t>(biases.size());
    const float scale = n.get_float("scale", 1.0F);
    if (scale != 1.0F) {
      node product;
      product.op_type = "Mul";
      product.inputs = {
          n.inputs[0],
          constant(n, "scale", tensor::of<float>(element_type::f32, {}, std::span(&scale, 1)))};
      product.outputs = {names_.take(n.outputs[0] + "_scaled")};
      n.inputs[0] = product.outputs[0];
      before.push_back(std::move(product));
    }
    n.op_type = "Add";
    set_input(n, 1, constant(n, "bias", tensor::of<float>(element_type::f32, dims, biases)));
    n.attributes.clear();
  }

  /// Old forms of Resize do not shift by half pixels. For element i of the output, nearest takes
  /// element i / scale of the input, rounded down where the scale is at least 1 and up where it is
  /// smaller.
  void upgrade_resize(node& n, std::vector<node>& before) {
    const bool shrinks_nothing = n.op_type == "Upsample";  // its scales are at least 1
    std::string scales = n.inputs.size() > 1 ? n.inputs[1] : std::string();
    const tensor* known = constant_of(scales);
    if (const attribute* a = n.find("scales")) {
      scales =
          constant(n, "scales",
                   tensor::of<float>(element_type::f32,
                                     {static_cast<std::int64_t>(a->floats.size())}, a->floats));
      known = &m_.initializers.at(scales);
      n.attributes.erase("scales");
    }
    n.op_type = "Resize";
    n.inputs = {n.inputs[0], "", scales};
    set_text(n, "coordinate_transformation_mode", "asymmetric");
    if (n.get_string("mode", "nearest") == "bilinear") {  // a name that converters used before
      set_text(n, "mode", "linear");
    }
    if (n.get_string("mode", "nearest") != "nearest") {
      return;
    }
    if (known != nullptr && known->type() == element_type::f32) {
      round_nearest(n, known->data<float>(), before);
    } else if (shrinks_nothing) {
      set_text(n, "nearest_mode", "floor");
    } else {
      const tensor one = tensor::of<float>(element_type::f32, {}, std::vector<float>{1.0F});
      const std::string bound = constant(n, "one", one);
      const std::string smaller = limited(n, "Min", bound, before);
      const std::string larger = limited(n, "Max", bound, before);
      resize_twice(n, smaller, larger, before);
    }
  }

  /// Sets how an upgraded nearest Resize with known scales rounds.
  void round_nearest(node& n, std::span<const float> scales, std::vector<node>& before) {
    const bool shrinks =
        std::any_of(scales.begin(), scales.end(), [](float s) { return s < 1.0F; });
    const bool grows = std::any_of(scales.begin(), scales.end(), [](float s) { return s > 1.0F; });
    if (!shrinks || !grows) {
      set_text(n, "nearest_mode", shrinks ? "ceil" : "floor");
      return;
    }
    std::vector<float> smaller;
    std::vector<float> larger;
    for (const float s : scales) {
      smaller.push_back((std::min)(s, 1.0F));
      larger.push_back((std::max)(s, 1.0F));
    }
    const shape dims{static_cast<std::int64_t>(scales.size())};
    const std::string shrink =
        constant(n, "smaller", tensor::of<float>(element_type::f32, dims, smaller));
    resize_twice(n, shrink,
                 constant(n, "larger", tensor::of<float>(element_type::f32, dims, larger)), before);
  }

  /// The scales of a Resize that are limited to `bound` by Min or Max.
  std::string limited(const node& n, const char* op, const std::string& bound,
                      std::vector<node>& before) {
    node limit;
    limit.op_type = op;
    limit.inputs = {n.inputs[2], bound};
    limit.outputs = {names_.take(n.outputs[0] + "_scales")};
    before.push_back(limit);
    return limit.outputs[0];
  }

  /// Divides an upgraded nearest Resize, which rounds in one way along all axes: the first one
  /// shrinks axes, the second one enlarges others. An axis with a scale of 1 stays as it is, so
  /// that each axis is resized once, by the scale that it had.
  void resize_twice(node& n, const std::string& smaller, const std::string& larger,
                    std::vector<node>& before) {
    node shrink = n;
    shrink.name.clear();
    shrink.inputs[2] = smaller;
    shrink.outputs = {names_.take(n.outputs[0] + "_shrunk")};
    set_text(shrink, "nearest_mode", "ceil");
    n.inputs[0] = shrink.outputs[0];
    n.inputs[2] = larger;
    set_text(n, "nearest_mode", "floor");
    before.push_back(std::move(shrink));
  }

  /// The number of dimensions of a value of the model's graph, if it is certain.
  [[nodiscard]] std::optional<std::size_t> rank_of(const std::string& value) const {
    return shapes_ ? shapes_->rank(value) : std::nullopt;
  }

  /// Before opset 13, Softmax treated all dimensions from `axis` on as one row. If these are
  /// several, or if their number is not known, the tensor is flattened before the node and reshaped
  /// behind it.
  void upgrade_softmax(node& n, std::vector<node>& before) {
    std::int64_t axis = n.get_int("axis", 1);
    const std::optional<std::size_t> known_rank = rank_of(n.inputs[0]);
    const std::int64_t rank = known_rank ? static_cast<std::int64_t>(*known_rank) : -1;
    const std::int64_t limit = rank > 0 ? rank : std::int64_t{max_tensor_rank};
    require(axis >= -limit && axis < limit, error_kind::bad_file, n.label(), ": axis ", axis,
            " of ", limit, " dimensions");
    if (rank > 0 && axis < 0) {
      axis += rank;
    }
    n.attributes["axis"] = attribute::of(std::int64_t{-1});
    if (axis == -1 || (rank > 0 && axis == rank - 1)) {
      return;
    }
    // Trailing dimensions of extent 1 make no difference; open ones may be larger.
    const std::optional<shape> dims = rank > 0 ? shapes_->dims(n.inputs[0]) : std::nullopt;
    bool one_row = dims.has_value();
    for (std::int64_t i = axis + 1; one_row && i < rank; ++i) {
      one_row = (*dims)[static_cast<std::size_t>(i)] == 1;
    }
    if (one_row) {
      n.attributes["axis"] = attribute::of(axis);
      return;
    }
    node shape_of;
    shape_of.op_type = "Shape";
    shape_of.inputs = {n.inputs[0]};
    shape_of.outputs = {names_.take(n.outputs[0] + "_shape")};
    node flatten;
    flatten.op_type = "Flatten";
    flatten.attributes["axis"] = attribute::of(axis);
    flatten.inputs = {n.inputs[0]};
    flatten.outputs = {names_.take(n.outputs[0] + "_flat_in")};
    node restore;
    restore.op_type = "Reshape";
    restore.inputs = {names_.take(n.outputs[0] + "_flat"), shape_of.outputs[0]};
    restore.outputs = {n.outputs[0]};
    n.inputs[0] = flatten.outputs[0];
    n.outputs[0] = restore.inputs[0];
    before.push_back(std::move(shape_of));
    before.push_back(std::move(flatten));
    after_.push_back(std::move(restore));
  }

  model& m_;
  std::int64_t from_, to_;
  std::vector<node> after_;
  std::set<std::string> values_of_model_;      // those of its own graph; up to opset 10
  bool is_in_body_ = false;                    // the nodes being upgraded are in a sub-graph
  std::optional<value_shapes> shapes_;         // of values of the model's own graph
  std::map<std::string, tensor> constants_;    // that these nodes see; up to opset 10
  std::map<std::string, element_type> types_;  // of values that these nodes see; up to opset 10
  unused_names names_;
};

}  // namespace detail

/// Upgrades a model of opset 7 or later to opset `to`, in place; models of that opset and newer
/// ones stay as they are. Functions of the model that no node calls are removed.
///
/// Throws invalid_argument if `to` is neither 13 nor 19. Throws unsupported if the opset is below
/// 7, if a node calls a function of the model, if a node has an operator that ONNX has removed, if
/// it has a form without an equivalent in opset `to` (Scan of opset 8, BatchNormalization with
/// spatial = 0), or if its equivalent depends on a type that is not known (Clip and Pad of opset 10
/// and Dropout of opset 9 in sub-graphs), naming the node.
DETENT_GRAPH_DECL void upgrade_opset(model& m, std::int64_t to = 13);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void upgrade_opset(model& m, std::int64_t to) {
  require(to == 13 || to == 19, error_kind::invalid_argument, "upgrade_opset: opset ", to,
          " is neither 13 nor 19");
  if (m.opset() < to) {
    detail::opset_upgrade(m, to).run();
  }
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_OPSET_HPP
