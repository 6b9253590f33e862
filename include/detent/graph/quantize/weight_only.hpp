// SPDX-License-Identifier: BSD-3-Clause
// Weight-only quantization: constant weights of MatMul and Gemm become codes of 4 or 8 bits with a
// scale, and optionally a zero point, for each block of K; activations stay real.
//
//   MatMul(x, W)     com.microsoft.MatMulNBits(x, codes, scales[, zero points])
//   Gemm(x, W, C)    as MatMul, then Add(., C)      without transA, alpha and beta 1
//   awq              x * (1 / s) before it: s are the scales of the inputs that awq() finds
//
// nbits_layout.hpp defines the layout of the codes. Symmetric codes are -7..7 (or -8..7 where a
// solver other than the range has scales for that) and -127..127 about the operator's default zero
// point.
#ifndef DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_HPP
#define DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/half_weights.hpp>
#include <detent/graph/quantize/layer_input_statistics.hpp>
#include <detent/graph/quantize/nbits_constants.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/weight_only_options.hpp>
#include <detent/graph/rewrite/gemm_factors.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/runnable_part.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>
#include <detent/solvers/awq.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/gptq.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/hqq.hpp>
#include <detent/solvers/parts.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/sub_byte.hpp>
#include <detent/types.hpp>
#include <detent/version.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// Holds the state of quantize_weights_only().
class weight_only_quantizer {
 public:
  weight_only_quantizer(model m, weight_only_options options)
      : m_(std::move(m)), options_(std::move(options)) {
    check_options();
    std::map<std::string, operator_settings> settings;  // by output: folding moves nodes
    for (const auto& [i, own] : matching_settings(m_, options_.scope.operators)) {
      check_settings(m_.nodes[i], own);
      for (const std::string& name : m_.nodes[i].outputs) {
        settings[name] = own;
      }
    }
    for (const std::size_t i : matching_nodes(m_, options_.scope.ignored)) {
      for (const std::string& name : m_.nodes[i].outputs) {
        settings[name].quantize = false;
      }
    }
    fold_constants(m_, false);
    fold_gemm_factors(m_);
    find_layers(settings);
  }

  /// The statistics that the algorithm needs of samples, by the names of the inputs, without any
  /// sample.
  [[nodiscard]] std::map<std::string, input_statistics> empty_statistics() {
    static_cast<void>(runnable_part());
    std::map<std::string, input_statistics> statistics;
    std::size_t bytes = 0;
    for (const weight_matrix& w : matrices_) {
      for (const std::string& input : w.inputs) {
        if (statistics.try_emplace(input, w.layout.depth, is_diagonal()).second) {
          bytes += input_statistics::least_bytes(w.layout.depth);
          require_room(bytes, input, w.layout.depth);
        }
      }
    }
    return statistics;
  }
  /// Adds the samples of one pass to statistics. Returns their number.
  std::size_t add_samples(const calibration_source& samples,
                          std::map<std::string, input_statistics>& statistics) {
    executor float_executor(runnable_part(), options_.executor);
    observe(float_executor, samples, statistics);
    return sample_count_;
  }
  /// Quantizes with statistics of all samples.
  model run(const std::map<std::string, input_statistics>& statistics) {
    names_ = unused_names(m_);
    static_cast<void>(runnable_part());
    for (const weight_matrix& w : matrices_) {
      add_solved(w, statistics);
    }
    rewrite();
    return std::move(m_);
  }

  model run(const calibration_source& samples) {
    names_ = unused_names(m_);
    if (!needs_samples()) {
      for (const weight_matrix& w : matrices_) {
        add_solved(w, nullptr);
      }
    } else {
      require(static_cast<bool>(samples), error_kind::invalid_argument, "algorithm '",
              graph::name(options_.algorithm), "' needs calibration samples");
      calibrate_and_solve(samples);
    }
    rewrite();
    return std::move(m_);
  }

