// SPDX-License-Identifier: BSD-3-Clause
// The folder statistics/ holds what observers and solvers know about data: histograms (this file),
// lists of their bins (value_bins.hpp) and sorted values with sums (distribution.hpp). Its headers
// may include base/, elementwise/, kernels/ and the public headers of quantization, and nothing of
// solvers/ or observers/.
//
// This file holds the histogram that most observers share. Its bins do not depend on the data, and
// observing only adds integers; so the state is the same for any order of the values, split into
// batches, number of threads, order of merges, and CPU.
//
// A bin holds the floats that share sign, exponent and the first 9 bits of the mantissa: 512 bins
// in each octave, each narrower than 1/512 of its values unless these are denormal. Bins are kept
// for 31 octaves downwards from the octave of the largest magnitude seen. All smaller values, those
// below 2^-30 of the largest one, fall into one bin for each sign. As larger values come, octaves
// that are now too small move into that bin: what is kept depends on the largest value alone, not
// on when it came. Zeros are counted separately.
#ifndef DETENT_STATISTICS_HISTOGRAM_HPP
#define DETENT_STATISTICS_HISTOGRAM_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/base/rows.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What a histogram keeps of each bin.
enum class bin_content : std::uint8_t {
  counts,  ///< the number of values
  sums,    ///< the number of values and their exact sum
};

/// How a histogram stores its bins. The results do not depend on it.
enum class bin_storage : std::uint8_t {
  /// All bins from the first value on: 252 KiB of counts, 504 KiB with sums. A histogram that was
  /// loaded is stored as by `sparse` until it observes a value.
  dense,
  sparse,  ///< pages of 128 bins, made as values need them; for many histograms
};

namespace detail {

template <bin_content kContent>
struct bin_entry {
  std::uint64_t count = 0;
  void add(std::uint64_t n, std::uint64_t /*more*/) noexcept { count += n; }
  [[nodiscard]] std::uint64_t sum() const noexcept { return 0; }
};
template <>
struct bin_entry<bin_content::sums> {
  std::uint64_t count = 0;
  std::uint64_t excess = 0;  // sum of the mantissa bits that the bin's position drops
  void add(std::uint64_t n, std::uint64_t more) noexcept {
    count += n;
    excess += more;
  }
  [[nodiscard]] std::uint64_t sum() const noexcept { return excess; }
};

inline constexpr std::uint32_t infinity_pattern = 0x7F800000U;

}  // namespace detail

/// Counts floats in bins with a relative width below 1/512, over 31 octaves down from the largest
/// magnitude seen. All of it is integers; see the head of this file for the layout of the bins.
/// `kContent` says whether bins also keep the exact sum of their values. An object is a value that
/// can be copied and compared; it is not thread-safe: use one per thread, then merge(). If memory
/// runs out in observe(), the histogram may have counted a part of the batch, and stays usable.
template <bin_content kContent>
class basic_histogram {
 public:
  /// The largest number of values that a histogram takes. It keeps the 64-bit sums of bins from
  /// overflowing.
  static constexpr std::uint64_t largest_count = std::uint64_t{1} << 48;

  /// Makes a histogram that has seen nothing.
  explicit basic_histogram(bin_storage storage = bin_storage::dense) : storage_(storage) {
    clear_pages();
  }
  /// Copies the statistic and the storage of the other histogram.
  basic_histogram(const basic_histogram&) = default;
  /// Replaces the statistic and the storage by copies of those of the other histogram. If memory
  /// runs out, nothing has changed.
  basic_histogram& operator=(const basic_histogram& other) {
    return *this = basic_histogram(other);
  }
  ~basic_histogram() = default;
  /// Takes over the bins of `other`, which afterwards has seen nothing.
  basic_histogram(basic_histogram&& other) noexcept : basic_histogram(other.storage_) {
    swap(other);
  }
  /// Takes over the bins of `other`, which afterwards has seen nothing.
  basic_histogram& operator=(basic_histogram&& other) noexcept {
    basic_histogram next(std::move(other));
    swap(next);
    return *this;
  }

