// SPDX-License-Identifier: BSD-3-Clause
// The folder runtimes/ puts the library inside other runtimes: what all of them need stands in it,
// and each runtime has a folder. It may include everything else; nothing else includes it.
//
// This file finds the parts of a model that a runtime hands over to the library: those whose
// products of weights run as integers.
#ifndef DETENT_RUNTIMES_INTEGER_REGIONS_HPP
#define DETENT_RUNTIMES_INTEGER_REGIONS_HPP

#include <algorithm>
#include <array>
#include <cmath>
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
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/ops/matmul_nbits.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes {

/// Which nodes a runtime hands over.
enum class claim_mode : std::uint8_t {
  integer,  ///< Regions with integer products of weights, and what lies between such products.
  all,      ///< Every node that the library has an operator for.
  none,     ///< No node.
};

/// Options of find_integer_regions().
struct region_options {
  claim_mode claim = claim_mode::integer;  ///< Which nodes become part of regions.
  /// In mode `integer`: a region with fewer multiply-adds in its products stays with the runtime,
  /// because handing values over costs more than the products save. Products whose size is unknown,
  /// for example because it depends on open dimensions, count as large.
  std::uint64_t min_multiply_adds = 20'000;
};

/// A set of nodes that can be replaced by a single one: no path leads from one of its nodes through
/// a node outside to another of its nodes.
struct integer_region {
  std::vector<std::size_t> nodes;   ///< Their indices in the model, in ascending order.
  std::size_t products = 0;         ///< How many of them are integer products of weights.
  std::uint64_t multiply_adds = 0;  ///< Those of the products; the largest number if unknown.
};

/// The regions of a model, and why its other nodes are in none.
struct region_search {
  std::vector<integer_region> regions;  ///< In the order of their first nodes.
  std::vector<std::string> reasons;     ///< For each node; empty for a node of a region.
};

/// The nodes of a region as a model of its own. Its inputs are the values that it takes from other
/// nodes and the inputs of the model, its outputs the values that others take from it and the
/// outputs of the model, in the order in which the nodes name them. Constants are shared.
[[nodiscard]] inline graph::model model_of(const graph::model& m, const integer_region& region);

namespace detail {

using namespace graph;

/// What is known of the nodes of a model while regions are sought.
class region_finder {
 public:
  region_finder(const model& m, const region_options& options, const operator_registry& registry)
      : m_(m),
        links_(m),
        functions_(m),
        options_(options),
        registry_(registry),
        nodes_(m.nodes.size()) {}

  region_search run() {
    region_search found;
    found.reasons.resize(nodes_.size());
    if (options_.claim == claim_mode::none) {
      std::fill(found.reasons.begin(), found.reasons.end(), "no node is to be claimed");
      return found;
    }
    infer();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      classify(i);
    }
    do {
      divide();
    } while (refuse_what_stays_float());
    collect(found);
    return found;
  }

 private:
  enum class role : std::uint8_t {
    refused,  // the node stays with the runtime, for the reason that stands beside
    product,  // an integer product of weights
    integer,  // another operator on integers, or one that makes or reads them
    real,     // any other operator
  };
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  static constexpr std::uint64_t unknown_size = static_cast<std::uint64_t>(-1);

  struct fact {
    role is = role::refused;
    std::string reason;
    bool is_constant = false;  // all its inputs are constants
    std::size_t depth = 0;     // of the nodes before it, how often claimed and refused alternate
    std::size_t region = nowhere;  // a number that all nodes of its region have
  };

  /// Finds types and shapes of all values, as far as they are known. Nodes that would not run get
  /// into unsupported_.
  void infer() {
    known_ = infer_with(1, 1);
    const auto is_open = [](const value_info& v) {
      return v.has_shape &&
             std::any_of(v.dims.begin(), v.dims.end(), [](std::int64_t d) { return d < 0; });
    };
    if (std::any_of(m_.inputs.begin(), m_.inputs.end(), is_open)) {
      // As in infer_types(): images of 480 pixels hold windows that one pixel does not.
      enlarged_ = infer_with(2, 480);
    }
  }

  /// Types and shapes where open dimensions count as `open_dim`, the first one of each input as
  /// `open_batch`.
  [[nodiscard]] std::map<std::string, tensor> infer_with(std::int64_t open_batch,
                                                         std::int64_t open_dim) {
    std::map<std::string, tensor> known(m_.initializers.begin(), m_.initializers.end());
    for (const value_info& v : m_.inputs) {
      if (v.has_shape) {
        shape dims = v.dims;
        for (std::size_t d = 0; d < dims.size(); ++d) {
          dims[d] = dims[d] >= 0 ? dims[d] : d == 0 ? open_batch : open_dim;
        }
        try {
          known.emplace(v.name, tensor(v.type, std::move(dims)));
        } catch (const error&) {
          // An input with more elements than a tensor can have is not known.
        }
      }
    }
    graph::detail::infer_values(m_, m_, known, true, registry_, &unsupported_);
    return known;
  }

  /// What is known of a value, with 1 in the place of open dimensions if possible; null if nothing
  /// is.
  [[nodiscard]] const tensor* find_known(const std::string& value) const {
    for (const std::map<std::string, tensor>* known : {&known_, &enlarged_}) {
      const auto found = known->find(value);
      if (found != known->end()) {
        return &found->second;
      }
    }
    return nullptr;
  }

  /// The shape of a value if it is known and depends on no open dimension; otherwise null.
  [[nodiscard]] const shape* fixed_shape(const std::string& value) const {
    const auto found = known_.find(value);
    if (found == known_.end()) {
      return nullptr;
    }
    const auto enlarged = enlarged_.find(value);
    const bool is_fixed = enlarged_.empty() || (enlarged != enlarged_.end() &&
                                                enlarged->second.dims() == found->second.dims());
    return is_fixed ? &found->second.dims() : nullptr;
  }

  [[nodiscard]] element_type type_of(const std::string& value) const {
    if (const tensor* known = find_known(value)) {
      return known->type();
    }
    for (const std::vector<value_info>* list : {&m_.inputs, &m_.values, &m_.outputs}) {
      for (const value_info& v : *list) {
        if (v.name == value) {
          return v.type;
        }
      }
    }
    return element_type::undefined;
  }

  [[nodiscard]] bool is_constant(const std::string& value) const {
    if (m_.initializer(value) != nullptr) {
      return true;
    }
    const std::size_t maker = links_.producer(value);
    return maker != links::none && nodes_[maker].is_constant;
  }

  void refuse(std::size_t i, std::string reason) {
    nodes_[i].is = role::refused;
    nodes_[i].reason = std::move(reason);
  }

  void classify(std::size_t i) {
    const node& n = m_.nodes[i];
    fact& f = nodes_[i];
    f.is_constant = std::all_of(n.inputs.begin(), n.inputs.end(), [&](const std::string& value) {
      return value.empty() || is_constant(value);
    });
    const operator_definition* const d = registry_.find(n.domain, n.op_type);
    if (d == nullptr || functions_.function_of(n) != nullptr) {
      return refuse(i, "there is no operator for it");
    }
    if (has_bodies(n)) {
      return refuse(i, "it holds graphs of its own");
    }
    try {
      require_arity(n, *d);
    } catch (const error& e) {
      return refuse(i, e.what());
    }
    if (const std::optional<float> scale = impossible_scale(n)) {
      return refuse(i,
                    detent::detail::message("scale ", *scale, " is not a positive finite number"));
    }
    if (const auto found = unsupported_.find(&n); found != unsupported_.end()) {
      return refuse(i, found->second);
    }
    for (const std::vector<std::string>* values : {&n.inputs, &n.outputs}) {
      for (const std::string& value : *values) {
        const element_type type = value.empty() ? element_type::f32 : type_of(value);
        if (type == element_type::string || type == element_type::u4 || type == element_type::s4 ||
            is_float8(type) || type == element_type::undefined) {
          return refuse(i, "'" + value + "' is " + graph::name(type));
        }
      }
    }
    f.is = role_of(n);
    if (f.is == role::real && options_.claim == claim_mode::integer &&
        (is_float_product(n) || n.op_type == "MatMulNBits")) {
      refuse(i, "its product is of floats");
    }
  }

  [[nodiscard]] static bool is_one_of(const node& n,
                                      std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), n.op_type) != names.end();
  }

  /// Whether input i of a node, if it is of floats, is a scale, which has to be positive and
  /// finite.
  [[nodiscard]] static bool is_scale(const node& n, std::size_t i) {
    if (is_one_of(n, {"QuantizeLinear", "DequantizeLinear"})) {
      return i == 1;
    }
    if (n.op_type == "DynamicQuantizeMatMul") {
      return i == 2;
    }
    if (n.op_type == "MatMulIntegerToFloat") {
      return i == 2 || i == 3;
    }
    if (n.op_type == "DynamicQuantizeLSTM") {
      return i == 8 || i == 10;
    }
    return n.op_type == "QGemm" || n.op_type.rfind("QLinear", 0) == 0;  // no other floats
  }

  /// The first constant scale of a node with which each of its runs would fail.
  [[nodiscard]] std::optional<float> impossible_scale(const node& n) const {
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const auto found =
          is_scale(n, i) && is_constant(n.inputs[i]) ? known_.find(n.inputs[i]) : known_.end();
      if (found == known_.end() || !found->second.has_data() || !fits_float(found->second.type())) {
        continue;
      }
      const tensor scales = as_float32(found->second);
      for (const float scale : scales.data<float>()) {
        if (!std::isfinite(scale) || scale <= 0.0F) {
          return scale;
        }
      }
    }
    return std::nullopt;
  }

  /// Whether input i is what a DequantizeLinear of 8-bit values makes.
  [[nodiscard]] bool is_dequantized(const node& n, std::size_t i) const {
    const std::size_t maker = i < n.inputs.size() ? links_.producer(n.inputs[i]) : links::none;
    if (maker == links::none || m_.nodes[maker].op_type != "DequantizeLinear" ||
        m_.nodes[maker].inputs.empty()) {
      return false;
    }
    const element_type type = type_of(m_.nodes[maker].inputs[0]);
    return type == element_type::u8 || type == element_type::s8;
  }

  /// Whether a node of MatMulNBits quantizes its rows; if not, it multiplies floats.
  [[nodiscard]] bool is_integer_nbits(const node& n) const {
    std::vector<tensor> inputs;
    for (const std::string& in : n.inputs) {
      const tensor* known = find_known(in);
      tensor t = in.empty() ? tensor() : known != nullptr ? *known : tensor(type_of(in), {});
      // A run widens floats of 16 bits before the operator sees them.
      const bool is_half = graph::detail::is_half(t.type());
      inputs.push_back(!is_half       ? std::move(t)
                       : t.has_data() ? graph::detail::half_to_float(t)
                                      : tensor(element_type::f32, t.dims()));
    }
    operator_context c;
    c.current = &n;
    c.inputs = inputs;
    nbits_layout layout;
    layout.bits = static_cast<std::size_t>(n.get_int("bits", 4));
    layout.block_size = static_cast<std::size_t>(n.get_int("block_size", 0));
    return n.domain == "detent" || ops::allows_integer_rows(c, layout);
  }

  [[nodiscard]] role role_of(const node& n) const {
    if (is_one_of(n, {"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger",
                      "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}) ||
        (n.op_type == "MatMulNBits" && is_integer_nbits(n))) {
      return role::product;
    }
    if (is_one_of(n, {"Conv", "Gemm", "MatMul"}) && is_dequantized(n, 0) && is_dequantized(n, 1)) {
      return role::product;
    }
    if (n.op_type.find("Quantize") != std::string::npos || n.op_type.rfind("Dequantize", 0) == 0 ||
        n.op_type.rfind("QLinear", 0) == 0) {
      return role::integer;
    }
    for (const std::string& out : n.outputs) {
      const element_type type = out.empty() ? element_type::u8 : type_of(out);
      if (type != element_type::u8 && type != element_type::s8) {
        return role::real;
      }
    }
    return role::integer;
  }

  /// Whether the node multiplies floats, which the runtime has kernels for.
  [[nodiscard]] static bool is_float_product(const node& n) {
    return is_one_of(
        n, {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention",
            "MultiHeadAttention", "FusedConv", "FusedGemm", "FusedMatMul"});
  }

  [[nodiscard]] bool is_claimed(std::size_t i) const { return nodes_[i].is != role::refused; }

  /// Gives each claimed node its region.
  ///
  /// A path that leaves the claimed nodes and comes back alternates twice between claimed and
  /// refused. The largest number of alternations on a path to a node is its depth. It never falls
  /// along a path, so that claimed nodes of one depth can be joined.
  void divide() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].depth = 0;
      nodes_[i].region = nowhere;
      if (nodes_[i].is_constant) {
        continue;  // no path leads to it
      }
      const auto follow = [&](const std::string& in) {
        const std::size_t maker = in.empty() ? links::none : links_.producer(in);
        if (maker != links::none && !nodes_[maker].is_constant) {
          const std::size_t step = is_claimed(maker) == is_claimed(i) ? 0 : 1;
          nodes_[i].depth = (std::max)(nodes_[i].depth, nodes_[maker].depth + step);
        }
      };
      const node& n = m_.nodes[i];
      std::for_each(n.inputs.begin(), n.inputs.end(), follow);
      if (has_bodies(n)) {  // what sub-graphs capture is a path, too
        const std::set<std::string> captured = captured_values(n);
        std::for_each(captured.begin(), captured.end(), follow);
      }
    }
    // A constant node goes where the nodes go that use it; those after it are done already.
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].is_constant) {
        join_users(i);
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!is_claimed(i) || (nodes_[i].is_constant && nodes_[i].depth == nowhere)) {
        continue;
      }
      nodes_[i].region = i;
    }
    join_neighbours();
    if (options_.claim == claim_mode::integer) {
      trim();
    }
  }

  /// Gives a constant node the depth of the claimed nodes that use it; `nowhere` if they differ or
  /// if refused nodes or the model's user take it, too.
  void join_users(std::size_t i) {
    std::set<std::size_t> depths;
    for (const std::string& out : m_.nodes[i].outputs) {
      if (out.empty()) {
        continue;
      }
      if (links_.is_output(out)) {
        depths.insert(nowhere);
      }
      for (const std::size_t user : links_.consumers(out)) {
        depths.insert(is_claimed(user) ? nodes_[user].depth : nowhere);
      }
    }
    nodes_[i].depth = depths.size() == 1 ? *depths.begin() : nowhere;
  }

  /// Joins claimed nodes of one depth that follow each other.
  void join_neighbours() {
    const auto root = [&](std::size_t i) {
      while (nodes_[i].region != i) {
        nodes_[i].region = nodes_[nodes_[i].region].region;
        i = nodes_[i].region;
      }
      return i;
    };
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::string& in : m_.nodes[i].inputs) {
        const std::size_t maker = in.empty() ? links::none : links_.producer(in);
        if (maker == links::none || nodes_[i].region == nowhere ||
            nodes_[maker].region == nowhere || nodes_[maker].depth != nodes_[i].depth) {
          continue;
        }
        const std::size_t a = root(maker);
        const std::size_t b = root(i);
        nodes_[(std::max)(a, b)].region = (std::min)(a, b);
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].region != nowhere) {
        nodes_[i].region = root(i);
      }
    }
  }

  /// Takes float operators at the borders out of the regions: they need not be handed over. What is
  /// left has no new path through nodes outside.
  void trim() {
    const auto leads_out = [&](std::size_t i) {
      for (const std::string& out : m_.nodes[i].outputs) {
        for (const std::size_t user :
             out.empty() ? std::span<const std::size_t>() : links_.consumers(out)) {
          if (nodes_[user].region == nodes_[i].region) {
            return false;
          }
        }
      }
      return true;
    };
    const auto leads_in = [&](std::size_t i) {
      return std::none_of(
          m_.nodes[i].inputs.begin(), m_.nodes[i].inputs.end(), [&](const std::string& in) {
            const std::size_t maker = in.empty() ? links::none : links_.producer(in);
            return maker != links::none && !nodes_[maker].is_constant &&
                   nodes_[maker].region == nodes_[i].region;
          });
    };
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].region != nowhere && nodes_[i].is == role::real && leads_out(i)) {
        nodes_[i].region = nowhere;
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].region != nowhere && nodes_[i].is == role::real && !nodes_[i].is_constant &&
          leads_in(i)) {
        nodes_[i].region = nowhere;
      }
    }
    // Constants of nodes that were taken out, from the last one to the first.
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].region != nowhere && nodes_[i].is_constant && leads_out(i)) {
        nodes_[i].region = nowhere;
      }
    }
    split();
  }

  /// Divides regions that fell apart into their parts.
  void split() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].region != nowhere) {
        nodes_[i].region = i;
      }
    }
    join_neighbours();
  }

  [[nodiscard]] std::map<std::size_t, integer_region> regions() const {
    std::map<std::size_t, integer_region> all;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].region == nowhere) {
        continue;
      }
      integer_region& r = all[nodes_[i].region];
      r.nodes.push_back(i);
      if (nodes_[i].is == role::product) {
        ++r.products;
        const std::uint64_t count = multiply_adds(m_.nodes[i]);
        r.multiply_adds =
            count > unknown_size - r.multiply_adds ? unknown_size : r.multiply_adds + count;
      }
    }
    return all;
  }

  /// The product of two numbers, or the largest number if it is larger.
  [[nodiscard]] static std::uint64_t saturated_product(std::uint64_t a, std::uint64_t b) {
    return b != 0 && a > unknown_size / b ? unknown_size : a * b;
  }

  /// The multiply-adds of a product of weights; the largest number if its size is unknown.
  [[nodiscard]] std::uint64_t multiply_adds(const node& n) const {
    if (n.op_type == "DynamicQuantizeLSTM") {
      return multiply_adds_of_lstm(n);
    }
    const shape* y = fixed_shape(n.outputs[0]);
    const std::optional<std::uint64_t> terms = terms_of(n);
    return y == nullptr || !terms ? unknown_size : saturated_product(element_count(*y), *terms);
  }

  /// How many products are added up for each output of a product of weights. No value if the shape
  /// of the weights is unknown.
  [[nodiscard]] std::optional<std::uint64_t> terms_of(const node& n) const {
    if (n.op_type == "MatMulNBits") {  // whose weights are packed
      return static_cast<std::uint64_t>((std::max)(n.get_int("K", 0), std::int64_t{0}));
    }
    const std::size_t at =
        n.op_type == "QLinearConv" || n.op_type == "QLinearMatMul" || n.op_type == "QGemm" ? 3 : 1;
    const shape* w = at < n.inputs.size() ? fixed_shape(n.inputs[at]) : nullptr;
    if (w == nullptr || w->size() < 2) {
      return std::nullopt;
    }
    if (n.op_type.find("Conv") != std::string::npos) {  // the weights of one filter
      return element_count(shape(w->begin() + 1, w->end()));
    }
    const std::size_t behind = n.get_int("transB", 0) != 0 ? 1 : 2;
    return static_cast<std::uint64_t>((*w)[w->size() - behind]);
  }

  /// Each weight of the inputs and of the hidden states, which are those of four gates, is
  /// multiplied once for each step of each sequence.
  [[nodiscard]] std::uint64_t multiply_adds_of_lstm(const node& n) const {
    const shape* x = fixed_shape(n.inputs[0]);  // [steps, batch, inputs]
    const shape* w = fixed_shape(n.inputs[1]);
    const shape* r = fixed_shape(n.inputs[2]);
    if (x == nullptr || w == nullptr || r == nullptr || x->size() != 3) {
      return unknown_size;
    }
    const std::uint64_t weights = element_count(*w) + element_count(*r);
    return saturated_product(element_count({(*x)[0], (*x)[1]}), weights);
  }

  /// Adds the rank and the type that are known of an input without a declared shape.
  void declare(value_info& v) const {
    const tensor* known = find_known(v.name);
    if (!v.has_shape && known != nullptr) {
      v.type = known->type();
      v.has_shape = true;
      v.dims.assign(known->rank(), -1);
    }
  }

  /// Prepares each region for execution and refuses the products that stay products of floats
  /// there. Returns whether there was one, so that the regions change.
  bool refuse_what_stays_float() {
    if (options_.claim != claim_mode::integer) {
      return false;
    }
    bool changed = false;
    for (const auto& [number, region] : regions()) {
      if (region.products == 0) {
        continue;
      }
      model part = model_of(m_, region);
      for (value_info& v : part.inputs) {
        declare(v);
      }
      for (std::size_t k = 0; k < part.nodes.size(); ++k) {
        part.nodes[k].name = std::to_string(region.nodes[k]);
      }
      try {
        part = for_execution(std::move(part));
      } catch (const error& e) {
        for (const std::size_t i : region.nodes) {
          refuse(i, e.what());
        }
        changed = true;
        continue;
      }
      for (const node& n : part.nodes) {
        if (is_float_product(n) && !n.name.empty()) {
          const std::size_t i = std::stoul(n.name);
          if (nodes_[i].is == role::product) {
            refuse(i, "its product stays one of floats");
            changed = true;
          }
        }
      }
    }
    return changed;
  }

  void collect(region_search& found) const {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      found.reasons[i] =
          !is_claimed(i) ? nodes_[i].reason : "it does not lie between integer products of weights";
    }
    for (auto& [number, region] : regions()) {
      if (options_.claim == claim_mode::integer) {
        if (region.products == 0) {
          continue;
        }
        if (region.multiply_adds < options_.min_multiply_adds) {
          for (const std::size_t i : region.nodes) {
            found.reasons[i] =
                "its region has only " + std::to_string(region.multiply_adds) + " multiply-adds";
          }
          continue;
        }
      }
      for (const std::size_t i : region.nodes) {
        found.reasons[i].clear();
      }
      found.regions.push_back(region);
    }
  }

  const model& m_;
  links links_;
  function_table functions_;
  const region_options& options_;
  const operator_registry& registry_;
  std::map<std::string, tensor> known_;     // where open dimensions count as 1
  std::map<std::string, tensor> enlarged_;  // where they count as more; empty if there are none
  std::map<const node*, std::string> unsupported_;  // with the reasons
  std::vector<fact> nodes_;
};

}  // namespace detail