 private:
  /// One constant in one use (orientation, layout, kind of scales), perhaps shared by several
  /// nodes.
  struct weight_matrix {
    std::string name;
    bool is_transposed = false;  // stored as N x K instead of K x N
    nbits_layout layout;
    bool has_least_squares_scales = false;  // exact_mse instead of absmax
    std::vector<std::string> inputs;        // first inputs of the nodes
  };
  struct layer {
    std::size_t node;
    std::size_t matrix;
  };
  /// The names of the constants that a weight_matrix became.
  struct stored_matrix {
    std::string codes, scales, zero_points, inverse_input_scales;
    solver_evidence evidence;
  };

  [[nodiscard]] bool needs_samples() const {
    return options_.algorithm == weight_only_algorithm::gptq ||
           options_.algorithm == weight_only_algorithm::awq;
  }
  [[nodiscard]] bool is_diagonal() const {
    return options_.algorithm == weight_only_algorithm::awq && options_.diagonal_statistics;
  }

  void check_format(std::size_t bits, std::int64_t block) const {
    constexpr auto invalid = error_kind::invalid_argument;
    require(bits == 4 || bits == 8, invalid, "weights of ", bits, " bits, expected 4 or 8");
    require(block == 0 || block == -1 ||
                (block >= 16 && block <= largest_block &&
                 std::has_single_bit(static_cast<std::uint64_t>(block))),
            invalid, "block size ", block, ", expected 16, 32, 64, 128, 256, or 0 for the largest");
  }

  void check_settings(const node& n, const operator_settings& own) const {
    with_context(n.label(), [&] {
      check_format(own.weight_bits.value_or(options_.bits),
                   own.block_size.value_or(options_.block_size));
      require(options_.algorithm != weight_only_algorithm::awq ||
                  own.weight_scales.value_or(weight_scale::absmax) == weight_scale::absmax,
              error_kind::invalid_argument, "algorithm 'awq' finds scales itself");
      return true;
    });
  }

  void check_options() const {
    const weight_only_options& o = options_;
    constexpr auto invalid = error_kind::invalid_argument;
    check_format(o.bits, o.block_size);
    require(o.accuracy_level >= 0 && o.accuracy_level <= 4, invalid, "accuracy level ",
            o.accuracy_level, " is not in 0..4");
    require(o.algorithm != weight_only_algorithm::hqq || !o.symmetric, invalid,
            "algorithm 'hqq' finds zero points, and symmetric weights have none");
    require(o.algorithm != weight_only_algorithm::hqq || !o.hqq.real_zero_points || o.bits == 4,
            error_kind::unsupported, "real zero points of ", o.bits, "-bit weights");
    require(o.algorithm != weight_only_algorithm::awq || o.scales == weight_scale::absmax, invalid,
            "algorithm 'awq' finds scales itself, and cannot take those of exact_mse");
    require(m_.opset() >= 7, error_kind::unsupported, "the model has opset ", m_.opset(),
            "; the oldest that can be quantized is 7");
  }

  /// Whether the weights of a node are stored as N x K (true) or K x N (false), if they are a
  /// constant matrix of floats; else nothing.
  [[nodiscard]] std::optional<bool> weights_transposed(const node& n) const {
    const tensor* w = float_constant(m_, n, 1);
    if (w == nullptr || w->rank() != 2 || w->count() == 0 || n.inputs[0].empty() ||
        m_.initializer(n.inputs[0]) != nullptr) {
      return std::nullopt;
    }
    if (n.is("MatMul")) {
      return false;
    }
    const std::optional<std::size_t> axis = n.is("Gemm") ? output_channel_axis(n) : std::nullopt;
    return axis ? std::optional<bool>(*axis == 0) : std::nullopt;
  }

