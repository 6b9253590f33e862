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
    require_no_calls(m_);
    m_.functions.clear();  // nothing calls them, and their operators are of the old opset
    known_ = infer_shapes(m_);
    const auto has_rows = [](const node& n) { return is_softmax(n); };
    if (from_ < 13 && std::any_of(m_.nodes.begin(), m_.nodes.end(), has_rows)) {
      shapes_.emplace(m_);
    }
    names_ = unused_names(m_);
    enter(m_);
    std::vector<node> nodes = std::move(m_.nodes);
    upgrade_all(nodes);
    // A value of a sub-graph may have the name of another value, so that neither types nor shapes
    // are looked up there.
    known_.clear();
    shapes_.reset();
    for (node& n : nodes) {
      upgrade_bodies(n);
    }
    m_.nodes = std::move(nodes);
    m_.opsets[""] = to_;
    m_.ir_version = (std::max)(m_.ir_version, std::int64_t{to_ < 19 ? 7 : 9});
  }

 private:
  /// Throws unsupported if a node calls a function of the model.
  void require_no_calls(const graph_body& g) const {
    for (const node& n : g.nodes) {
      require(m_.function_of(n) == nullptr, error_kind::unsupported, n.label(),
              " calls a function of the model, which cannot be upgraded from opset ", from_,
              " to opset ", to_);
      for_each_body(n, [&](const std::string&, const graph_body& body) { require_no_calls(body); });
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
      const std::map<std::string, tensor> outside = constants_;
      enter(body);
      upgrade_all(body.nodes);
      for (node& within : body.nodes) {
        upgrade_bodies(within);
      }
      constants_ = outside;
    });
  }

  /// Takes note of the constants of a graph, for upgrade_ends_of_slice(). Names of the graph's own
  /// values hide those outside of it.
  void enter(const graph_body& g) {
    if (from_ != 10) {
      return;
    }
    for (const value_info& v : g.inputs) {
      constants_.erase(v.name);
    }
    for (const node& n : g.nodes) {
      for (const std::string& name : n.outputs) {
        constants_.erase(name);
      }
      const attribute* const value = n.is("Constant") ? n.find("value") : nullptr;
      if (value != nullptr && value->t.has_data() && n.outputs.size() == 1) {
        constants_[n.outputs[0]] = value->t;
      }
    }
    for (const auto& [name, t] : g.initializers) {
      constants_[name] = t;
    }
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
      upgrade_resize(n);
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
  /// The type of a value; float32 if it is not known.
  [[nodiscard]] element_type type_of(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() || found->second.type() == element_type::undefined
               ? element_type::f32
               : found->second.type();
  }
  /// The attribute becomes a constant of the type of the node's first input.
  void float_attribute_to_input(node& n, const char* key, std::size_t i) {
    if (const attribute* a = n.find(key)) {
      const float value = a->f;
      const element_type type = type_of(n.inputs[0]);
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
    cast.attributes["to"] = attribute::of(static_cast<std::int64_t>(type_of(n.inputs[0])));
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
    const auto in = known_.find(n.inputs[0]);
    const attribute* bias = n.find("bias");
    const std::vector<float> biases = bias == nullptr ? std::vector<float>() : bias->floats;
    // One value for each channel, and 1 for each axis behind; images have two such axes.
    shape dims(in == known_.end() ? 3 : (std::max)(in->second.rank(), std::size_t{2}) - 1, 1);
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

  /// Old forms of Resize: nearest takes element floor(x / scale), and linear does not shift by half
  /// pixels either.
  void upgrade_resize(node& n) {
    std::string scales = n.inputs.size() > 1 ? n.inputs[1] : std::string();
    if (const attribute* a = n.find("scales")) {
      scales =
          constant(n, "scales",
                   tensor::of<float>(element_type::f32,
                                     {static_cast<std::int64_t>(a->floats.size())}, a->floats));
      n.attributes.erase("scales");
    }
    n.op_type = "Resize";
    n.inputs = {n.inputs[0], "", scales};
    set_text(n, "coordinate_transformation_mode", "asymmetric");
    set_text(n, "nearest_mode", "floor");
  }

  /// Before opset 13, Softmax treated all dimensions from `axis` on as one row. If these are
  /// several, or if their number is not known, the tensor is flattened before the node and reshaped
  /// behind it.
  void upgrade_softmax(node& n, std::vector<node>& before) {
    const auto in = known_.find(n.inputs[0]);
    std::int64_t axis = n.get_int("axis", 1);
    const std::int64_t rank =
        in == known_.end() ? -1 : static_cast<std::int64_t>(in->second.rank());
    const std::int64_t limit = rank > 0 ? rank : std::int64_t{max_tensor_rank};
    require(axis >= -limit && axis < limit, error_kind::bad_file, n.label(), ": axis ", axis,
            " of ", limit, " dimensions");
    if (rank > 0 && axis < 0) {
      axis += rank;
    }
    n.attributes["axis"] = attribute::of(std::int64_t{-1});
    if (axis == -1 || axis == rank - 1) {
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
  std::map<std::string, tensor> known_;
  std::optional<value_shapes> shapes_;
  std::map<std::string, tensor> constants_;  // that the nodes being upgraded see; of opset 10
  unused_names names_;
};

}  // namespace detail

/// Upgrades a model of opset 7 or later to opset `to`, in place; models of that opset and newer
/// ones stay as they are. Functions of the model that no node calls are removed.
///
/// Throws invalid_argument if `to` is neither 13 nor 19. Throws unsupported if the opset is below
/// 7, if a node calls a function of the model, or if a node has a form without an equivalent in
/// opset `to` (Scan of opset 8, BatchNormalization with spatial = 0), naming the node.
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
