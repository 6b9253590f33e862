// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes tensors in NumPy's .npy files. Files are not trusted: no more memory is
// allocated than the file holds, and everything that is not exactly as the format says is an error
// that names the file.
#ifndef DETENT_GRAPH_MODEL_NPY_HPP
#define DETENT_GRAPH_MODEL_NPY_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/sample_axis.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail::npy {

static_assert(std::endian::native == std::endian::little,
              "elements are read and written as they are");

struct type_code {
  std::string_view code;  // NumPy's code without the byte order
  element_type type;
};
inline constexpr type_code type_codes[] = {
    {"f4", element_type::f32}, {"i1", element_type::s8},  {"u1", element_type::u8},
    {"i4", element_type::s32}, {"i8", element_type::s64}, {"f8", element_type::f64},
    {"f2", element_type::f16}, {"i2", element_type::s16}, {"u2", element_type::u16},
    {"u4", element_type::u32}, {"u8", element_type::u64}, {"b1", element_type::boolean},
};

inline constexpr std::string_view magic = "\x93NUMPY";

/// Text from a file in a form that can stand in a one-line message.
[[nodiscard]] inline std::string printable(std::string_view text) {
  constexpr std::size_t limit = 40;
  std::string out;
  for (const char c : text.substr(0, limit)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out + (text.size() > limit ? "..." : "");
}

template <class... Parts>
void require(bool condition, error_kind kind, const std::string& path, const Parts&... parts) {
  if (!condition) {
    detent::raise(kind, path, ": ", parts...);
  }
}

/// The contents of the dictionary in front of the elements.
struct header {
  element_type type = element_type::undefined;
  shape dims;
};

/// Reads the dictionary, a Python literal of exactly three keys.
class header_parser {
 public:
  header_parser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  [[nodiscard]] header parse() {
    expect('{');
    while (!accept('}')) {
      read_entry();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    check(at_ == text_.size(), "has text after its header: ", printable(rest()));
    check(type_.has_value(), "has a header without 'descr'");
    check(ordered_, "has a header without 'fortran_order'");
    check(dims_.has_value(), "has a header without 'shape'");
    return {*type_, *std::move(dims_)};
  }

 private:
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    require(condition, error_kind::bad_file, path_, parts...);
  }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
      ++at_;
    }
  }
  [[nodiscard]] bool accept(char c) {
    skip_space();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }
  void expect(char c) {
    check(accept(c), "has a malformed header: '", c, "' expected at '", printable(rest()), "'");
  }
  [[nodiscard]] std::string_view quoted() {
    skip_space();
    const char quote = at_ < text_.size() && text_[at_] == '"' ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    check(end != std::string_view::npos, "has a malformed header: text without end");
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  void read_entry() {
    const std::string_view key = quoted();
    expect(':');
    if (key == "descr") {
      check(!type_, "has 'descr' twice");
      type_ = read_type();
    } else if (key == "fortran_order") {
      check(!ordered_, "has 'fortran_order' twice");
      read_order();
    } else if (key == "shape") {
      check(!dims_, "has 'shape' twice");
      dims_ = read_shape();
    } else {
      check(false, "has an unknown key in its header: '", printable(key), "'");
    }
  }

  [[nodiscard]] element_type read_type() {
    skip_space();
    check(at_ >= text_.size() || text_[at_] != '[', "has elements with several fields");
    const std::string_view descr = quoted();
    const char order = descr.empty() ? ' ' : descr[0];
    check(order != '>', "is big-endian ('", printable(descr), "'); only little-endian is read");
    for (const type_code& t : type_codes) {
      const bool one_byte = element_size(t.type) == 1;
      if (order != ' ' && descr.substr(1) == t.code &&
          (order == '<' || order == '=' || (order == '|' && one_byte))) {
        return t.type;
      }
    }
    check(false, "has elements of type '", printable(descr), "', which is not read");
    return element_type::undefined;
  }

  void read_order() {
    skip_space();
    const bool fortran = rest().starts_with("True");
    check(!fortran, "is in Fortran order; save it with numpy.ascontiguousarray");
    check(rest().starts_with("False"), "has a malformed header: True or False expected at '",
          printable(rest()), "'");
    at_ += std::string_view("False").size();
    ordered_ = true;
  }

  [[nodiscard]] shape read_shape() {
    shape dims;
    expect('(');
    while (!accept(')')) {
      dims.push_back(read_dimension());
      const bool comma = accept(',');
      if (!comma) {
        check(dims.size() > 1, "has a malformed header: shape is not a tuple");
        expect(')');
        break;
      }
    }
    return dims;
  }
  [[nodiscard]] std::int64_t read_dimension() {
    skip_space();
    check(!rest().starts_with('-'), "has a negative dimension: ", printable(rest()));
    const std::size_t first = at_;
    std::int64_t value = 0;
    constexpr std::int64_t limit = (std::numeric_limits<std::int64_t>::max)();
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const std::int64_t digit = text_[at_] - '0';
      check(value <= (limit - digit) / 10,
            "has a dimension that is too large: ", printable(text_.substr(first)));
      value = value * 10 + digit;
    }
    check(at_ > first, "has a malformed header: dimension expected at '", printable(rest()), "'");
    return value;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::optional<element_type> type_;
  bool ordered_ = false;
  std::optional<shape> dims_;
};

