// SPDX-License-Identifier: BSD-3-Clause
// Where training stands behind an epoch, so that it can go on from there.
#ifndef DETENT_GRAPH_LEARN_TRAINING_CHECKPOINT_HPP
#define DETENT_GRAPH_LEARN_TRAINING_CHECKPOINT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What one epoch of training gave.
struct epoch_report {
  std::size_t epoch = 0;         ///< Counted from 0.
  double learning_rate = 0.0;    ///< Of the last step, before the factors of roles.
  double loss = 0.0;             ///< Mean loss of the samples while they were trained with.
  double validation_loss = 0.0;  ///< Loss of the validation samples behind the epoch, by labels.
  /// Share of the validation samples' rows whose largest logit is their label, in [0, 1]; NaN if
  /// the labels are no classes.
  double accuracy = std::numeric_limits<double>::quiet_NaN();
  bool is_best = false;  ///< Whether it is better than all before: see train().
  /// The mean of each trained constant of scales behind the epoch, by name.
  std::map<std::string, double> scales = {};
};

/// How well a model does on labelled samples.
struct training_score {
  double loss = 0.0;  ///< Mean loss by labels, of the samples' batches weighted by their sizes.
  /// Share of the rows whose largest logit is their label; NaN if the labels are no classes.
  double accuracy = std::numeric_limits<double>::quiet_NaN();
};

/// What the next steps of a trainer depend on besides its options and the samples.
struct trainer_state {
  std::size_t steps = 0;  ///< Steps made.
  /// The constants that are trained, in double, by name.
  std::map<std::string, std::vector<double>> constants = {};
  /// What the optimizers of weights, biases and scales keep.
  std::array<std::vector<double>, 3> optimizers = {};
  /// LSQ's factors of the gradients of scales; empty before they are known.
  std::vector<double> scale_factors = {};
  std::vector<double> least_scales = {};  ///< The numbers that scales may not fall below.
  /// Constants that change besides, by name: running means and variances, and others that
  /// trainer::set_constant() gave.
  std::map<std::string, std::vector<double>> others = {};
};

/// Where training stands behind an epoch.
struct training_checkpoint {
  /// Tells apart what training depends on: the network, the options, the number of samples, and
  /// training_options::subject.
  std::uint64_t subject = 0;
  trainer_state state = {};               ///< What the next epochs go on from.
  std::vector<epoch_report> epochs = {};  ///< The epochs so far.
  training_score best = {};               ///< The best score so far, that before training included.
  /// The constants of the network that has the best score, by name; empty if no epoch was better
  /// than the network before training.
  std::map<std::string, std::vector<double>> best_constants = {};
  /// The moving averages of the ranges of activations, each as its two ends, by value.
  std::map<std::string, std::vector<double>> ranges = {};

  /// The checkpoint as bytes, in the envelope of byte_format.hpp; the same on every machine. Lists
  /// begin with their size as u64, texts as well.
  ///
  ///     u64 subject, u64 steps
  ///     list of constants: text name, list of f64
  ///     list of f64 for each of the three optimizers; two lists of f64: the factors of scales, and
  ///       what they may not fall below
  ///     list of other constants: text name, list of f64
  ///     list of epochs: f64 learning rate, loss, validation loss, accuracy, u8 1 for the best,
  ///       list of scales: text name, f64
  ///     f64 loss and accuracy of the best
  ///     list of the best's constants and list of ranges: text name, list of f64
  [[nodiscard]] std::vector<std::byte> save() const {
    detent::detail::byte_writer to(format);
    to.put(subject);
    to.put(std::uint64_t{state.steps});
    put(to, state.constants);
    for (const std::vector<double>& optimizer : state.optimizers) {
      put(to, optimizer);
    }
    put(to, state.scale_factors);
    put(to, state.least_scales);
    put(to, state.others);
    to.put(std::uint64_t{epochs.size()});
    for (const epoch_report& e : epochs) {
      for (const double v : {e.learning_rate, e.loss, e.validation_loss, e.accuracy}) {
        to.put(v);
      }
      to.put(static_cast<std::uint8_t>(e.is_best ? 1 : 0));
      to.put(std::uint64_t{e.scales.size()});
      for (const auto& [name, scale] : e.scales) {
        put(to, name);
        to.put(scale);
      }
    }
    to.put(best.loss);
    to.put(best.accuracy);
    put(to, best_constants);
    put(to, ranges);
    return std::move(to).finish();
  }

  /// The checkpoint that save() returned as bytes. Throws bad_file for damaged bytes, unsupported
  /// for an unknown version of the layout. Whether it fits a network is for train() to say.
  [[nodiscard]] static training_checkpoint load(std::span<const std::byte> bytes) {
    detent::detail::byte_reader from(bytes, format, "training_checkpoint::load");
    training_checkpoint c;
    c.subject = from.get<std::uint64_t>();
    c.state.steps = from.get_size((std::numeric_limits<std::size_t>::max)());
    get(from, c.state.constants);
    for (std::vector<double>& optimizer : c.state.optimizers) {
      get(from, optimizer);
    }
    get(from, c.state.scale_factors);
    get(from, c.state.least_scales);
    get(from, c.state.others);
    const std::size_t count = from.get_size(from.rest());
    for (std::size_t i = 0; i < count; ++i) {
      epoch_report e;
      e.epoch = i;
      for (double* v : {&e.learning_rate, &e.loss, &e.validation_loss, &e.accuracy}) {
        *v = from.get<double>();
      }
      const auto is_best = from.get<std::uint8_t>();
      require(is_best <= 1, error_kind::bad_file, "training_checkpoint::load: an epoch is damaged");
      e.is_best = is_best == 1;
      const std::size_t scales = from.get_size(from.rest());
      for (std::size_t k = 0; k < scales; ++k) {
        const std::string name = get_name(from, e.scales);
        e.scales[name] = from.get<double>();
      }
      c.epochs.push_back(e);
    }
    c.best.loss = from.get<double>();
    c.best.accuracy = from.get<double>();
    get(from, c.best_constants);
    get(from, c.ranges);
    from.require_end();
    return c;
  }

 private:
  static constexpr detent::detail::byte_format format{"detentTC", 1};

  template <class T>
  static void put(detent::detail::byte_writer& to, const std::vector<T>& values) {
    to.put(std::uint64_t{values.size()});
    to.put_array(std::span<const T>(values));
  }
  template <class T>
  static void put(detent::detail::byte_writer& to,
                  const std::map<std::string, std::vector<T>>& lists) {
    to.put(std::uint64_t{lists.size()});
    for (const auto& [name, values] : lists) {
      put(to, name);
      put(to, values);
    }
  }
  static void put(detent::detail::byte_writer& to, const std::string& text) {
    to.put(std::uint64_t{text.size()});
    to.put_array(std::span<const char>(text));
  }
  template <class T>
  static void get(detent::detail::byte_reader& from, std::vector<T>& values) {
    from.get_array(from.get_size(from.rest()), values);
  }
  template <class T>
  static void get(detent::detail::byte_reader& from, std::map<std::string, std::vector<T>>& lists) {
    const std::size_t count = from.get_size(from.rest());
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = get_name(from, lists);
      get(from, lists[name]);
    }
  }
  /// Reads the next key of a map, which is written in the order of its keys.
  template <class Map>
  [[nodiscard]] static std::string get_name(detent::detail::byte_reader& from, const Map& map) {
    std::string name;
    from.get_array(from.get_size(from.rest()), name);
    require(map.empty() || map.rbegin()->first < name, error_kind::bad_file,
            "training_checkpoint::load: names are not in their order");
    return name;
  }
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINING_CHECKPOINT_HPP
