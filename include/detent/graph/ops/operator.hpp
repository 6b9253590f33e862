// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/ops/ holds the operators: what an operator is (this file), one header for each
// family of operators, and what the families share. It may include itself, graph/model/ and the
// numeric part. Only this file is meant for users, who write operators of their own with it.
//
// To the executor an operator is a function that infers the types and shapes of its outputs and one
// that computes them; both get an operator_context. An operator_registry holds the definitions.
#ifndef DETENT_GRAPH_OPS_OPERATOR_HPP
#define DETENT_GRAPH_OPS_OPERATOR_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Base class of what an operator keeps for one node between runs, such as packed weights or
/// tables. Operators derive their own state from it; see operator_context::state.
struct operator_state {
  /// Whether the executor drops the state at the end of the operator's run(), because it was
  /// derived from inputs that are not constant.
  bool for_one_run = false;
  /// An empty state.
  operator_state() = default;
  /// States are not copied: they belong to one node of one executor. See share().
  operator_state(const operator_state&) = delete;
  /// Not assignable, as it is not copyable.
  operator_state& operator=(const operator_state&) = delete;
  /// Destroys the derived state.
  virtual ~operator_state() = default;
  /// A state for the same node in another executor of the same model, which may run at the same
  /// time on another thread: it shares what was derived from constant inputs and never changes.
  /// Null, the default: the other executor begins without a state.
  [[nodiscard]] virtual std::unique_ptr<operator_state> share() const { return nullptr; }
};

/// Runs the sub-graphs of one node for operators such as If and Loop. The values that the
/// sub-graphs capture from the graphs around them are supplied by the caller of the operator.
class subgraph_caller {
 public:
  /// For derived classes.
  subgraph_caller() = default;
  /// Not copyable: it belongs to one node of one executor.
  subgraph_caller(const subgraph_caller&) = delete;
  /// Not assignable, as it is not copyable.
  subgraph_caller& operator=(const subgraph_caller&) = delete;
  /// Destroys the derived object.
  virtual ~subgraph_caller() = default;
  /// Runs the sub-graph that the attribute holds on these inputs and returns one tensor for each of
  /// its outputs. There must be as many inputs as the sub-graph has. Throws bad_file if the
  /// attribute is not a sub-graph, and what the operators in it throw.
  [[nodiscard]] virtual std::vector<tensor> run(std::string_view attribute,
                                                std::span<const tensor> inputs) = 0;
  /// Infers types and shapes of the outputs that run() would return, and small elements that are
  /// known beforehand. Inputs and outputs about which nothing is known are undefined tensors;
  /// inputs need no elements.
  [[nodiscard]] virtual std::vector<tensor> infer(std::string_view attribute,
                                                  std::span<const tensor> inputs) = 0;
};

/// How much a run has done of what its options limit. The executors of sub-graphs share it.
struct run_work {
  std::size_t iterations = 0;       ///< Iterations of Loop and Scan so far.
  std::uint64_t multiply_adds = 0;  ///< Multiply-adds so far.
  /// The largest number of iterations; see executor_options::max_iterations.
  std::size_t max_iterations = static_cast<std::size_t>(-1);
  /// The largest number of multiply-adds; see executor_options::max_multiply_adds.
  std::uint64_t max_multiply_adds = static_cast<std::uint64_t>(-1);
  bool refused = false;  ///< Whether an operator was stopped because it exceeded one of these.
};

/// Counts memory that the objects of an operator allocate by themselves, as packed weights do,
/// against executor_options::max_memory_bytes. Thread-safe.
class memory_counter {
 public:
  /// For derived classes.
  memory_counter() = default;
  /// Not copyable: operators refer to it.
  memory_counter(const memory_counter&) = delete;
  /// Not assignable, as it is not copyable.
  memory_counter& operator=(const memory_counter&) = delete;
  /// Destroys the derived object.
  virtual ~memory_counter() = default;
  /// Counts `bytes`. Throws bad_file if they do not fit the limit.
  virtual void take(std::size_t bytes) = 0;
  /// Takes back what take() has counted.
  virtual void give_back(std::size_t bytes) noexcept = 0;
};

/// The inputs of one application of an operator. Refers to tensors that it does not own.
class input_list {
 public:
  /// No inputs.
  input_list() = default;
  /// The tensors of a span, a vector or an array, which must outlive the list.
  template <class Tensors>
  requires std::convertible_to<const Tensors&, std::span<const tensor>> input_list(
      const Tensors& tensors)
  noexcept : tensors_(tensors) {}  // NOLINT: as std::span

