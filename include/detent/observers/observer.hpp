// SPDX-License-Identifier: BSD-3-Clause
// What all observers have in common, and one type that can hold any of them.
//
// An observer is a value that sees batches of a tensor's values and says at the end which scale and
// zero point they ask for. It may look at the data once or twice (phases), can take in what another
// one of its kind has seen (merge), and can be saved. Those that this library has of its own give
// the same result for any split of the data into batches and threads, unless batches are what they
// are about (moving_average_observer, sample_range_observer), which they say.
#ifndef DETENT_OBSERVERS_OBSERVER_HPP
#define DETENT_OBSERVERS_OBSERVER_HPP

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/base/rows.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

/// The values of a view in order, each as the nearest float.
template <class T>
requires float_format<T> || std::same_as<T, double> || std::same_as<T, float>
[[nodiscard]] std::vector<float> floats_of(tensor_view<const T> x) {
  std::vector<float> values;
  values.reserve(x.size());
  if (x.size() == 0) {
    return values;
  }
  require(x.data != nullptr, error_kind::invalid_argument, "observe: null data with size ",
          x.size());
  for_each_row(x, [&](const T* row, std::size_t n, std::ptrdiff_t stride, const auto& /*index*/) {
    for (std::size_t i = 0; i < n; ++i) {
      const T value = row[static_cast<std::ptrdiff_t>(i) * stride];
      if constexpr (float_format<T>) {
        values.push_back(to_float(value));
      } else {
        values.push_back(static_cast<float>(value));
      }
    }
  });
  return values;
}

}  // namespace detail

/// What a type needs to be an observer. Besides, it may have
///
///   void observe(tensor_view<const float>)      in place of spans, if it cares for the shape
///   std::size_t phases() const                  1 where it is missing, or 2
///   void begin_phase(std::size_t phase)         told before the second pass, phase 1
///   void merge(const Observer& other)
///   void write(detail::byte_writer&) const and void read(detail::byte_reader&)
template <class Observer>
concept observer_type = std::copyable<Observer> &&(
                            requires(Observer o, std::span<const float> x) { o.observe(x); } ||
                            requires(Observer o, tensor_view<const float> x) { o.observe(x); }) &&
                        (
                            requires(const Observer o, quant_scheme s) {
                              { o.finalize(s) } -> std::same_as<scale_solution>;
                            } ||
                            requires(const Observer o, quant_scheme s) {
                              { o.finalize(s) } -> std::same_as<quant_params>;
                            });

/// Any observer, by value. Not thread-safe itself.
class any_observer {
 public:
  // That it is not this very type comes first: whether any_observer can be copied is not to be
  // asked in order to know whether it can be made of itself.
  template <class Observer>
  requires(!std::same_as<Observer, any_observer>) &&
      observer_type<Observer> any_observer(
          Observer observer)  // NOLINT(google-explicit-constructor)
      : self_(std::make_unique<holder<Observer>>(std::move(observer))) {}
  any_observer(const any_observer& other) : self_(other.self_->clone()) {}
  any_observer(any_observer&&) noexcept = default;
  any_observer& operator=(const any_observer& other) {
    self_ = other.self_->clone();
    return *this;
  }
  any_observer& operator=(any_observer&&) noexcept = default;
  ~any_observer() = default;

  /// One batch. Values of other formats are observed as the nearest floats.
  void observe(tensor_view<const float> x) { self_->observe(x); }
  void observe(std::span<const float> x) {
    const std::size_t shape[] = {x.size()};
    self_->observe(tensor_view<const float>(x.data(), shape));
  }
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(tensor_view<const T> x) {
    const std::vector<float> values = detail::floats_of(x);
    observe(tensor_view<const float>(values.data(), std::span(x.shape.data(), x.rank)));
  }