  /// Observes a batch. NaN and infinities are counted separately. Throws invalid_argument for null
  /// data with a size that is not 0, overflow if the total exceeds largest_count; then nothing was
  /// counted.
  void observe(std::span<const float> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "histogram: null data with size ", x.size());
    require_room(x.size());
    while (!x.empty()) {
      const std::size_t n = (std::min)(x.size(), block_size);
      observe_block(x.first(n));
      x = x.subspan(n);
    }
  }

  /// Observes a batch on several threads: parts of at least 2^18 values, at most 16 of them, are
  /// counted separately and merged. The result is the same as on one thread. Throws like observe()
  /// of one batch.
  void observe(std::span<const float> x, const parallel_for& parallel) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "histogram: null data with size ", x.size());
    const std::size_t parts =
        !parallel ? 1
                  : (std::min)(x.size() / smallest_part, static_cast<std::size_t>(largest_parts));
    if (parts < 2) {
      observe(x);
      return;
    }
    require_room(x.size());
    // There are as many histograms as parts that run at the same time: each part takes one that is
    // free.
    std::mutex mutex;
    std::vector<basic_histogram> free;
    parallel(parts, [&](std::size_t part) {
      basic_histogram own(storage_);
      {
        const std::lock_guard lock(mutex);
        if (!free.empty()) {
          own = std::move(free.back());
          free.pop_back();
        }
      }
      const std::size_t first = x.size() / parts * part;
      const std::size_t last = part + 1 == parts ? x.size() : x.size() / parts * (part + 1);
      own.observe(x.subspan(first, last - first));
      const std::lock_guard lock(mutex);
      free.push_back(std::move(own));
    });
    while (free.size() > 1) {
      free.front().merge(free.back());
      free.pop_back();
    }
    merge(free.front());
  }

  /// Observes value x[i] counts[i] times, for each i. Throws shape_mismatch if the sizes differ,
  /// invalid_argument for null data, overflow if the total exceeds largest_count.
  void observe(std::span<const float> x, std::span<const std::uint64_t> counts) {
    require(x.size() == counts.size(), error_kind::shape_mismatch, "histogram: ", x.size(),
            " values, ", counts.size(), " counts");
    require(x.empty() || (x.data() != nullptr && counts.data() != nullptr),
            error_kind::invalid_argument, "histogram: null data with size ", x.size());
    std::uint64_t all = 0;
    for (const std::uint64_t count : counts) {
      require(count <= largest_count - all, error_kind::overflow,
              "histogram: more than 2^48 values");
      all += count;
    }
    require_room(all);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (counts[i] != 0) {
        observe_one(x[i], counts[i]);
      }
    }
  }

  /// Observes a view of any shape and strides. Throws invalid_argument for null data with a size
  /// that is not 0, overflow if the total exceeds largest_count.
  void observe(tensor_view<const float> x);

  /// Observes values of another format, each rounded to the nearest float: exact for float16,
  /// bfloat16 and float8. A double beyond the range of floats counts as an infinity. Throws like
  /// observe() of floats.
  template <class T>
  requires float_format<T> || std::same_as<T, double>
  void observe(std::span<const T> x) {
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "histogram: null data with size ", x.size());
    require_room(x.size());
    std::array<float, block_size> block;
    for (std::size_t i = 0; i < x.size(); i += block_size) {
      const std::size_t n = (std::min)(x.size() - i, block_size);
      for (std::size_t k = 0; k < n; ++k) {
        if constexpr (float_format<T>) {
          block[k] = to_float(x[i + k]);
        } else {
          block[k] = static_cast<float>(x[i + k]);
        }
      }
      observe(std::span<const float>(block.data(), n));
    }
  }

  /// Adds the counts of `other`: afterwards this histogram is in the state it would have if it had
  /// also seen everything that `other` has seen. Throws overflow if the total exceeds
  /// largest_count. If it throws, nothing has changed, also if memory ran out.
  void merge(const basic_histogram& other) {
    require_room(other.count_);
    if (other.lowest_ > lowest_) {
      basic_histogram next = with_window(other.lowest_);
      next.merge(other);
      swap(next);
      return;
    }
    if (other.has_all_) {
      use_storage();
    }
    const std::uint32_t raise = lowest_ - other.lowest_;
    if (!has_all_) {  // all memory first
      other.for_each_entry([&](std::uint32_t position, const entry&) {
        static_cast<void>(entry_at(moved(position, raise)));
      });
    }
    other.for_each_entry([&](std::uint32_t position, const entry& e) {
      add(moved(position, raise), e.count, e.sum());
    });
    include_range(other.lower_, other.upper_);
    count_ += other.count_;
    count_nan_ += other.count_nan_;
    count_infinite_ += other.count_infinite_;
    count_zero_ += other.count_zero_;
  }

  /// How many values were observed, NaN, infinities and zeros included.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// How many NaN values were observed.
  [[nodiscard]] std::uint64_t count_nan() const noexcept { return count_nan_; }
  /// How many infinities of either sign were observed.
  [[nodiscard]] std::uint64_t count_infinite() const noexcept { return count_infinite_; }
  /// How many zeros of either sign were observed.
  [[nodiscard]] std::uint64_t count_zero() const noexcept { return count_zero_; }
  /// How many bytes the histogram occupies, its bins included.
  [[nodiscard]] std::size_t memory() const noexcept {
    return sizeof *this + entries_.capacity() * sizeof(entry);
  }

  /// The smallest and the largest value observed, exactly; -0 is reported as 0. Throws
  /// invalid_argument if nothing, a NaN or an infinity was observed. `where` is the name that the
  /// error message begins with, for observers that are built on this one.
  [[nodiscard]] value_range range(const char* where = "histogram") const {
    require_finite(where);
    return {lower_, upper_};
  }

  /// All bins that hold at least one value, in ascending order of the values. The largest magnitude
  /// of a bin is cut to what was observed. Throws what range() throws.
  [[nodiscard]] std::vector<value_bin> bins() const;

  /// The bin of the order statistic of rank quantile_rank(fraction, count()): it lies between the
  /// two ends of the range returned, and a share `fraction` of the values is at or below it. Throws
  /// what range() and quantile_rank() throw.
  [[nodiscard]] value_range quantile(double fraction) const {
    const std::vector<value_bin> all = bins();
    return order_statistic(all, quantile_rank(fraction, count_));
  }

  /// The state as bytes, in the envelope of byte_format.hpp. The bytes are the same on every
  /// machine and for either storage:
  ///
  ///     u8 content, 7 bytes 0
  ///     u64 count, u64 NaNs, u64 infinities, u64 zeros
  ///     f32 lower, f32 upper (0 if there is no finite value)
  ///     u32 lowest pattern, u32 bins
  ///     for each bin in ascending order: u32 position / 2^14, u64 count, and with sums u64 excess
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer out(format);
    write(out);
    return std::move(out).finish();
  }
  /// The histogram that save() returned as bytes, with the given storage. Throws bad_file for
  /// damaged bytes or another content, unsupported for an unknown version of the layout.
  [[nodiscard]] static basic_histogram load(std::span<const std::byte> bytes,
                                            bin_storage storage = bin_storage::dense) {
    detail::byte_reader in(bytes, format, "histogram::load");
    basic_histogram h(storage);
    h.read(in);
    in.require_end();
    return h;
  }

  /// Appends the state, without the envelope of save(), to something larger.
  void write(detail::byte_writer& out) const;
  /// Replaces the statistic by one that write() appended; the storage stays. Throws bad_file for an
  /// impossible state; then nothing has changed.
  void read(detail::byte_reader& in);

  /// Whether both have the same statistic; the storage does not matter.
  friend bool operator==(const basic_histogram& a, const basic_histogram& b) {
    return a.save() == b.save();
  }

 private:
  using entry = detail::bin_entry<kContent>;

  static constexpr std::size_t block_size = 2048;
  static constexpr std::size_t spare =
      16;  // the kernel may write this many positions beyond the end
  static constexpr std::size_t smallest_part = std::size_t{1} << 18;
  static constexpr std::size_t largest_parts = 16;

  static constexpr std::uint32_t octave = 1U << 23;
  static constexpr std::uint32_t window = kernels::bin_octaves * octave;
  static constexpr std::uint32_t negative = 1U << 28;
  static constexpr int dropped = kernels::bin_dropped_bits;
  static constexpr std::uint32_t dropped_mask = (1U << dropped) - 1U;
  static constexpr std::size_t entry_count = ((negative | window) >> dropped) + 1;
  static constexpr int page_bits = 7;
  static constexpr std::size_t page_size = std::size_t{1} << page_bits;
  static constexpr std::size_t pages = 256;  // as many as positions have
  static constexpr detail::byte_format format{"detenthg", 1};

  void swap(basic_histogram& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(has_all_, other.has_all_);
    std::swap(lowest_, other.lowest_);
    std::swap(count_, other.count_);
    std::swap(count_nan_, other.count_nan_);
    std::swap(count_infinite_, other.count_infinite_);
    std::swap(count_zero_, other.count_zero_);
    std::swap(lower_, other.lower_);
    std::swap(upper_, other.upper_);
    first_entry_.swap(other.first_entry_);
    entries_.swap(other.entries_);
  }

  /// Makes an entry for each bin if the storage is dense. It is called when values are observed,
  /// not when a state is read: many states of a few bytes must not take the memory of all bins
  /// each.
  void use_storage() {
    if (storage_ == bin_storage::dense && !has_all_) {
      std::vector<entry> all(entry_count);
      for_each_entry([&](std::uint32_t position, const entry& e) { all[position >> dropped] = e; });
      entries_ = std::move(all);
      clear_pages();
      has_all_ = true;
    }
  }
  void clear_pages() noexcept {
    for (std::uint32_t page = 0; page < pages; ++page) {
      first_entry_[page] = without_page(page);
    }
  }

  void require_room(std::uint64_t more) const {
    require(more <= largest_count - count_, error_kind::overflow,
            "histogram: more than 2^48 values");
  }
  void require_finite(const char* where) const {
    require(count_ > 0, error_kind::invalid_argument, where, ": nothing was observed");
    require(count_nan_ == 0, error_kind::invalid_argument, where, ": ", count_nan_, " of ", count_,
            " values are NaN");
    require(count_infinite_ == 0, error_kind::invalid_argument, where, ": ", count_infinite_,
            " of ", count_, " values are infinite");
  }

  void include_range(float lower, float upper) noexcept {
    // Adding zero makes -0 +0: the state must not depend on which of them came first.
    lower_ = (lower < lower_ ? lower : lower_) + 0.0F;
    upper_ = (upper > upper_ ? upper : upper_) + 0.0F;
  }

  /// The bit pattern of the lowest float that has a bin, where `largest` is the largest pattern of
  /// an |x|.
  [[nodiscard]] static constexpr std::uint32_t lowest_for(std::uint32_t largest) noexcept {
    const std::uint32_t exponent = largest & ~(octave - 1U);
    return exponent < window ? 0 : exponent - window + octave;
  }
  /// Where a position goes when the window of bins begins `raise` higher.
  [[nodiscard]] static constexpr std::uint32_t moved(std::uint32_t position,
                                                     std::uint32_t raise) noexcept {
    const std::uint32_t place = position & (negative - 1U);
    const std::uint32_t to = place >= window || place < raise ? window : place - raise;
    return to | (position & negative);
  }

  /// The value of first_entry_ for a page that has no entries; modulo 2^32.
  [[nodiscard]] static constexpr std::uint32_t without_page(std::uint32_t page) noexcept {
    return 0U - (page << page_bits);
  }
  [[nodiscard]] bool has_page(std::uint32_t page) const noexcept {
    return first_entry_[page] != without_page(page);
  }

  /// The entry of a position; it is made if there is none yet.
  entry& entry_at(std::uint32_t position) {
    if (has_all_) {
      return entries_[position >> dropped];
    }
    const std::uint32_t page = position >> (dropped + page_bits);
    if (!has_page(page)) {
      const std::size_t size = (std::max)(entries_.size(), page_size);
      if (size + page_size > entries_.capacity()) {  // by a quarter: doubling wastes up to a half
        entries_.reserve(size + (std::max)(page_size, size / 4));
      }
      entries_.resize(size + page_size);
      first_entry_[page] += static_cast<std::uint32_t>(size);
    }
    return entries_[first_entry_[page] + (position >> dropped)];
  }
  void add(std::uint32_t position, std::uint64_t count, std::uint64_t excess) {
    const bool below = (position & (negative - 1U)) >= window;
    entry_at(position).add(count, below ? 0 : excess);
  }

  /// Calls f(position of the bin's first value, entry) for each entry that holds something, in
  /// ascending order of positions.
  template <class F>
  void for_each_entry(const F& f) const {
    const auto visit = [&](std::size_t first_bin, std::size_t first_entry, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        if (entries_[first_entry + i].count != 0) {
          f(static_cast<std::uint32_t>(first_bin + i) << dropped, entries_[first_entry + i]);
        }
      }
    };
    if (has_all_) {
      visit(0, 0, entries_.size());
      return;
    }
    for (std::uint32_t page = 0; page < pages; ++page) {
      if (has_page(page)) {
        const std::uint32_t first_bin = page << page_bits;
        visit(first_bin, first_entry_[page] + first_bin, page_size);
      }
    }
  }

  /// The same statistic with bins from the pattern `lowest` on, which is above lowest_. It is not
  /// valid until a value is counted that needs this window.
  [[nodiscard]] basic_histogram with_window(std::uint32_t lowest) const {
    basic_histogram next(storage_);
    if (has_all_) {
      next.use_storage();
    }
    const std::uint32_t raise = lowest - lowest_;
    for_each_entry([&](std::uint32_t position, const entry& e) {
      next.add(moved(position, raise), e.count, e.sum());
    });
    next.lowest_ = lowest;
    next.count_ = count_;
    next.count_nan_ = count_nan_;
    next.count_infinite_ = count_infinite_;
    next.count_zero_ = count_zero_;
    next.lower_ = lower_;
    next.upper_ = upper_;
    return next;
  }

  void observe_block(std::span<const float> x) {
    use_storage();
    std::array<float, block_size> finite;
    std::array<std::uint32_t, block_size + spare> positions;
    const auto& table = detail::active<kernels::statistics_kernels>();
    kernels::bin_block r = table.bin_positions(x.data(), x.size(), lowest_, positions.data());
    const std::size_t all = x.size();
    std::size_t nans = 0;
    if (r.largest >= detail::infinity_pattern) [[unlikely]] {
      std::size_t n = 0;
      for (const float value : x) {
        nans += std::isnan(value) ? 1U : 0U;
        finite[n] = value;
        n += std::isfinite(value) ? 1U : 0U;
      }
      x = {finite.data(), n};
      r = table.bin_positions(x.data(), n, lowest_, positions.data());
    }
    if (r.largest >= lowest_ + window) [[unlikely]] {
      basic_histogram next = with_window(lowest_for(r.largest));
      next.observe_block(x);
      swap(next);
    } else {
      has_all_ ? count_dense({positions.data(), r.count})
               : count_sparse({positions.data(), r.count});
      include_range(r.lower, r.upper);
      count_ += x.size();
      count_zero_ += x.size() - r.count;
    }
    // Nothing below can fail: a block is counted whole or not at all.
    count_ += all - x.size();
    count_nan_ += nans;
    count_infinite_ += all - x.size() - nans;
  }

  /// Counts one value at each position.
  void count_dense(std::span<const std::uint32_t> positions) {
    for_each_position(positions, [entries = entries_.data()](std::uint32_t position) {
      entries[position >> dropped].add(1, position & dropped_mask);
    });
  }
  /// Counts one value at each position. Values whose page does not exist yet are first counted in
  /// the entries that belong to no page and then, with new pages, again: the loop needs no branch
  /// for them. If there is no memory for the pages, nothing is counted.
  void count_sparse(std::span<std::uint32_t> positions) {
    if (entries_.empty()) {
      entries_.resize(page_size);
    }
    entry* const entries = entries_.data();
    const auto& first = first_entry_;
    for_each_position(positions, [&first, entries](std::uint32_t position) {
      const std::uint32_t at = first[position >> (dropped + page_bits)] + (position >> dropped);
      entries[at].add(1, position & dropped_mask);
    });
    std::uint64_t counted = 0;
    for (std::size_t i = 0; i < page_size; ++i) {
      counted |= entries[i].count;
    }
    if (counted != 0) {
      std::fill_n(entries, page_size, entry{});
      const auto last = std::partition(positions.begin(), positions.end(), [&](std::uint32_t p) {
        return !has_page(p >> (dropped + page_bits));
      });
      taken_back counted_already{
          *this, positions.subspan(static_cast<std::size_t>(last - positions.begin()))};
      std::for_each(positions.begin(), last,
                    [&](std::uint32_t p) { static_cast<void>(entry_at(p)); });
      counted_already.positions = {};
      std::for_each(positions.begin(), last,
                    [&](std::uint32_t p) { entry_at(p).add(1, p & dropped_mask); });
    }
  }
  /// Its destructor takes back one counted value at each position, which undoes a count that an
  /// exception ends. Who has counted all empties `positions` first.
  struct taken_back {
    basic_histogram& of;
    std::span<const std::uint32_t> positions;
    ~taken_back() {
      for (const std::uint32_t p : positions) {
        of.entry_at(p).add(~std::uint64_t{0}, 0U - std::uint64_t{p & dropped_mask});
      }
    }
  };
  /// Calls f(position) for each one, four at a time.
  template <class F>
  static void for_each_position(std::span<const std::uint32_t> positions, const F& f) {
    std::size_t i = 0;
    for (; i + 4 <= positions.size(); i += 4) {
      for (std::size_t k = 0; k < 4; ++k) {
        f(positions[i + k]);
      }
    }
    for (; i < positions.size(); ++i) {
      f(positions[i]);
    }
  }

  void observe_one(float x, std::uint64_t count) {
    use_storage();
    if (!std::isfinite(x)) {
      count_ += count;
      (std::isnan(x) ? count_nan_ : count_infinite_) += count;
      return;
    }
    if (x == 0.0F) {
      count_zero_ += count;
    } else {
      const std::uint32_t lowest = lowest_for(std::bit_cast<std::uint32_t>(std::fabs(x)));
      if (lowest > lowest_) {
        basic_histogram next = with_window(lowest);
        next.observe_one(x, count);
        swap(next);
        return;
      }
      const std::uint32_t position = reference::bin_position(x, lowest_);
      add(position, count, count * (position & dropped_mask));
    }
    include_range(x, x);
    count_ += count;
  }

  /// The bin of magnitudes that begins at a position.
  [[nodiscard]] value_bin bin_at(std::uint32_t position, const entry& e) const noexcept {
    const std::uint32_t place = position & (negative - 1U);
    const bool below = place >= window;
    value_bin bin;
    bin.negative = (position & negative) != 0;
    bin.smallest = below ? 0.0F : std::bit_cast<float>(lowest_ + place);
    bin.largest = std::bit_cast<float>(below ? lowest_ - 1U : lowest_ + place + dropped_mask);
    bin.largest = (std::min)(bin.largest, bin.negative ? -lower_ : upper_);
    bin.count = e.count;
    bin.excess = e.sum();
    bin.excess_known = kContent == bin_content::sums && !below;
    return bin;
  }

  bin_storage storage_;
  bool has_all_ = false;      // whether there is an entry for each bin, not pages of them
  std::uint32_t lowest_ = 0;  // the pattern from which bins are kept, lowest_for() the largest
  std::uint64_t count_ = 0;
  std::uint64_t count_nan_ = 0;
  std::uint64_t count_infinite_ = 0;
  std::uint64_t count_zero_ = 0;
  float lower_ = std::numeric_limits<float>::infinity();
  float upper_ = -std::numeric_limits<float>::infinity();
  // Pages: the place in entries_ of each page, less the number of its first bin. The first
  // page_size entries belong to no page and are 0 between calls, see count_sparse().
  std::array<std::uint32_t, pages> first_entry_;
  std::vector<entry> entries_;
};