  /// Number of inputs, absent ones in between included.
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// Input i. Absent ones are undefined, also those behind the last one that a node lists: checks
  /// of inputs and their messages may name all inputs that an operator knows.
  [[nodiscard]] const tensor& operator[](std::size_t i) const noexcept {
    static const tensor absent;
    return i < tensors_.size() ? tensors_[i] : absent;
  }
  /// The first input.
  [[nodiscard]] auto begin() const noexcept { return tensors_.begin(); }
  /// Behind the last input.
  [[nodiscard]] auto end() const noexcept { return tensors_.end(); }

 private:
  std::span<const tensor> tensors_;
};

/// One application of an operator to the inputs of one node: what infer() and run() of an
/// operator_definition receive.
///
/// While shapes are inferred before a run, inputs may lack elements (tensor::has_data()) and run()
/// is not called. When the node is executed, every present input has its elements, and infer() is
/// called right before run(), or was called in an earlier run for inputs of the same forms; see
/// operator_definition::infers_from_forms.
class operator_context {
 public:
  const node* current = nullptr;  ///< The node; never null in infer() and run().
  std::int64_t opset = 0;         ///< Version of the operators of the node's domain.
  input_list inputs;              ///< Inputs of the node; an absent optional one is undefined.
  /// constant[i] is true if inputs[i] is the same in every run, so that state may be derived from
  /// it. May be shorter than `inputs`; use is_constant().
  std::span<const bool> constant;
  /// last_use[i] is true if nothing needs the value of inputs[i] after this node, unless another
  /// input holds it. May be shorter than `inputs`; see make_output_over().
  std::span<const bool> last_use;
  std::vector<tensor> outputs;  ///< infer() sets types and shapes, run() adds the elements.
  /// What the operator keeps for this node between runs; it points to null before the first run,
  /// and the operator may put an object there. Null only in gradients, where it must not be used.
  std::unique_ptr<operator_state>* state = nullptr;
  const parallel_for* parallel = nullptr;  ///< Runs parallel parts; see executor_options::parallel.
  /// Allocates at least `bytes` bytes for elements, aligned for any element type, uninitialised.
  std::function<std::shared_ptr<std::byte>(std::size_t bytes)> allocate;
  subgraph_caller* subgraphs = nullptr;  ///< Runs the node's sub-graphs; null if it has none.
  bool shapes_only = false;              ///< True if run() will not be called after infer().
  /// While shapes are inferred: where infer() says that run() would throw unsupported, and why;
  /// null if nobody asks. See expect_supported().
  std::string* refusal = nullptr;
  /// The largest output in bytes that the executor accepts; see executor_options.
  std::size_t max_tensor_bytes = static_cast<std::size_t>(-1);
  /// Scratch memory for what run() needs beside its outputs. It counts against
  /// executor_options::max_memory_bytes: use it for all that grows with a tensor, for example as
  /// `std::pmr::vector<float> sums(n, c.memory);`. Never null.
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
  /// Counts what run() needs and cannot take from `memory`; null if nothing is limited.
  memory_counter* counter = nullptr;
  run_work* work = nullptr;       ///< What the run has done so far; null if nothing is limited.
  std::size_t winograd_tile = 0;  ///< See executor_options::winograd_tile.

  /// The node to which the operator is applied.
  [[nodiscard]] const node& n() const noexcept { return *current; }
  /// Number of inputs that the node lists, absent ones in between included.
  [[nodiscard]] std::size_t input_count() const noexcept { return inputs.size(); }
  /// True if input i is present.
  [[nodiscard]] bool has_input(std::size_t i) const noexcept { return inputs[i].defined(); }
  /// Input i, which must be present. Throws bad_file, naming the node, if it is not.
  [[nodiscard]] const tensor& input(std::size_t i) const {
    require(has_input(i), "input ", i, " is missing");
    return inputs[i];
  }
  /// True if the node asks for output i.
  [[nodiscard]] bool has_output(std::size_t i) const noexcept {
    return i < n().outputs.size() && !n().outputs[i].empty();
  }
  /// True if input i is the same in every run.
  [[nodiscard]] bool is_constant(std::size_t i) const noexcept {
    return i < constant.size() && constant[i];
  }
  /// True if each of these inputs is absent or the same in every run.
  [[nodiscard]] bool are_constant(std::initializer_list<std::size_t> all) const noexcept {
    return std::all_of(all.begin(), all.end(),
                       [&](std::size_t i) { return is_constant(i) || !has_input(i); });
  }

