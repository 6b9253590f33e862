// SPDX-License-Identifier: BSD-3-Clause
// The folder observers/ turns calibration data into scales and zero points. An observer is a value
// that sees batches of a tensor's values and reports at the end which scale and zero point they
// call for. It may need one or two passes over the data (phases), can absorb what another observer
// of its kind has seen (merge), and can be saved and loaded. The observers in this folder give the
// same result for any split of the data into batches and threads, except those whose method is
// about batches (moving_average_observer, sample_range_observer), which say so. The subfolder
// tools/ reproduces observers of other tools. Headers here may include statistics/, solvers/,
// base/, elementwise/, kernels/ and the public headers of quantization above those; nothing here
// includes graph/.
//
// This file holds the concept of an observer and any_observer, a type that can hold any of them.
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
#include <detent/observers/batch_extent.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

/// The values of a view in row-major order, each rounded to the nearest float.
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
  const tensor_view<const T> lines = merge_dimensions(x);
  for_each_row(lines,
               [&](const T* row, std::size_t n, std::ptrdiff_t stride, const auto& /*index*/) {
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

/// What a type needs to be used as an observer: it is copyable, has
///
///     void observe(std::span<const float>)        or void observe(tensor_view<const float>)
///     scale_solution finalize(quant_scheme) const or quant_params finalize(quant_scheme) const
///
/// and may also have
///
///     std::size_t phases() const              passes over the data, 1 (the default) or 2
///     void begin_phase(std::size_t phase)     called before each pass
///     void merge(const Observer& other)       adds what `other` has seen, in any order
///     bool merges_in_any_order() const        whether merge() takes what was observed apart, in
///                                             any order, with these options; by default true, and
///                                             false for a type with follow()
///     void append(const Observer& later)      adds one batch that came after all seen here
///     void follow(const batch_extent& batch)  takes note of a batch that another observer counts
///     void write(detail::byte_writer&) const  appends the state, at least one byte; needed by
///                                             save()
///     void read(detail::byte_reader&)         replaces the state; needed by load()
///     static constexpr bool takes_any_batch   true if observe() refuses no values, so that
///                                             channel_observer need not copy the state first
///
/// An observer whose observe() throws must not have changed, unless memory ran out: then it may
/// only be assigned to or destroyed.
///
/// A type that has both forms of observe() gets the view, that is, the shape of the batch.
///
/// append() and follow() are for observers whose result depends on the order of batches. With
/// append(), the state is that of all batches in order: append(later), where `later` has seen one
/// batch, gives the bits that observe() of that batch gives. With follow(), the histogram of an
/// observer grows with the extents of batches: an observer that follows some batches and observes
/// the others, in their order, ends with the histogram of all, which has counted the observed ones.
/// Such observers then merge(); or, with append(), each of them has followed all batches before its
/// own one.
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

/// Holds one observer of any type by value, and forwards to it. Copies are deep. An object that was
/// moved from, or whose observe() or merge() threw std::bad_alloc, may only be assigned to or
/// destroyed. Not thread-safe: use one per thread, then merge().
class any_observer {
 public:
  // The check for this very type comes first: observer_type asks whether any_observer is copyable,
  // which must not be asked while overload resolution for its own copy constructor is going on.
  /// Holds `observer`.
  template <class Observer>
  requires(!std::same_as<Observer, any_observer>) &&
      observer_type<Observer> any_observer(
          Observer observer)  // NOLINT(google-explicit-constructor)
      : self_(std::make_unique<holder<Observer>>(std::move(observer))) {}
  /// Copies the observer that `other` holds, with everything it has seen.
  any_observer(const any_observer& other) : self_(other.self_->clone()) {}
  /// Takes over the observer of the other object without copying it.
  any_observer(any_observer&&) noexcept = default;
  /// Replaces the observer by a copy of the one that `other` holds.
  any_observer& operator=(const any_observer& other) {
    self_ = other.self_->clone();
    return *this;
  }
  /// Replaces the observer by the one of the other object, without copying it.
  any_observer& operator=(any_observer&&) noexcept = default;
  ~any_observer() = default;

  /// Observes one batch. An observer that takes spans gets the values in row-major order. Throws
  /// what the observer throws, usually invalid_argument for null data.
  void observe(tensor_view<const float> x) { self_->observe(x); }
  /// Observes one batch of values without a shape: a view of rank 1.
  void observe(std::span<const float> x) {
    const std::size_t shape[] = {x.size()};
    self_->observe(tensor_view<const float>(x.data(), shape));
  }
  /// Observes one batch of float16, bfloat16, float8 or double values, each rounded to the nearest
  /// float.
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(tensor_view<const T> x) {
    const std::vector<float> values = detail::floats_of(x);
    observe(tensor_view<const float>(values.data(), std::span(x.shape.data(), x.rank)));
  }
  /// Observes one batch in memory that may be written; it is only read.
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(tensor_view<T> x) { observe(tensor_view<const T>(x)); }

  /// How many passes over the data the observer needs: 1 or 2.
  [[nodiscard]] std::size_t phases() const { return self_->phases(); }
  /// Announces that pass `phase` over the data begins. The call is optional for phase 0. Throws
  /// invalid_argument if phase >= phases(), and what the observer throws, for example if the first
  /// pass has seen nothing.
  void begin_phase(std::size_t phase) {
    require(phase < phases(), error_kind::invalid_argument, "any_observer: phase ", phase, " of ",
            phases());
    self_->begin_phase(phase);
  }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen; with moving_average_observer, after what it has seen itself. Throws
  /// invalid_argument if `other` holds another type of observer, unsupported if the type has no
  /// merge(), and what merge() of the type throws: for other options, and by observers with
  /// follow() if the two have not observed or followed the same batches. See
  /// merges_in_any_order().
  void merge(const any_observer& other) { self_->merge(*other.self_); }
  /// Whether observers that saw parts of the data, each by itself, can be merged in any order to
  /// the state of one that saw everything. False if the type has no merge(), if its merge() depends
  /// on the order, and if the observers must follow() each other's batches first.
  [[nodiscard]] bool merges_in_any_order() const { return self_->merges_in_any_order(); }
  /// Whether observe() refuses no values: whatever they are, it throws only for lack of memory, and
  /// beyond the number of values that it can count. False if the type does not say so.
  [[nodiscard]] bool takes_any_batch() const noexcept { return self_->takes_any_batch(); }
  /// Whether the type has append(): its state can be put together from batches, in their order.
  [[nodiscard]] bool appends() const { return self_->appends(); }
  /// Whether the type has follow(): its state needs the extents of all batches before the batches.
  [[nodiscard]] bool follows() const { return self_->follows(); }
  /// Afterwards this observer is in the state it would have if the one batch that `later` has seen
  /// had come after its own. Throws invalid_argument if `later` holds another type of observer,
  /// unsupported if the type has no append().
  void append(const any_observer& later) { self_->append(*later.self_); }
  /// Takes note of a batch that another observer counts. Throws unsupported if the type has no
  /// follow().
  void follow(const batch_extent& batch) { self_->follow(batch); }
  /// Scale and zero point for everything observed so far, with the evidence for them. Throws
  /// invalid_argument if nothing, a NaN or an infinity was observed, and what the observer throws
  /// for the scheme. If the observer returns quant_params only, the evidence holds its range and
  /// count where it reports them.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    return self_->finalize(scheme);
  }

  /// The observer's state as bytes, in the envelope of byte_format.hpp (little-endian, version,
  /// checksum). Throws unsupported if the observer has no write().
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer out(format);
    write(out);
    return std::move(out).finish();
  }
  /// Replaces the state by one that save() returned for an observer of the same type. Throws
  /// bad_file if the bytes are damaged, unsupported if the layout's version is unknown or the
  /// observer has no read(). If it throws, the state is unchanged.
  void load(std::span<const std::byte> bytes) {
    any_observer next = *this;
    detail::byte_reader in(bytes, format, "any_observer::load");
    next.read(in);
    in.require_end();
    *this = std::move(next);
  }

  /// Appends the state, without the envelope of save(), to something larger.
  void write(detail::byte_writer& out) const { self_->write(out); }
  /// Replaces the state by one that write() appended. Throws bad_file for bytes that do not fit.
  void read(detail::byte_reader& in) { self_->read(in); }

  /// The observer inside if its type is Observer, else null. Valid until this object is assigned to
  /// or destroyed.
  template <observer_type Observer>
  [[nodiscard]] const Observer* target() const noexcept {
    const bool is_held = self_->kind() == &kind_of<Observer>;
    return is_held ? &static_cast<const holder<Observer>*>(self_.get())->observer : nullptr;
  }

 private:
  static constexpr detail::byte_format format{"detentob", 1};

  /// The address of this variable identifies the type Observer, without run-time type information.
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
    [[nodiscard]] virtual bool merges_in_any_order() const = 0;
    [[nodiscard]] virtual bool takes_any_batch() const noexcept = 0;
    [[nodiscard]] virtual bool appends() const noexcept = 0;
    [[nodiscard]] virtual bool follows() const noexcept = 0;
    virtual void append(const base& later) = 0;
    virtual void follow(const batch_extent& batch) = 0;
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
    [[nodiscard]] bool merges_in_any_order() const override {
      if constexpr (requires { bool{observer.merges_in_any_order()}; }) {
        return observer.merges_in_any_order();
      }
      return requires(Observer o) { o.merge(o); }
      &&!requires(Observer o, batch_extent e) { o.follow(e); };
    }
    [[nodiscard]] bool takes_any_batch() const noexcept override {
      if constexpr (requires { bool{Observer::takes_any_batch}; }) {
        return Observer::takes_any_batch;
      }
      return false;
    }
    [[nodiscard]] bool appends() const noexcept override {
      return requires(Observer o) { o.append(o); };
    }
    [[nodiscard]] bool follows() const noexcept override {
      return requires(Observer o, batch_extent e) { o.follow(e); };
    }
    void append(const base& later) override {
      require(later.kind() == kind(), error_kind::invalid_argument,
              "any_observer: appending an observer of another kind");
      [[maybe_unused]] const auto* same = static_cast<const holder*>(&later);
      if constexpr (requires { observer.append(same->observer); }) {
        observer.append(same->observer);
      } else {
        raise(error_kind::unsupported, "detent: any_observer: this observer does not append");
      }
    }
    void follow([[maybe_unused]] const batch_extent& batch) override {
      if constexpr (requires { observer.follow(batch); }) {
        observer.follow(batch);
      } else {
        raise(error_kind::unsupported, "detent: any_observer: this observer does not follow");
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