/// Reads the text of the dictionary. `at` is where the file is read next; it moves on.
[[nodiscard]] inline std::string read_header_text(input_file& file, const std::string& path,
                                                  std::uint64_t& at) {
  const auto take = [&](char* to, std::size_t size) {
    require(size <= file.size() - at, error_kind::bad_file, path, "ends within its header");
    file.read(at, to, size);
    at += size;
  };
  char start[8];
  require(file.size() >= sizeof(start), error_kind::bad_file, path, "is not a .npy file");
  take(start, sizeof(start));
  require(std::string_view(start, magic.size()) == magic, error_kind::bad_file, path,
          "is not a .npy file");
  const int major = static_cast<unsigned char>(start[6]);
  const int minor = static_cast<unsigned char>(start[7]);
  require(major >= 1 && major <= 3 && minor == 0, error_kind::bad_file, path, "is of .npy version ",
          major, ".", minor, "; 1.0, 2.0 and 3.0 are read");
  unsigned char length_bytes[4] = {};
  take(reinterpret_cast<char*>(length_bytes), major == 1 ? 2 : 4);
  std::uint64_t length = 0;
  for (std::size_t i = 4; i-- > 0;) {
    length = length << 8U | length_bytes[i];
  }
  require(length <= file.size() - at, error_kind::bad_file, path, "ends within its header");
  std::string text(static_cast<std::size_t>(length), ' ');
  take(text.data(), text.size());
  return text;
}

/// The number of bytes of the elements that a header announces; nothing if no tensor can be so
/// large.
[[nodiscard]] inline std::optional<std::uint64_t> data_bytes(const header& h) {
  std::uint64_t count = element_size(h.type);
  constexpr std::uint64_t limit = std::uint64_t{1} << 40U;
  for (const std::int64_t d : h.dims) {
    if (d == 0) {
      return 0;
    }
  }
  for (const std::int64_t d : h.dims) {
    const auto size = static_cast<std::uint64_t>(d);
    if (size > limit / count) {
      return std::nullopt;
    }
    count *= size;
  }
  return count;
}

[[nodiscard]] inline std::string header_text(const tensor& t, const std::string& path) {
  const type_code* found = nullptr;
  for (const type_code& code : type_codes) {
    found = code.type == t.type() ? &code : found;
  }
  require(found != nullptr, error_kind::unsupported, path, "elements of type ",
          graph::name(t.type()), " are not written");
  std::string text = "{'descr': '";
  text += element_size(t.type()) == 1 ? '|' : '<';
  text += found->code;
  text += "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < t.rank(); ++i) {
    text += std::to_string(t.dim(i)) + (t.rank() == 1 ? "," : i + 1 < t.rank() ? ", " : "");
  }
  text += "), }";
  // Magic, version, length, text and newline together are a multiple of 64 bytes.
  constexpr std::size_t before = 10;
  text.append(63 - (before + text.size()) % 64, ' ');
  text += '\n';
  require(text.size() <= 0xFFFF, error_kind::unsupported, path, "rank ", t.rank(),
          " is not written");
  std::string start(magic);
  start += '\x01';
  start += '\0';
  start += static_cast<char>(text.size() & 0xFFU);
  start += static_cast<char>(text.size() >> 8U);
  return start + text;
}

}  // namespace detail::npy