  /// The elements of a small integer input (axes, sizes, ...) of type int64 or int32, as int64. An
  /// absent input gives an empty vector. Throws value_unknown if the elements are not known, which
  /// happens only while shapes are inferred; bad_file, naming the node, for another type or for
  /// more than `most` elements. By default these are two for each dimension, as Pad has.
  [[nodiscard]] std::vector<std::int64_t> integers(std::size_t i,
                                                   std::size_t most = 2 * max_tensor_rank) const;

  /// Declares type and shape of output i; does nothing if the node has no such output. Called in
  /// infer(). Throws as element_count().
  void set_output(std::size_t i, element_type type, shape dims) {
    if (i < n().outputs.size()) {
      outputs.resize((std::max)(outputs.size(), n().outputs.size()));
      outputs[i] = tensor(type, std::move(dims));
    }
  }
  /// Gives output i uninitialised elements and returns it. Called in run(), after infer() has
  /// declared the output.
  tensor& make_output(std::size_t i) {
    tensor& t = outputs.at(i);
    t.set_storage(allocate(t.bytes()));
    return t;
  }
  /// Gives output i elements as make_output() does, but in the memory of the first one of these
  /// inputs that has as many bytes in the same order and that nothing else uses, now or after this
  /// node. Their elements stay until the operator writes to the output. For operators that read
  /// what is at a place of such an input for the last time before they write to the same place of
  /// the output, whatever the division among threads.
  tensor& make_output_over(std::size_t i, std::initializer_list<std::size_t> candidates) {
    tensor& t = outputs.at(i);
    for (const std::size_t k : candidates) {
      if (k >= inputs.size() || k >= last_use.size()) {
        continue;
      }
      const tensor& x = inputs[k];
      if (last_use[k] && x.count() == t.count() && x.bytes() == t.bytes() &&
          x.channels_last() == t.channels_last() && x.owns_elements_alone()) {
        t.share_elements(x);
        return t;
      }
    }
    return make_output(i);
  }
  /// Lets output i share the elements of `source` without copying. `source` must have the same
  /// element type; throws shape_mismatch if it has another number of elements.
  void share_output(std::size_t i, const tensor& source) { outputs.at(i).share_elements(source); }

  /// Counts an iteration of a loop. Throws bad_file, naming the node, if the run has no more left.
  void count_iteration() const {
    if (work != nullptr) {
      work->refused = work->refused || work->iterations >= work->max_iterations;
      require(work->iterations < work->max_iterations, "begins iteration ", work->iterations + 1,
              " of the loops of this run, the limit is ", work->max_iterations);
      ++work->iterations;
    }
  }
  /// Counts multiply-adds: the product of `factors`. Operators whose work is not proportional to
  /// their outputs call it before they begin. Throws bad_file, naming the node, if the run has not
  /// as many left.
  void count_multiply_adds(std::initializer_list<std::size_t> factors) const {
    if (work == nullptr) {
      return;
    }
    const std::uint64_t left = work->max_multiply_adds - work->multiply_adds;
    std::uint64_t count = 1;
    for (const std::size_t f : factors) {
      if (f == 0) {
        return;
      }
    }
    for (const std::size_t f : factors) {
      work->refused = work->refused || count > left / f;
      require(count <= left / f, "the run takes more than ", work->max_multiply_adds,
              " multiply-adds, the limit");
      count *= f;
    }
    work->multiply_adds += count;
  }