[[nodiscard]] inline graph::model model_of(const graph::model& m, const integer_region& region) {
  graph::model part;
  part.ir_version = m.ir_version;
  part.opsets = m.opsets;
  part.graph_name = m.graph_name;
  std::map<std::string, const graph::value_info*> declared;
  for (const std::vector<graph::value_info>* list : {&m.inputs, &m.values, &m.outputs}) {
    for (const graph::value_info& v : *list) {
      declared.emplace(v.name, &v);
    }
  }
  const auto declaration = [&](const std::string& name) {
    const auto found = declared.find(name);
    return found == declared.end() ? graph::value_info{name, {}, false, {}, {}, {}}
                                   : *found->second;
  };
  std::map<std::string, std::size_t> uses;  // of the values that nodes of the region make
  for (const std::size_t i : region.nodes) {
    part.nodes.push_back(m.nodes[i]);
    for (const std::string& out : m.nodes[i].outputs) {
      uses.emplace(out, 0);
    }
  }
  std::set<std::string> taken;
  for (const graph::node& n : part.nodes) {
    for (const std::string& in : n.inputs) {
      const auto own = uses.find(in);
      if (own != uses.end()) {
        ++own->second;
      } else if (const graph::tensor* constant = in.empty() ? nullptr : m.initializer(in)) {
        part.initializers.emplace(in, *constant);
      } else if (!in.empty() && taken.insert(in).second) {
        part.inputs.push_back(declaration(in));
      }
    }
  }
  const graph::links links(m);
  for (const graph::node& n : part.nodes) {
    for (const std::string& out : n.outputs) {
      if (!out.empty() && (links.is_output(out) || links.consumers(out).size() > uses[out])) {
        part.outputs.push_back(declaration(out));
      }
    }
  }
  return part;
}

/// Finds the regions of a model, whose nodes must be in topological order. A product that cannot
/// run as integers is in no region, and neither are float operators at the border of a region: both
/// are left to the runtime. `registry` says which operators there are.
///
/// The time grows linearly with the nodes, but for products that turn out to stay in float: each
/// round that finds some prepares the regions anew. Throws nothing that a model could cause.
[[nodiscard]] inline region_search find_integer_regions(
    const graph::model& m, const region_options& options = {},
    const graph::operator_registry& registry = graph::default_operators()) {
  return detail::region_finder(m, options, registry).run();
}

}  // namespace runtimes
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_INTEGER_REGIONS_HPP