/// The histogram that keeps sums, for solvers that compute errors; 504 KiB with dense storage.
using histogram = basic_histogram<bin_content::sums>;
/// The histogram that keeps counts only, for order statistics and divergences; 252 KiB with dense
/// storage.
using count_histogram = basic_histogram<bin_content::counts>;

template <bin_content kContent>
void basic_histogram<kContent>::observe(tensor_view<const float> x) {
  if (x.size() == 0) {
    return;
  }
  require(x.data != nullptr, error_kind::invalid_argument, "histogram: null data with size ",
          x.size());
  require_room(x.size());
  // Short lines are gathered, since a block has a cost of its own.
  std::array<float, block_size> block;
  std::size_t filled = 0;
  const tensor_view<const float> lines = detail::merge_dimensions(x);
  detail::for_each_row(
      lines, [&](const float* row, std::size_t n, std::ptrdiff_t stride, const auto& /*index*/) {
        if (stride == 1 && n >= block_size / 4) {
          observe(std::span<const float>(row, n));
          return;
        }
        for (std::size_t i = 0; i < n; ++i) {
          block[filled++] = row[static_cast<std::ptrdiff_t>(i) * stride];
          if (filled == block_size) {
            observe_block(block);
            filled = 0;
          }
        }
      });
  observe_block(std::span<const float>(block.data(), filled));
}

