// SPDX-License-Identifier: BSD-3-Clause
// What an operator is to the executor: a function that tells the shapes of its outputs, and one
// that computes them. The families of operators are in graph/ops/.
#ifndef DETENT_GRAPH_OPS_OPERATOR_HPP
#define DETENT_GRAPH_OPS_OPERATOR_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What an operator keeps between runs: packed weights, tables.
struct operator_state {
  operator_state() = default;
  operator_state(const operator_state&) = delete;
  operator_state& operator=(const operator_state&) = delete;
  virtual ~operator_state() = default;
};

/// The sub-graphs of one node, for operators that run them. What they capture is known to it.
class subgraph_caller {
 public:
  subgraph_caller() = default;
  subgraph_caller(const subgraph_caller&) = delete;
  subgraph_caller& operator=(const subgraph_caller&) = delete;
  virtual ~subgraph_caller() = default;
  /// What the sub-graph of an attribute makes of its inputs, one tensor for each of its outputs.
  /// There has to be such a sub-graph, with as many inputs.
  [[nodiscard]] virtual std::vector<tensor> run(std::string_view attribute,
                                                std::span<const tensor> inputs) = 0;
  /// Types and shapes of the same. What is not known is undefined, among the inputs as well.
  [[nodiscard]] virtual std::vector<tensor> infer(std::string_view attribute,
                                                  std::span<const tensor> inputs) = 0;
};

/// One application of an operator.
///
/// While shapes are inferred, inputs may lack data (tensor::has_data()) and run() is not called.
/// When the node is executed, every present input has data, and infer() is called right before
/// run(), or was in an earlier run; see operator_definition::infers_from_forms.
class operator_context {
 public:
  const node* current = nullptr;
  std::int64_t opset = 0;  // version of the node's domain
  std::span<const tensor> inputs;
  std::span<const bool>
      constant;                 // inputs[i] is the same in every run: state may be derived from it
  std::vector<tensor> outputs;  // infer() sets type and shape; run() fills in the elements
  std::unique_ptr<operator_state>* state = nullptr;
  const parallel_for* parallel = nullptr;
  std::function<std::shared_ptr<std::byte>(std::size_t bytes)> allocate;
  subgraph_caller* subgraphs = nullptr;  // of nodes that have some
  bool shapes_only = false;              // run() will not be called
  std::size_t max_tensor_bytes = static_cast<std::size_t>(-1);
  std::size_t max_iterations = static_cast<std::size_t>(-1);

  [[nodiscard]] const node& n() const noexcept { return *current; }
  [[nodiscard]] std::size_t input_count() const noexcept { return inputs.size(); }
  [[nodiscard]] bool has_input(std::size_t i) const noexcept {
    return i < inputs.size() && inputs[i].defined();
  }
  /// A required input. Throws bad_file if the node does not have it.
  [[nodiscard]] const tensor& input(std::size_t i) const {
    require(has_input(i), "input ", i, " is missing");
    return inputs[i];
  }
  [[nodiscard]] bool has_output(std::size_t i) const noexcept {
    return i < n().outputs.size() && !n().outputs[i].empty();
  }
  [[nodiscard]] bool is_constant(std::size_t i) const noexcept {
    return i < constant.size() && constant[i];
  }
  /// Whether these inputs, as far as the node has them, are the same in every run.
  [[nodiscard]] bool are_constant(std::initializer_list<std::size_t> all) const noexcept {
    return std::all_of(all.begin(), all.end(),
                       [&](std::size_t i) { return is_constant(i) || !has_input(i); });
  }

  /// A small integer input (axes, sizes, ...) of type int64 or int32, as int64. Empty optional
  /// inputs give an empty vector. While shapes are inferred, throws value_unknown if the input is
  /// not known yet.
  [[nodiscard]] std::vector<std::int64_t> integers(std::size_t i) const;

  /// Declares output i, if the node has it.
  void set_output(std::size_t i, element_type type, shape dims) {
    if (i < n().outputs.size()) {
      outputs.resize((std::max)(outputs.size(), n().outputs.size()));
      outputs[i] = tensor(type, std::move(dims));
    }
  }
  /// Gives output i its elements (uninitialised) and returns it. Only in run().
  tensor& make_output(std::size_t i) {
    tensor& t = outputs.at(i);
    t.set_storage(allocate(t.bytes()));
    return t;
  }
  /// Output i takes the elements of `source` (same element count and type) without copying.
  void share_output(std::size_t i, const tensor& source) { outputs.at(i).share_elements(source); }