/// A .npy file whose elements are read only when they are asked for, so that memory does not grow
/// with the number of samples in the file. Functions throw what read_npy() throws.
class npy_file {
 public:
  /// Opens a file and reads what is in front of its elements.
  explicit npy_file(std::string path) : path_(std::move(path)), file_(path_) {
    const std::string text = detail::npy::read_header_text(file_, path_, first_);
    const std::uint64_t left = file_.size() - first_;
    header_ = detail::npy::header_parser(path_, text).parse();
    const auto bytes = detail::npy::data_bytes(header_);
    detail::npy::require(bytes.has_value(), error_kind::bad_file, path_, "shape ",
                         to_string(header_.dims), " has too many elements");
    detail::npy::require(*bytes == left, error_kind::bad_file, path_, "holds ", left,
                         " bytes of elements, shape ", to_string(header_.dims), " of ",
                         graph::name(header_.type), " needs ", *bytes);
  }

  /// The path that the file was opened by.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The type of its elements.
  [[nodiscard]] element_type type() const noexcept { return header_.type; }
  /// Its shape.
  [[nodiscard]] const shape& dims() const noexcept { return header_.dims; }

  /// Reads all elements.
  [[nodiscard]] tensor read() {
    tensor t = tensor::allocate(header_.type, header_.dims);
    file_.read(first_, reinterpret_cast<char*>(t.mutable_raw()), t.bytes());
    check_elements(t);
    return t;
  }
  /// Reads the indices first .. first + count - 1 of an axis, with all indices of the others. Of a
  /// file that is larger than the result, no more than 1 MiB is in memory besides. Throws
  /// shape_mismatch if the file does not have the axis or these indices.
  [[nodiscard]] tensor read_slice(std::size_t axis, std::size_t first, std::size_t count) {
    detail::require_samples(header_.dims, axis, first, count);
    shape dims = header_.dims;
    dims[axis] = static_cast<std::int64_t>(count);
    tensor t = tensor::allocate(header_.type, std::move(dims));
    if (t.bytes() == 0) {
      return t;
    }
    const detail::axis_layout from(header_.type, header_.dims, axis);
    const std::size_t row = from.size * from.step;
    const std::size_t piece = count * from.step;
    // A read of the file costs more than a copy, so short rows are read many at a time.
    constexpr std::size_t block = std::size_t{1} << 20U;
    const std::size_t rows = (std::min)((std::max)(block / row, std::size_t{1}), from.outer);
    std::vector<char> read_rows(rows > 1 ? rows * row : 0);
    char* to = reinterpret_cast<char*>(t.mutable_raw());
    for (std::size_t o = 0; o < from.outer; o += rows) {
      const std::size_t now = (std::min)(rows, from.outer - o);
      const std::uint64_t offset = first_ + o * row + first * from.step;
      if (rows == 1) {
        file_.read(offset, to + o * piece, piece);
        continue;
      }
      file_.read(offset, read_rows.data(), (now - 1) * row + piece);
      for (std::size_t i = 0; i < now; ++i) {
        std::memcpy(to + (o + i) * piece, read_rows.data() + i * row, piece);
      }
    }
    check_elements(t);
    return t;
  }

 private:
  void check_elements(const tensor& t) const {
    if (header_.type == element_type::boolean) {
      for (const std::byte b : std::span(t.raw(), t.bytes())) {
        detail::npy::require(b <= std::byte{1}, error_kind::bad_file, path_,
                             "has an element of type bool that is ", static_cast<unsigned>(b));
      }
    }
  }

  std::string path_;
  input_file file_;
  detail::npy::header header_;
  std::uint64_t first_ = 0;  // where the elements begin
};

/// Reads a .npy file of version 1.0, 2.0 or 3.0 in C order. Throws io if it cannot be read,
/// bad_file if it is not such a file, and unsupported for element types that a tensor cannot hold.
[[nodiscard]] inline tensor read_npy(const std::string& path) { return npy_file(path).read(); }

/// Writes a .npy file of version 1.0. If that fails, a file that was there stays as it was. Throws
/// io, and invalid_argument if the tensor has no data or is not in the order of its dimensions.
inline void write_npy(const std::string& path, const tensor& t) {
  detail::npy::require(t.has_data() && !t.channels_last(), error_kind::invalid_argument, path,
                       "the tensor has no data, or not in the order of its dimensions");
  const std::string start = detail::npy::header_text(t, path);
  replacement_file file(path);
  file.write(start.data(), start.size());
  file.write(t.raw(), t.bytes());
  file.commit();
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_NPY_HPP
