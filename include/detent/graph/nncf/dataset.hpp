// SPDX-License-Identifier: BSD-3-Clause
// Calibration samples from a C++ range of items and a function that makes input tensors of each
// item, as NNCF's Dataset(source, transform_func).
#ifndef DETENT_GRAPH_NNCF_DATASET_HPP
#define DETENT_GRAPH_NNCF_DATASET_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

namespace detail {

using namespace graph::detail;

using named_tensors = std::map<std::string, tensor>;

/// Gives the next item of one pass, or nothing at the end of the pass. Nobody calls it again after
/// the end.
using dataset_pass = std::function<std::optional<named_tensors>()>;

/// Passes over a dataset, one after the other, each limited to a number of items.
class limited_passes {
 public:
  limited_passes(std::function<dataset_pass()> begin, std::shared_ptr<std::size_t> longest,
                 std::size_t limit)
      : begin_(std::move(begin)), longest_(std::move(longest)), limit_(limit) {}

  std::optional<named_tensors> next() {
    if (!current_) {
      current_ = begin_();
      given_ = 0;
    }
    if (given_ < limit_) {
      try {
        if (auto item = current_()) {
          ++given_;
          return item;
        }
      } catch (...) {
        current_ = nullptr;
        throw;
      }
    }
    current_ = nullptr;
    require(given_ > 0, error_kind::invalid_argument, "dataset: a pass over it gave no items");
    require(given_ >= (std::min)(limit_, *longest_), error_kind::invalid_argument,
            "dataset: a later pass over it gave ", given_, " items, an earlier one ", *longest_);
    *longest_ = (std::max)(*longest_, given_);
    return std::nullopt;
  }

 private:
  std::function<dataset_pass()> begin_;
  dataset_pass current_;
  std::shared_ptr<std::size_t> longest_;
  std::size_t limit_;
  std::size_t given_ = 0;
};

}  // namespace detail

/// A range of items, and a function that makes named input tensors of an item. Items are drawn one
/// by one and as late as possible. Each pass begins anew with begin() of the range, which must give
/// the same items every time.
///
/// The dataset refers to a range that is passed as an lvalue, which must then outlive it; it keeps
/// any other range. Copies of a dataset share the range. A dataset is not thread-safe. Two passes
/// may be under way at a time: each has its own iterators.
class dataset {
 public:
  /// The subset_size that stands for all items of the range.
  static constexpr std::size_t all = (std::numeric_limits<std::size_t>::max)();

  /// Makes a dataset of the items of `source`. `transform` is called with each item that is drawn
  /// and returns the input tensors of the model by name. Without a transform, the items themselves
  /// must be such maps of tensors.
  template <class Source, class Transform = std::identity>
  requires(!std::same_as<std::remove_cvref_t<Source>, dataset> &&
           std::ranges::input_range<std::remove_reference_t<Source>&> &&
           std::is_invocable_r_v<std::map<std::string, tensor>, Transform&,
                                 std::ranges::range_reference_t<std::remove_reference_t<
                                     Source>&>>) explicit dataset(Source&& source,
                                                                  Transform transform = {}) {
    using range = std::remove_reference_t<Source>;
    std::shared_ptr<range> items;
    if constexpr (std::is_lvalue_reference_v<Source>) {
      items = std::shared_ptr<range>(std::addressof(source), [](const range* /*not ours*/) {});
    } else {
      items = std::make_shared<range>(std::move(source));
    }
    begin_ = [items, call = std::make_shared<Transform>(std::move(transform))] {
      // Iterators of input ranges need not be copyable, functions must be.
      auto at = std::make_shared<std::optional<std::ranges::iterator_t<range>>>();
      return detail::dataset_pass([items, call, at]() -> std::optional<detail::named_tensors> {
        if (at->has_value()) {
          ++**at;
        } else {
          at->emplace(std::ranges::begin(*items));
        }
        if (**at == std::ranges::end(*items)) {
          return std::nullopt;
        }
        return std::optional<detail::named_tensors>(std::invoke(*call, ***at));
      });
    };
  }

  /// Returns a source of the first `subset_size` items, or of all items if the range has fewer. The
  /// source draws no other items. After it has returned nothing, at the end of a pass, it begins
  /// anew. Calling the source throws invalid_argument at the end of a pass that had no items, and
  /// at the end of a pass that had fewer items than an earlier pass over the dataset.
  [[nodiscard]] calibration_source samples(std::size_t subset_size = all) const {
    auto passes = std::make_shared<detail::limited_passes>(begin_, longest_, subset_size);
    return [passes] { return passes->next(); };
  }

 private:
  std::function<detail::dataset_pass()> begin_;
  std::shared_ptr<std::size_t> longest_ = std::make_shared<std::size_t>(0);
};

/// The runs that a calibration source gives, as an input range from which a dataset can be made.
/// All iterators share the position of the source, so only one pass can be under way at a time. If
/// a pass has ended early, begin() first draws the rest of the source, because the source begins
/// anew only after its end.
class source_items {
 public:
  /// Takes over the source. The source must not be in the middle of a pass.
  explicit source_items(calibration_source source) : source_(std::move(source)) {}

  /// An input iterator over one pass of the source.
  class iterator {
   public:
    /// The inputs of one run of a model, by name.
    using value_type = std::map<std::string, tensor>;
    /// The difference type that the concept std::weakly_incrementable requires.
    using difference_type = std::ptrdiff_t;

    /// Draws the first item of a pass. Use source_items::begin() to make an iterator.
    explicit iterator(source_items& items) : items_(&items) { ++*this; }
    /// The current item. The reference is valid until an iterator of the range is advanced.
    [[nodiscard]] const value_type& operator*() const { return *items_->current_; }
    /// Draws the next item from the source.
    iterator& operator++() {
      items_->current_ = items_->source_();
      return *this;
    }
    /// Draws the next item from the source, and returns nothing, as input iterators may.
    void operator++(int) { ++*this; }
    /// Whether the pass is at its end.
    [[nodiscard]] friend bool operator==(const iterator& i, std::default_sentinel_t /*end*/) {
      return i.is_end();
    }

   private:
    [[nodiscard]] bool is_end() const { return !items_->current_.has_value(); }

    source_items* items_;
  };

  /// Begins a pass: draws what an earlier pass has left of the source, then the first item.
  [[nodiscard]] iterator begin() {
    while (current_) {
      current_ = source_();
    }
    return iterator(*this);
  }
  /// The sentinel that an iterator equals when the source has given nothing more.
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

 private:
  calibration_source source_;
  std::optional<std::map<std::string, tensor>> current_;
};

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_DATASET_HPP