template <bin_content kContent>
std::vector<value_bin> basic_histogram<kContent>::bins() const {
  require_finite("histogram");
  // Positions ascend with the magnitude, except that those of the smallest magnitudes come last.
  std::size_t count = 0;
  std::size_t below_count = 0;
  std::size_t smallest_below = 0;
  std::size_t smallest_above = 0;
  for_each_entry([&](std::uint32_t position, const entry&) {
    below_count += (position & negative) != 0 ? 1U : 0U;
    smallest_below += position == (negative | window) ? 1U : 0U;
    smallest_above += position == window ? 1U : 0U;
    ++count;
  });
  const std::size_t zeros = count_zero_ != 0 ? 1 : 0;
  std::vector<value_bin> all(count + zeros);
  if (zeros != 0) {
    all[below_count].count = count_zero_;
  }
  std::size_t below = below_count - smallest_below;
  std::size_t above = below_count + zeros + smallest_above;
  for_each_entry([&](std::uint32_t position, const entry& e) {
    const bool is_negative = (position & negative) != 0;
    if ((position & (negative - 1U)) >= window) {
      all[is_negative ? below_count - 1 : below_count + zeros] = bin_at(position, e);
    } else {
      all[is_negative ? --below : above++] = bin_at(position, e);
    }
  });
  return all;
}