  /// Throws bad_file if the condition is false; the message is the node's label followed by
  /// `parts`, each written with operator<<.
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      detent::raise(error_kind::bad_file, detent::detail::message(n().label(), ": ", parts...));
    }
  }
  /// Throws unsupported if the condition is false, with the message of require(). For nodes that
  /// are valid ONNX but that the operator has no code for.
  template <class... Parts>
  void require_supported(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      detent::raise(error_kind::unsupported, detent::detail::message(n().label(), ": ", parts...));
    }
  }
  /// Says in infer() what run() will refuse with require_supported() and the same arguments. The
  /// outputs are declared all the same: other nodes depend on their shapes.
  template <class... Parts>
  void expect_supported(bool condition, const Parts&... parts) const {
    if (!condition && refusal != nullptr && refusal->empty()) {
      *refusal = detent::detail::message(n().label(), ": ", parts...);
    }
  }
  /// Brings an axis, which counts from the end if it is negative, into [0, rank), or into [0, rank]
  /// with `end_allowed`. Throws bad_file, naming the node, if it is out of range.
  [[nodiscard]] std::size_t axis(std::int64_t a, std::size_t rank, bool end_allowed = false) const {
    const auto r = static_cast<std::int64_t>(rank);
    require(a >= -r && (a < r || (end_allowed && a == r)), "axis ", a, " of a tensor of rank ",
            rank);
    return static_cast<std::size_t>(a < 0 ? a + r : a);
  }
};

/// Thrown by operator_context::integers() and by operators while shapes are inferred, if a shape
/// depends on elements that are not known before a run. It is not an error: the shape stays
/// unknown.
struct value_unknown {};

inline std::vector<std::int64_t> operator_context::integers(std::size_t i, std::size_t most) const {
  if (!has_input(i)) {
    return {};
  }
  const tensor& t = inputs[i];
  require(t.type() == element_type::s64 || t.type() == element_type::s32, "input ", i, " is ",
          graph::name(t.type()), ", not int64 or int32");
  require(t.count() <= most, "input ", i, " has ", t.count(), " elements, at most ", most,
          " make sense");
  if (!t.has_data()) {
    throw value_unknown{};
  }
  std::vector<std::int64_t> values;
  if (t.type() == element_type::s64) {
    values.assign(t.data<std::int64_t>().begin(), t.data<std::int64_t>().end());
  } else {
    values.assign(t.data<std::int32_t>().begin(), t.data<std::int32_t>().end());
  }
  return values;
}

/// Which orders of elements an operator accepts in its inputs.
enum class layout_support : std::uint8_t {
  /// Only the order of dims(). The executor reorders inputs that are channels-last.
  plain,
  /// Either order, if it is the same for all inputs that have more than one element; the outputs
  /// then have that order too. Otherwise the executor reorders the inputs to that of dims().
  elementwise,
  /// Both orders in any combination: the operator looks at tensor::channels_last() itself and
  /// declares the order of its outputs.
  any,
};

/// An operator: its name, how many inputs it takes, and the functions that infer and compute its
/// outputs. One definition serves all versions of the operator; it looks at
/// operator_context::opset.
struct operator_definition {
  std::string_view domain;  ///< Domain of the operator, "" for ONNX's own. Must outlive registries.
  std::string_view name;    ///< Name of the operator. Must outlive the registries that hold it.
  std::size_t min_inputs;   ///< The first min_inputs inputs are required (require_arity()).
  std::size_t max_inputs;   ///< Largest number of inputs, or any_number.
  layout_support layout;    ///< Which orders of elements the inputs may have.
  /// Declares type and shape of each output with operator_context::set_output(). Throws
  /// detent::error for inputs that do not fit, value_unknown if a shape is not known before a run.
  void (*infer)(operator_context&);
  /// Computes the elements of each output that infer() has declared.
  void (*run)(operator_context&);
  /// True if infer() looks at no elements: what it declares then holds for all inputs of the same
  /// forms (tensor::has_form_of()), and the executor does not call it again for these.
  bool infers_from_forms = false;
};

/// The value of operator_definition::max_inputs for an operator that takes any number of inputs.
inline constexpr std::size_t any_number = static_cast<std::size_t>(-1);

/// Throws bad_file, naming the node, if it has fewer or more inputs than its operator takes, lacks
/// one that the operator requires, or has no output.
inline void require_arity(const node& n, const operator_definition& d) {
  std::size_t inputs = n.inputs.size();
  const auto check = [&](bool holds, const auto&... parts) {
    if (!holds) [[unlikely]] {
      detent::raise(error_kind::bad_file, detent::detail::message(n.label(), ": ", parts...));
    }
  };
  if (inputs < d.min_inputs || inputs > d.max_inputs) [[unlikely]] {
    check(false, inputs, " inputs, expected ", d.min_inputs,
          d.max_inputs == d.min_inputs ? std::string()
          : d.max_inputs == any_number ? std::string(" or more")
                                       : " to " + std::to_string(d.max_inputs));
  }
  for (std::size_t i = 0; i < d.min_inputs; ++i) {
    check(!n.inputs[i].empty(), "input ", i, " is missing");
  }
  check(!n.outputs.empty(), "has no output");
}