  void find_layers(const std::map<std::string, operator_settings>& settings) {
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      if (weights_transposed(m_.nodes[i])) {
        candidates.push_back(i);
      }
    }
    if (options_.scope.ignored.first_layer && !candidates.empty()) {
      candidates.erase(candidates.begin());
    }
    if (options_.scope.ignored.last_layer && !candidates.empty()) {
      candidates.pop_back();
    }
    std::map<std::tuple<std::string, bool, std::size_t, std::size_t, bool>, std::size_t> known;
    for (const std::size_t i : candidates) {
      const node& n = m_.nodes[i];
      const std::optional<bool> is_transposed = weights_transposed(n);
      const auto entry = settings.find(n.first_output());
      const operator_settings own = entry == settings.end() ? operator_settings() : entry->second;
      if (!own.quantize.value_or(true)) {
        continue;
      }
      const tensor& w = m_.initializers.at(n.inputs[1]);
      const auto depth = static_cast<std::size_t>(w.dim(*is_transposed ? 1 : 0));
      const auto columns = static_cast<std::size_t>(w.dim(*is_transposed ? 0 : 1));
      const nbits_layout layout{own.weight_bits.value_or(options_.bits),
                                block_size(own.block_size.value_or(options_.block_size), depth),
                                depth, columns};
      const bool has_least_squares_scales =
          own.weight_scales.value_or(options_.scales) == weight_scale::exact_mse;
      const auto [found, added] = known.try_emplace(
          {n.inputs[1], *is_transposed, layout.bits, layout.block_size, has_least_squares_scales},
          matrices_.size());
      if (added) {
        matrices_.push_back({n.inputs[1], *is_transposed, layout, has_least_squares_scales, {}});
      }
      std::vector<std::string>& inputs = matrices_[found->second].inputs;
      if (std::find(inputs.begin(), inputs.end(), n.inputs[0]) == inputs.end()) {
        inputs.push_back(n.inputs[0]);
      }
      layers_.push_back({i, found->second});
    }
    if (layers_.empty()) {
      const std::string reason = half_weights_reason(m_);
      raise(error_kind::invalid_argument,
            "the model has no MatMul or Gemm with constant float32 weights that may be quantized" +
                (reason.empty() ? reason : ": " + reason));
    }
  }

  /// The block size for K = `depth`: a block that is larger than K would only be padded.
  [[nodiscard]] static std::size_t block_size(std::int64_t wanted, std::size_t depth) {
    const auto size = static_cast<std::size_t>(wanted > 0 ? wanted : largest_block);
    return (std::min)(size, std::bit_ceil((std::max)(depth, std::size_t{16})));
  }

  // ----------------------------------------------------------------------------------- calibration

  /// Solves the matrices in their order, as many in one pass over the samples as there is memory
  /// for their statistics.
  void calibrate_and_solve(const calibration_source& samples) {
    executor float_executor(runnable_part(), options_.executor);
    for (std::size_t first = 0; first < matrices_.size();) {
      std::map<std::string, input_statistics> statistics;
      std::size_t bytes = 0;
      std::size_t last = first;
      for (; last < matrices_.size(); ++last) {
        const weight_matrix& w = matrices_[last];
        std::size_t more = 0;
        for (const std::string& input : w.inputs) {
          more += statistics.count(input) != 0
                      ? 0
                      : input_statistics::bytes(w.layout.depth, is_diagonal());
        }
        const std::size_t most =
            (std::min)(options_.calibration_bytes, options_.executor.max_memory_bytes);
        if (last > first && bytes + more > most) {
          break;
        }
        bytes += more;
        if (more > 0) {
          require_room(bytes, w.inputs[0], w.layout.depth);
        }
        for (const std::string& input : w.inputs) {
          statistics.try_emplace(input, w.layout.depth, is_diagonal());
        }
      }
      observe(float_executor, samples, statistics);
      for (; first < last; ++first) {
        add_solved(matrices_[first], statistics);
      }
    }
  }

  /// Throws bad_file, naming the tensor whose `features` ask for it, if statistics need more memory
  /// than a run of the model may use.
  void require_room(std::size_t bytes, const std::string& input, std::size_t features) const {
    const std::size_t limit = options_.executor.max_memory_bytes;
    require(bytes <= limit, error_kind::bad_file, "tensor '", input, "': statistics of its ",
            features, " features take ", bytes, " bytes of memory with those before, the limit is ",
            limit);
  }

  /// Solves one matrix, by the statistics of all its inputs together.
  void add_solved(const weight_matrix& w,
                  const std::map<std::string, input_statistics>& statistics) {
    if (w.inputs.empty()) {
      add_solved(w, nullptr);
      return;
    }
    if (w.inputs.size() == 1) {
      add_solved(w, &statistics.at(w.inputs[0]));
      return;
    }
    input_statistics all = statistics.at(w.inputs[0]);
    for (std::size_t i = 1; i < w.inputs.size(); ++i) {
      all.merge(statistics.at(w.inputs[i]));
    }
    add_solved(w, &all);
  }

  /// The part of the model that can be run. Inputs that it does not compute are removed from all
  /// matrices.
  [[nodiscard]] model runnable_part() {
    model fused = divided_model(m_).runnable();
    keep_computed_inputs(fused);
    fuse_activations(fused);
    return fused;
  }

  /// Removes from the inputs of all matrices those that a run of `runnable` does not compute.
  void keep_computed_inputs(const model& runnable) {
    const std::set<std::string> computed = value_names(runnable);
    for (weight_matrix& w : matrices_) {
      std::erase_if(w.inputs, [&](const std::string& input) { return computed.count(input) == 0; });
    }
  }

  void observe(executor& float_executor, const calibration_source& samples,
               std::map<std::string, input_statistics>& statistics) {
    std::size_t seen = 0;
    while (const auto inputs = samples()) {
      ++seen;
      static_cast<void>(float_executor.run(*inputs, [&](const std::string& name,
                                                        const tensor& value) {
        const auto found = statistics.find(name);
        if (found == statistics.end() || value.count() == 0) {
          return;
        }
        const tensor plain = to_plain(value);
        with_context("tensor '" + name + "' in calibration sample " + std::to_string(seen), [&] {
          require(plain.rank() > 0, error_kind::shape_mismatch,
                  "the input of a product has no dimensions");
          const auto columns = static_cast<std::size_t>(plain.dims().back());
          found->second.observe({plain.data<float>().data(), plain.count() / columns, columns},
                                options_.executor.parallel);
        });
      }));
    }
    require(seen > 0, error_kind::invalid_argument, "there are no calibration samples");
    require(sample_count_ == 0 || seen == sample_count_, error_kind::invalid_argument,
            "a later pass of the calibration had ", seen, " samples, the first ", sample_count_);
    sample_count_ = seen;
  }

  // --------------------------------------------------------------------------------------- solving

  struct solution {
    quantized_weights weights;
    std::vector<float> input_scales;  // awq
  };

  [[nodiscard]] solution find_codes(matrix_view<const float> w, const weight_matrix& of,
                                    const input_statistics* statistics,
                                    const parallel_for& parallel) const {
    const std::size_t block = of.layout.block_size;
    weight_format format;
    format.scheme = {of.layout.bits == 4 ? int4::levels : full_grid<std::int8_t>,
                     options_.symmetric};
    format.group_size = block;
    block_quant_params given;
    if (of.has_least_squares_scales) {
      const std::size_t dims[] = {w.rows, w.columns};
      const std::ptrdiff_t strides[] = {w.row_stride, w.column_stride};
      const auto solver = [](const distribution& d, quant_scheme s) { return exact_mse(d, s); };
      given = block_params(1, block,
                           solve_blocks(tensor_view<const float>(w.data, dims, strides), 1, block,
                                        format.scheme, solver, parallel));
      format.scales = given.scales;
      format.zero_points = given.zero_points;
    }
    if (options_.algorithm == weight_only_algorithm::hqq) {
      hqq_options own = options_.hqq;
      own.real_zero_points = has_real_zero_points(of.layout);
      return {hqq(w, format, own, parallel), {}};
    }
    const gram_matrix g = statistics != nullptr
                              ? statistics->gram()
                              : gram_matrix::from_diagonal(std::vector<double>(w.columns, 1.0));
    if (options_.algorithm == weight_only_algorithm::awq && statistics != nullptr) {
      const std::vector<float> magnitudes = statistics->mean_magnitudes();
      awq_options options = options_.awq;
      options.activation_magnitudes = magnitudes;
      awq_weights found = awq(w, g, format, options, parallel);
      return {std::move(found.weights),
              found.ratio ? std::move(found.input_scales) : std::vector<float>()};
    }
    if (options_.algorithm == weight_only_algorithm::gptq && statistics != nullptr) {
      quantized_weights found = gptq(w, g, format, options_.gptq, parallel);
      if (found.evidence.objective < found.evidence.nearest_objective) {
        return {std::move(found), {}};
      }
    }
    return {round_to_nearest(w, g, format, parallel), {}};
  }

  void add_solved(const weight_matrix& w, const input_statistics* statistics) {
    stored_.push_back(solve(w, statistics));
    if (stored_.size() < matrices_.size()) {
      expect_pages(m_.initializers.at(matrices_[stored_.size()].name));
    }
    if (options_.on_solved) {
      options_.on_solved(stored_.size(), matrices_.size());
    }
  }

  /// Solves one matrix and adds its constants to the model. The float weights are needed in memory
  /// only here.
  stored_matrix solve(const weight_matrix& w, const input_statistics* statistics) {
    const tensor values = m_.initializers.at(w.name);
    expect_pages(values);
    const matrix_view<const float> stored(values.data<float>().data(),
                                          static_cast<std::size_t>(values.dim(0)),
                                          static_cast<std::size_t>(values.dim(1)));
    const matrix_view<const float> weights = w.is_transposed ? stored : stored.transposed();
    nbits_constants constants(w.layout, zero_points(w.layout));
    std::vector<float> input_scales;
    const solver_evidence evidence = with_context("weights '" + w.name + "'", [&] {
      if (statistics == nullptr) {
        return solve_rows(weights, w, constants);
      }
      solution found = find_codes(weights, w, statistics, options_.executor.parallel);
      constants.put(0, found.weights);
      input_scales = std::move(found.input_scales);
      return found.weights.evidence;
    });
    release_pages(values);
    return store(w.name, constants, input_scales, evidence);
  }

  /// Whether a matrix gets real zero points: only those of 4 bits may have them.
  [[nodiscard]] bool has_real_zero_points(const nbits_layout& layout) const {
    return options_.algorithm == weight_only_algorithm::hqq && options_.hqq.real_zero_points &&
           layout.bits == 4;
  }
  [[nodiscard]] nbits_zero_points zero_points(const nbits_layout& layout) const {
    return has_real_zero_points(layout) ? nbits_zero_points::reals
           : options_.symmetric         ? nbits_zero_points::none
                                        : nbits_zero_points::integers;
  }

  /// Solves a matrix without statistics, whose rows do not depend on each other: some at a time, so
  /// that the solvers' copies take little memory, and in parallel if there are enough.
  solver_evidence solve_rows(matrix_view<const float> w, const weight_matrix& of,
                             nbits_constants& to) const {
    const std::size_t rows = rows_at_a_time(w.columns);
    const std::size_t parts = (w.rows + rows - 1) / rows;
    const bool has_one_part = parts == 1;
    std::vector<solver_evidence> evidence(parts);
    detent::detail::run_parallel(
        has_one_part ? parallel_for() : options_.executor.parallel, parts, [&](std::size_t part) {
          const std::size_t first = part * rows;
          const std::size_t count = (std::min)(rows, w.rows - first);
          detent::detail::leased_memory<float> dense(count * w.columns);
          copy_rows(w, first, count, dense.data());
          const solution found =
              find_codes({dense.data(), count, w.columns}, of, nullptr,
                         has_one_part ? options_.executor.parallel : parallel_for());
          to.put(first, found.weights);
          evidence[part] = found.weights.evidence;
        });
    for (std::size_t part = 1; part < parts; ++part) {
      add_rows(evidence[0], evidence[part]);
    }
    detent::detail::require_finite_objective(evidence[0].objective,
                                             graph::name(options_.algorithm));
    return evidence[0];
  }

  /// How many rows of K weights are solved at a time: about 256 KiB of them, which stay in a cache,
  /// or 16 rows if that is more, which must not exceed 8 MiB. The codes do not depend on it.
  [[nodiscard]] static std::size_t rows_at_a_time(std::size_t depth) {
    constexpr std::size_t usual = std::size_t{1} << 16U;
    constexpr std::size_t most = std::size_t{1} << 21U;
    return (std::max)(std::size_t{1},
                      (std::min)((std::max)(usual / depth, cache_line_floats), most / depth));
  }

  /// Copies rows, which may be columns in memory, to `dense`, in tiles that are read by whole cache
  /// lines. Throws invalid_argument if a weight is not finite.
  static void copy_rows(matrix_view<const float> w, std::size_t first, std::size_t count,
                        float* dense) {
    constexpr std::size_t tile = cache_line_floats;
    for (std::size_t r0 = 0; r0 < count; r0 += tile) {
      const std::size_t r1 = (std::min)(r0 + tile, count);
      for (std::size_t c0 = 0; c0 < w.columns; c0 += tile) {
        const std::size_t c1 = (std::min)(c0 + tile, w.columns);
        for (std::size_t r = r0; r < r1; ++r) {
          for (std::size_t c = c0; c < c1; ++c) {
            const float value = w(first + r, c);
            require(std::isfinite(value), error_kind::invalid_argument, "the weight at row ",
                    first + r, ", column ", c, " is ", value);
            dense[r * w.columns + c] = value;
          }
        }
      }
    }
  }

  std::string add_initializer(const std::string& wish, tensor t) {
    const std::string name = names_.take(wish);
    m_.initializers[name] =
        options_.keep_constant ? options_.keep_constant(std::move(t)) : std::move(t);
    return name;
  }

  /// Adds the constants of a matrix to the model.
  stored_matrix store(const std::string& name, const nbits_constants& constants,
                      const std::vector<float>& input_scales, const solver_evidence& evidence) {
    stored_matrix stored;
    stored.evidence = evidence;
    stored.codes = add_initializer(name + "_quantized", constants.codes());
    stored.scales = add_initializer(name + "_scales", constants.scales());
    if (constants.zero_points().has_data()) {
      stored.zero_points = add_initializer(name + "_zero_points", constants.zero_points());
    }
    if (!input_scales.empty()) {
      std::vector<float> inverse;
      for (const float s : input_scales) {
        inverse.push_back(1.0F / s);
      }
      stored.inverse_input_scales =
          add_initializer(name + "_inverse_input_scales",
                          tensor::of<float>(element_type::f32,
                                            {static_cast<std::int64_t>(inverse.size())}, inverse));
    }
    return stored;
  }

  // ------------------------------------------------------------------------------------- rewriting

  void rewrite() {
    std::vector<weight_only_layer> done;
    std::vector<node> nodes;
    std::size_t next = 0;  // node that is not in `nodes` yet
    const auto keep_until = [&](std::size_t end) {
      for (; next < end; ++next) {
        nodes.push_back(std::move(m_.nodes[next]));
      }
    };
    for (const layer& l : layers_) {  // in the order of their nodes
      const weight_matrix& w = matrices_[l.matrix];
      keep_until(l.node);
      done.push_back(
          {name_or_output(m_.nodes[l.node]), w.name, w.layout, stored_[l.matrix].evidence});
      add_product(nodes, m_.nodes[l.node], w.layout, stored_[l.matrix]);
      ++next;
    }
    keep_until(m_.nodes.size());
    m_.nodes = std::move(nodes);
    m_.opsets.emplace("com.microsoft", 1);
    m_.producer_name = "detent";
    m_.producer_version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                          std::to_string(DETENT_VERSION_MINOR) + "." +
                          std::to_string(DETENT_VERSION_PATCH);
    remove_unused(m_);
    sort_and_check(m_);
    if (options_.on_layer) {
      std::for_each(done.begin(), done.end(), options_.on_layer);
    }
  }

  /// Appends the nodes that take the place of a layer.
  void add_product(std::vector<node>& nodes, const node& old, const nbits_layout& layout,
                   const stored_matrix& stored) {
    const std::string base = name_or_output(old);
    node product;
    product.domain = "com.microsoft";
    product.op_type = "MatMulNBits";
    product.name = old.name;
    product.inputs = {old.inputs[0], stored.codes, stored.scales};
    product.outputs = old.outputs;
    if (!stored.zero_points.empty()) {
      product.inputs.push_back(stored.zero_points);
    }
    detail::set_sizes(product, layout);
    if (options_.accuracy_level != 0) {
      product.attributes["accuracy_level"] = attribute::of(options_.accuracy_level);
    }
    if (!stored.inverse_input_scales.empty()) {
      product.inputs[0] = names_.take(old.outputs[0] + "_scaled_input");
      nodes.push_back(detail::make_node(
          "Mul", base + "_Mul", {old.inputs[0], stored.inverse_input_scales}, product.inputs[0]));
    }
    if (old.inputs.size() > 2 && !old.inputs[2].empty()) {
      product.outputs = {names_.take(old.outputs[0] + "_product")};
      nodes.push_back(product);
      nodes.push_back(detail::make_node("Add", base + "_Add", {product.outputs[0], old.inputs[2]},
                                        old.outputs[0]));
    } else {
      nodes.push_back(std::move(product));
    }
  }

  static constexpr std::int64_t largest_block = 256;
  static constexpr std::size_t cache_line_floats = 16;

  model m_;
  weight_only_options options_;
  std::vector<weight_matrix> matrices_;
  std::vector<layer> layers_;
  std::vector<stored_matrix> stored_;  // one for each of matrices_
  unused_names names_;                 // of m_, from when it begins to change
  std::size_t sample_count_ = 0;
};

}  // namespace detail

