// SPDX-License-Identifier: BSD-3-Clause
// A C++ range as a source of calibration samples, as NNCF's Dataset(source, transform_func).
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

/// The next item of a pass, or nothing at its end, behind which it is not asked again.
using dataset_pass = std::function<std::optional<named_tensors>()>;

/// The passes of a dataset that are limited to some number of items.
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

/// Items and what makes named input tensors of them. Items are drawn one by one and as late as
/// possible; each pass begins anew with begin() of the range, which must then give the same items.
///
/// A range that is passed as an lvalue is referred to and must outlive the dataset, another one is
/// kept. Copies share it. Not thread-safe; of two passes at a time, each has iterators of its own.
class dataset {
 public:
  static constexpr std::size_t all = (std::numeric_limits<std::size_t>::max)();

  /// `transform` is called with each item that is drawn. Without it, items are maps of tensors.
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

  /// The first items, `subset_size` of them, or all if there are fewer: no more than these are
  /// drawn. When it has given nothing, it begins anew. It throws invalid_argument at the end of a
  /// pass without any items, and of one with fewer items than one before it had.
  [[nodiscard]] calibration_source samples(std::size_t subset_size = all) const {
    auto passes = std::make_shared<detail::limited_passes>(begin_, longest_, subset_size);
    return [passes] { return passes->next(); };
  }

 private:
  std::function<detail::dataset_pass()> begin_;
  std::shared_ptr<std::size_t> longest_ = std::make_shared<std::size_t>(0);
};

/// A range of what a calibration source gives, for dataset. Passes that end early draw the rest of
/// the source: only then it begins anew.
class source_items {
 public:
  explicit source_items(calibration_source source) : source_(std::move(source)) {}

  class iterator {
   public:
    using value_type = std::map<std::string, tensor>;
    using difference_type = std::ptrdiff_t;

    explicit iterator(source_items& items) : items_(&items) { ++*this; }
    [[nodiscard]] const value_type& operator*() const { return *items_->current_; }
    iterator& operator++() {
      items_->current_ = items_->source_();
      return *this;
    }
    void operator++(int) { ++*this; }
    [[nodiscard]] friend bool operator==(const iterator& i, std::default_sentinel_t /*end*/) {
      return i.is_end();
    }

   private:
    [[nodiscard]] bool is_end() const { return !items_->current_.has_value(); }

    source_items* items_;
  };

  [[nodiscard]] iterator begin() {
    while (current_) {
      current_ = source_();
    }
    return iterator(*this);
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

 private:
  calibration_source source_;
  std::optional<std::map<std::string, tensor>> current_;
};

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_DATASET_HPP