/// A set of operator definitions, found by domain and name. A value: copy it to change it.
/// Concurrent calls of const functions are safe.
class operator_registry {
 public:
  /// Adds an operator. It replaces one of the same domain and name. The strings to which domain and
  /// name refer are not copied and must outlive the registry; string literals do.
  void add(const operator_definition& d) { table_[{d.domain, d.name}] = d; }
  /// Adds each operator of a family, as add() of one definition.
  void add(std::span<const operator_definition> family) {
    for (const operator_definition& d : family) {
      add(d);
    }
  }
  /// The operator of this domain and name, or null. The pointer is valid until the registry ends; a
  /// later add() of the same operator changes what it points to.
  [[nodiscard]] const operator_definition* find(std::string_view domain,
                                                std::string_view name) const {
    const auto found = table_.find({domain, name});
    return found == table_.end() ? nullptr : &found->second;
  }
  /// All operators by (domain, name), in ascending order.
  [[nodiscard]] const std::map<std::pair<std::string_view, std::string_view>, operator_definition>&
  all() const noexcept {
    return table_;
  }

 private:
  std::map<std::pair<std::string_view, std::string_view>, operator_definition> table_;
};

/// A list of C++ types, for visit_type() and for_type().
template <class... Types>
struct type_list {};

/// The element type of a C++ type; undefined if tensors have no elements of that type.
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
  } else if constexpr (std::is_same_v<T, float8_e4m3fn>) {
    return element_type::f8e4m3fn;
  } else if constexpr (std::is_same_v<T, float8_e5m2>) {
    return element_type::f8e5m2;
  } else {
    return element_type::undefined;
  }
}

/// The floating-point types in which operators compute.
using float_types = type_list<float, double>;
/// The floats of 8 bits, in which values are stored but nothing is computed.
using float8_types = type_list<float8_e4m3fn, float8_e5m2>;
/// The types of all numbers in which operators compute: floating-point types and integers of 8 to
/// 64 bits.
using number_types =
    type_list<float, double, std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t,
              std::int32_t, std::uint64_t, std::int64_t>;
/// The types of all numbers that have negative values.
using signed_types =
    type_list<float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t>;

/// An integer as uint64, sign-extended. Arithmetic of operators on integers wraps around; it is
/// done in uint64, where overflow is defined, and cast back.
template <class T>
[[nodiscard]] constexpr std::uint64_t wide(T x) noexcept {
  return static_cast<std::uint64_t>(x);
}

/// Calls f with the one of Types whose element type is `type`, as template argument of its
/// operator(): `f.operator()<T>()`. Returns false, without a call, if there is none among Types.
template <class... Types, class Function>
[[nodiscard]] bool visit_type(type_list<Types...>, element_type type, const Function& f) {
  return ((type == type_of<Types>() && (f.template operator()<Types>(), true)) || ...);
}

/// Calls `f.operator()<T>()` as visit_type() does. Throws unsupported, naming the node, if the type
/// is not in the list.
template <class Types, class Function>
void for_type(const operator_context& c, Types types, element_type type, const Function& f) {
  c.require_supported(visit_type(types, type, f), "no code for elements of type ", shown(type));
}

/// Says in infer() where for_type() with these types will throw in run(). Floats of 16 bits count
/// as float, for operators that take them (takes_half()); for others they are widened before.
template <class... Types>
void expect_type(const operator_context& c, type_list<Types...> types, element_type type) {
  const bool is_half = type == element_type::f16 || type == element_type::bf16;
  c.expect_supported(visit_type(types, is_half ? element_type::f32 : type, []<class T>() {}),
                     "no code for elements of type ", shown(type));
}

/// The infer() of an operator whose run() has code for these types of input 0 only: Infer, and then
/// expect_type().
template <class Types, void (*Infer)(operator_context&)>
void infer_for(operator_context& c) {
  Infer(c);
  expect_type(c, Types{}, c.input(0).type());
}

/// An infer() for operators whose output 0 has the type and shape of input 0. Throws bad_file if
/// that is absent.
inline void infer_like_input(operator_context& c) {
  c.set_output(0, c.input(0).type(), c.input(0).dims());
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_OPERATOR_HPP