template <bin_content kContent>
void basic_histogram<kContent>::write(detail::byte_writer& out) const {
  out.put(static_cast<std::uint8_t>(kContent));
  for (int i = 0; i < 7; ++i) {
    out.put(std::uint8_t{0});
  }
  for (const std::uint64_t n : {count_, count_nan_, count_infinite_, count_zero_}) {
    out.put(n);
  }
  const bool any = lower_ <= upper_;
  out.put(any ? lower_ : 0.0F);
  out.put(any ? upper_ : 0.0F);
  out.put(lowest_);
  std::uint32_t bin_count = 0;
  for_each_entry([&](std::uint32_t, const entry&) { ++bin_count; });
  out.put(bin_count);
  for_each_entry([&](std::uint32_t position, const entry& e) {
    out.put(position >> dropped);
    out.put(e.count);
    if constexpr (kContent == bin_content::sums) {
      out.put(e.excess);
    }
  });
}

template <bin_content kContent>
void basic_histogram<kContent>::read(detail::byte_reader& in) {
  constexpr const char* where = "histogram::load";
  const auto damaged = [&](bool whole, const char* what) {
    require(whole, error_kind::bad_file, where, ": ", what);
  };
  const auto content = in.template get<std::uint64_t>();
  damaged(content == static_cast<std::uint64_t>(kContent),
          content < 2 ? "the histogram has bins of the other content" : "the content is unknown");
  basic_histogram h(storage_);
  h.count_ = in.get_size(largest_count);
  h.count_nan_ = in.get_size(h.count_);
  h.count_infinite_ = in.get_size(h.count_ - h.count_nan_);
  h.count_zero_ = in.get_size(h.count_ - h.count_nan_ - h.count_infinite_);
  const auto lower = in.template get<float>();
  const auto upper = in.template get<float>();
  h.lowest_ = in.template get<std::uint32_t>();
  const auto bin_count = in.template get<std::uint32_t>();
  const std::uint64_t finite = h.count_ - h.count_nan_ - h.count_infinite_;
  std::uint64_t rest = finite - h.count_zero_;
  if (finite != 0) {
    damaged(std::isfinite(lower) && std::isfinite(upper) && lower <= upper &&
                (h.count_zero_ == 0 || (lower <= 0.0F && upper >= 0.0F)),
            "the range is impossible");
    h.include_range(lower, upper);
  } else {
    damaged(lower == 0.0F && upper == 0.0F, "a range without values");
  }
  const float magnitude = finite != 0 ? (std::max)(-h.lower_, h.upper_) : 0.0F;
  damaged(h.lowest_ == lowest_for(std::bit_cast<std::uint32_t>(magnitude + 0.0F)),
          "the bins do not fit the range");
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < bin_count; ++i) {
    const auto bin = in.template get<std::uint32_t>();
    const auto count = in.template get<std::uint64_t>();
    std::uint64_t excess = 0;
    if constexpr (kContent == bin_content::sums) {
      excess = in.template get<std::uint64_t>();
    }
    const std::uint32_t position = bin << dropped;
    const std::uint32_t place = position & (negative - 1U);
    damaged(bin >= next && bin < entry_count && place <= window, "the bins are out of order");
    damaged(place < window || h.lowest_ != 0, "a bin below all floats");
    damaged(count != 0 && count <= rest && excess <= count * dropped_mask &&
                (place < window || excess == 0),
            "a bin's count or sum is impossible");
    next = std::uint64_t{bin} + 1;
    rest -= count;
    h.add(position, count, excess);
  }
  damaged(rest == 0, "the counts of the bins do not add up");
  h.for_each_entry([&](std::uint32_t position, const entry& e) {
    const value_bin bin = h.bin_at(position, e);
    damaged(bin.largest >= bin.smallest && (bin.negative ? h.lower_ < 0.0F : h.upper_ > 0.0F),
            "a bin lies beyond the range");
    const std::uint64_t width = std::uint64_t{std::bit_cast<std::uint32_t>(bin.largest)} -
                                std::bit_cast<std::uint32_t>(bin.smallest);
    damaged(!bin.excess_known || bin.excess <= bin.count * width, "a bin's sum is impossible");
  });
  if (h.count_nan_ == 0 && h.count_infinite_ == 0 && h.count_ != 0) {
    const std::vector<value_bin> bins = h.bins();
    const auto holds = [](const value_bin& bin, float x) {
      return (x == 0.0F || bin.negative == (x < 0.0F)) && std::fabs(x) >= bin.smallest &&
             std::fabs(x) <= bin.largest;
    };
    damaged(holds(bins.front(), h.lower_) && holds(bins.back(), h.upper_),
            "the ends of the range are in no bin");
  }
  *this = std::move(h);
}

DETENT_NAMESPACE_END

#endif  // DETENT_STATISTICS_HISTOGRAM_HPP