/// Quantizes the constant weights of MatMul and Gemm nodes to 4 or 8 bits, in blocks along K that
/// share a scale and optionally a zero point. The nodes become com.microsoft.MatMulNBits;
/// activations stay real:
///
///     weight = (code - zero point) * scale
///
/// `samples` is needed for gptq and awq only, which run the model on the float executor. It is
/// drawn once for each pass that the memory limit for statistics requires. Weights that several
/// nodes use are stored once, and fitted to the inputs of all of them. Constant expressions are
/// folded first, and unused nodes and constants are removed. Sub-graphs (of If, Loop, Scan) stay as
/// they are, and so do the constants that they capture, and operators that the executor lacks.
/// Weights that only see values which cannot be computed, because such an operator stands before
/// them, are rounded as by rtn. Returns the rewritten model.
///
/// Throws invalid_argument if no layer is left to quantize; if an ignored name, pattern or rule
/// matches nothing; if bits, block size or accuracy level are not allowed, or options do not fit
/// together; if gptq or awq get no samples, or a later pass another number of them; if weights or
/// inputs hold NaN or infinity, naming the tensor. Throws bad_file, naming the tensor, if
/// statistics of the inputs need more memory than executor.max_memory_bytes. Throws unsupported for
/// real zero points with bits = 8, and for an opset before 7. Throws what the solvers throw, naming
/// the weights.
[[nodiscard]] DETENT_GRAPH_DECL model quantize_weights_only(model m,
                                                            const weight_only_options& options = {},
                                                            const calibration_source& samples = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL model quantize_weights_only(model m, const weight_only_options& options,
                                              const calibration_source& samples) {
  return detail::weight_only_quantizer(std::move(m), options).run(samples);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_WEIGHT_ONLY_HPP