  /// Throws bad_file with the node's label in front when the condition does not hold.
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      detent::raise(error_kind::bad_file, detent::detail::message(n().label(), ": ", parts...));
    }
  }
  /// The same for what is valid ONNX but has no code here.
  template <class... Parts>
  void require_supported(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      detent::raise(error_kind::unsupported, detent::detail::message(n().label(), ": ", parts...));
    }
  }
  /// An axis attribute or input brought into [0, rank) (or [0, rank] with `end_allowed`).
  [[nodiscard]] std::size_t axis(std::int64_t a, std::size_t rank, bool end_allowed = false) const {
    const auto r = static_cast<std::int64_t>(rank);
    require(a >= -r && (a < r || (end_allowed && a == r)), "axis ", a, " of a tensor of rank ",
            rank);
    return static_cast<std::size_t>(a < 0 ? a + r : a);
  }
};

/// Thrown by integers() while shapes are inferred: the shape depends on data. Not an error.
struct value_unknown {};

inline std::vector<std::int64_t> operator_context::integers(std::size_t i) const {
  if (!has_input(i)) {
    return {};
  }
  const tensor& t = inputs[i];
  if (!t.has_data()) {
    throw value_unknown{};
  }
  std::vector<std::int64_t> values;
  if (t.type() == element_type::s64) {
    values.assign(t.data<std::int64_t>().begin(), t.data<std::int64_t>().end());
  } else {
    require(t.type() == element_type::s32, "input ", i, " is ", graph::name(t.type()),
            ", not int64 or int32");
    values.assign(t.data<std::int32_t>().begin(), t.data<std::int32_t>().end());
  }
  return values;
}

/// Which order of elements an operator can take.
enum class layout_support : std::uint8_t {
  plain,        // only the order of dims(): the executor converts its inputs
  elementwise,  // any order, if it is the same for all inputs that are not single elements
  any,          // looks at tensor::channels_last() itself
};

struct operator_definition {
  std::string_view domain;
  std::string_view name;
  std::size_t min_inputs;
  std::size_t max_inputs;
  layout_support layout;
  void (*infer)(operator_context&);
  void (*run)(operator_context&);
  /// infer() looks at no elements: what it declares holds for all inputs of the same forms
  /// (tensor::has_form_of).
  bool infers_from_forms = false;
};

inline constexpr std::size_t any_number = static_cast<std::size_t>(-1);

/// All operators that the executor knows.
class operator_registry {
 public:
  void add(const operator_definition& d) { table_[{d.domain, d.name}] = d; }
  void add(std::span<const operator_definition> family) {
    for (const operator_definition& d : family) {
      add(d);
    }
  }
  [[nodiscard]] const operator_definition* find(std::string_view domain,
                                                std::string_view name) const {
    const auto found = table_.find({domain, name});
    return found == table_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] const std::map<std::pair<std::string_view, std::string_view>, operator_definition>&
  all() const noexcept {
    return table_;
  }

 private:
  std::map<std::pair<std::string_view, std::string_view>, operator_definition> table_;
};

/// Calls f.operator()<T>() with the C++ type of an element type; false if there is none among
/// Types.
template <class... Types>
struct type_list {};

template <class T>
[[nodiscard]] constexpr element_type type_of() {
  if constexpr (std::is_same_v<T, float>) {
    return element_type::f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return element_type::f64;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return element_type::u8;
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    return element_type::s8;
  } else if constexpr (std::is_same_v<T, std::uint16_t>) {
    return element_type::u16;
  } else if constexpr (std::is_same_v<T, std::int16_t>) {
    return element_type::s16;
  } else if constexpr (std::is_same_v<T, std::uint32_t>) {
    return element_type::u32;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return element_type::s32;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    return element_type::u64;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return element_type::s64;
  } else if constexpr (std::is_same_v<T, bool>) {
    return element_type::boolean;
  } else {
    return element_type::undefined;
  }
}

using float_types = type_list<float, double>;
using number_types =
    type_list<float, double, std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t,
              std::int32_t, std::uint64_t, std::int64_t>;
using signed_types =
    type_list<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t>;

/// Integers wrap: their arithmetic goes through uint64, where nothing is undefined.
template <class T>
[[nodiscard]] constexpr std::uint64_t wide(T x) noexcept {
  return static_cast<std::uint64_t>(x);
}

template <class... Types, class Function>
[[nodiscard]] bool visit_type(type_list<Types...>, element_type type, const Function& f) {
  return ((type == type_of<Types>() && (f.template operator()<Types>(), true)) || ...);
}

/// visit_type() that names the node if the type is not among the list.
template <class Types, class Function>
void for_type(const operator_context& c, Types types, element_type type, const Function& f) {
  c.require_supported(visit_type(types, type, f), "no code for elements of type ", shown(type));
}

/// Shape inference of operators whose output is like their first input.
inline void infer_like_input(operator_context& c) {
  c.set_output(0, c.input(0).type(), c.input(0).dims());
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_OPERATOR_HPP