  /// How many passes over the data it wants: 1 or 2.
  [[nodiscard]] std::size_t phases() const { return self_->phases(); }
  /// Says that pass `phase` begins; of phase 0 nobody needs to be told.
  void begin_phase(std::size_t phase) {
    require(phase < phases(), error_kind::invalid_argument, "any_observer: phase ", phase, " of ",
            phases());
    self_->begin_phase(phase);
  }
  /// As if everything that `other` has seen had been seen here. Throws invalid_argument for another
  /// kind of observer, unsupported if this kind does not merge.
  void merge(const any_observer& other) { self_->merge(*other.self_); }
  /// Throws invalid_argument if nothing was observed, or a NaN or an infinity was.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    return self_->finalize(scheme);
  }

  /// The state, in the envelope of byte_format.hpp. Throws unsupported if this kind cannot be
  /// saved.
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer out(format);
    write(out);
    return std::move(out).finish();
  }
  /// Replaces the state by one that an observer of the same kind has saved; throws bad_file or
  /// unsupported.
  void load(std::span<const std::byte> bytes) {
    any_observer next = *this;
    detail::byte_reader in(bytes, format, "any_observer::load");
    next.read(in);
    in.require_end();
    *this = std::move(next);
  }

  /// The content of save() as part of something larger.
  void write(detail::byte_writer& out) const { self_->write(out); }
  void read(detail::byte_reader& in) { self_->read(in); }

  /// What is inside, if it is of that type, else null.
  template <observer_type Observer>
  [[nodiscard]] const Observer* target() const noexcept {
    const bool is_held = self_->kind() == &kind_of<Observer>;
    return is_held ? &static_cast<const holder<Observer>*>(self_.get())->observer : nullptr;
  }

 private:
  static constexpr detail::byte_format format{"detentob", 1};

  /// Its address stands for the type: this works without run-time type information.
  template <class Observer>
  static inline char kind_of = 0;

  struct base {
    base() = default;
    base(const base&) = default;
    base& operator=(const base&) = delete;
    virtual ~base() = default;
    [[nodiscard]] virtual const char* kind() const noexcept = 0;
    [[nodiscard]] virtual std::unique_ptr<base> clone() const = 0;
    virtual void observe(tensor_view<const float> x) = 0;
    [[nodiscard]] virtual std::size_t phases() const = 0;
    virtual void begin_phase(std::size_t phase) = 0;
    virtual void merge(const base& other) = 0;
    [[nodiscard]] virtual scale_solution finalize(quant_scheme scheme) const = 0;
    virtual void write(detail::byte_writer& out) const = 0;
    virtual void read(detail::byte_reader& in) = 0;
  };

  template <class Observer>
  struct holder final : base {
    explicit holder(Observer o) : observer(std::move(o)) {}

    [[nodiscard]] const char* kind() const noexcept override { return &kind_of<Observer>; }
    [[nodiscard]] std::unique_ptr<base> clone() const override {
      return std::make_unique<holder>(observer);
    }
    void observe(tensor_view<const float> x) override {
      if constexpr (requires { observer.observe(x); }) {
        observer.observe(x);
      } else if (x.rank == 0 || x.size() == 0 || is_dense(x)) {
        observer.observe(std::span<const float>(x.data, x.size()));
      } else {
        const std::vector<float> values = detail::floats_of(x);
        observer.observe(std::span<const float>(values));
      }
    }
    [[nodiscard]] std::size_t phases() const override {
      if constexpr (requires { observer.phases(); }) {
        return observer.phases();
      }
      return 1;
    }
    void begin_phase(std::size_t phase) override {
      if constexpr (requires { observer.begin_phase(phase); }) {
        observer.begin_phase(phase);
      }
    }
    void merge(const base& other) override {
      require(other.kind() == kind(), error_kind::invalid_argument,
              "any_observer: merging an observer of another kind");
      [[maybe_unused]] const auto* same = static_cast<const holder*>(&other);
      if constexpr (requires { observer.merge(same->observer); }) {
        observer.merge(same->observer);
      } else {
        raise(error_kind::unsupported, "detent: any_observer: this observer does not merge");
      }
    }
    [[nodiscard]] scale_solution finalize(quant_scheme scheme) const override {
      if constexpr (std::same_as<decltype(observer.finalize(scheme)), scale_solution>) {
        return observer.finalize(scheme);
      } else {
        scale_solution s;
        s.params = observer.finalize(scheme);
        if constexpr (requires { value_range(observer.range()); }) {
          const value_range r = observer.range();
          s.evidence.lower = r.lower;
          s.evidence.upper = r.upper;
        }
        if constexpr (requires { std::uint64_t{observer.count()}; }) {
          s.evidence.count = observer.count();
        }
        return s;
      }
    }
    void write(detail::byte_writer& out) const override {
      if constexpr (requires { observer.write(out); }) {
        observer.write(out);
      } else {
        raise(error_kind::unsupported, "detent: any_observer: this observer cannot be saved");
      }
    }
    void read(detail::byte_reader& in) override {
      if constexpr (requires { observer.read(in); }) {
        observer.read(in);
      } else {
        raise(error_kind::unsupported, "detent: any_observer: this observer cannot be loaded");
      }
    }

    static bool is_dense(tensor_view<const float> x) noexcept {
      std::ptrdiff_t stride = 1;
      for (std::size_t i = x.rank; i-- > 0;) {
        if (x.shape[i] != 1 && x.strides[i] != stride) {
          return false;
        }
        stride *= static_cast<std::ptrdiff_t>(x.shape[i]);
      }
      return true;
    }

    Observer observer;
  };

  std::unique_ptr<base> self_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_OBSERVER_HPP
